"""Make the secrets of docker-compose.yml's profile `many`: a password for each user, and the files that hold them.

    python3 deploy/compose/make_secrets.py [DIRECTORY]

Needs nothing but Python. What is there already is left alone: a second run changes nothing. The directory is for its
owner only; the files in it are readable, because each container reads its own as another user.
"""

import re
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "acl.md"
SENTINELS = ",".join(f"sentinel-{number}:26379" for number in (1, 2, 3))

VALKEY = """\
port 6379
dir /data
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
aclfile /run/secrets/users
masteruser replica
masterauth {replica}
"""

SENTINEL = """\
port 26379
dir /data
requirepass {sentinels}
sentinel sentinel-pass {sentinels}
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel monitor feedback valkey-1 6379 2
sentinel auth-user feedback sentinel
sentinel auth-pass feedback {sentinel}
sentinel down-after-milliseconds feedback 2000
sentinel failover-timeout feedback 10000
"""

SETTINGS = """\
redis_url = "redis+sentinel://{role}:{password}@{hosts}/feedback/0?sentinel_password={sentinels}"
"""

STORE = """\
sidecar_url = "postgresql://feedback:{postgres}@postgres:5432/feedback"
"""


def files() -> dict[str, str]:
    """The secrets' files by name, with new passwords; the users are those of docs/acl.md."""
    rules = re.findall(r"^user (\S+) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = (*rules, "sentinels", "postgres")
    passwords = {name: secrets.token_urlsafe(24) for name in names}
    users = ["user default off"]
    for line in re.findall(r"^user .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        name = line.split()[1]
        users.append(line.replace(f">{name}-password", f">{passwords[name]}"))
    made = {
        "users.acl": "\n".join(users) + "\n",
        "valkey.conf": VALKEY.format(**passwords),
        "sentinel.conf": SENTINEL.format(**passwords),
        "postgres": passwords["postgres"],
    }
    for role in ("host", "worker", "projector", "agent", "gateway", "operator"):
        text = SETTINGS.format(role=role, password=passwords[role], hosts=SENTINELS, sentinels=passwords["sentinels"])
        made[f"{role}.toml"] = text + (STORE.format(**passwords) if role in {"worker", "projector", "operator"} else "")
    return made


def main(directory: Path) -> None:
    """Write them, unless they are there."""
    if directory.exists():
        print(f"{directory} is there already; nothing was changed")
        return
    directory.mkdir(mode=0o700, parents=True)
    for name, text in files().items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o444)
    print(f"made {directory}; keep it, and keep it to yourself")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "secrets")
