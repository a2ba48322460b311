"""Make the secrets of docker-compose.yml's profile `many`: a password for each user, and the files that hold them.

    python3 deploy/compose/make_secrets.py [DIRECTORY]

Needs nothing but Python. All of them appear at once, or none: a run that was killed leaves at most a directory
`.secrets-…` beside, which may be deleted. What is there already is left alone: a second run changes nothing. The
directory is for its owner only; the files in it are readable, because each container reads its own as another user.
"""

import os
import re
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "acl.md"
SENTINELS = ",".join(f"sentinel-{number}:26379" for number in (1, 2, 3))

VALKEY = """\
port 6379
dir /data
appendonly yes
appendfsync everysec
stream-node-max-bytes 2048
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


def main(directory: Path) -> str | None:
    """Make the directory, unless it is there; what is wrong with the one that is."""
    made = files()
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        if missing := [name for name in made if not (directory / name).is_file()]:
            return f"{directory} is there already, without {', '.join(missing)}; nothing was changed: move it away"
        print(f"{directory} is there already; nothing was changed")
        return None
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".secrets-", dir=directory.parent))
    try:
        for name, text in made.items():
            write(draft / name, text)
        sync(draft)
        # Takes the place of nothing, or of an empty directory.
        draft.rename(directory)
        sync(directory.parent)
    except OSError as error:
        return f"{directory}: {error.strerror}; nothing was changed"
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    print(f"made {directory}; keep it, and keep it to yourself")
    return None


def write(path: Path, text: str) -> None:
    """A file that everybody may read, on stable storage."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """Put the names in a directory on stable storage."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "secrets"))
