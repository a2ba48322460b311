"""Bearer tokens at rest: what the file holds, who may read it, and which token counts."""

import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from starlette.datastructures import Headers

from feedback.errors import SettingsInvalid
from gateway.access.authentication import Authenticator
from gateway.access.principals import Scope
from gateway.access.tokens import TokenCheck, TokenFile
from gateway.web.problems import Refused

NOW = 1_790_000_000_000
BOTH = tuple(Scope)


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "home" / "tokens.json")


def test_a_token_is_shown_once_and_only_its_digest_is_kept(file: TokenFile) -> None:
    """256 random bits; the file is its owner's alone and names label, scopes, times and the last four characters."""
    token, record = file.create("ada", BOTH, now_ms=NOW, expires_at=NOW + 1)
    document = file.path.read_bytes()
    assert len(token) > 43 + len("sft_")
    assert token.encode() not in document
    assert token.split("_", 2)[2].encode() not in document
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read() == (record,)
    kept = msgspec.json.decode(document)["tokens"][0]
    assert (kept["label"], kept["scopes"], kept["lastFour"]) == ("ada", ["read", "rate"], token[-4:])
    assert (kept["createdAt"], kept["expiresAt"]) == (NOW, NOW + 1)


def test_a_token_counts_until_it_expires_or_is_revoked(file: TokenFile) -> None:
    """A change of the file counts with the next look; what is nearly the token does not count."""
    check = TokenCheck(file)
    assert check.find("sft_00_x", NOW) is None, "there are none yet"
    token, record = file.create("ada", BOTH, now_ms=NOW, expires_at=NOW + 10)
    other, _ = file.create("bob", (Scope.READ,), now_ms=NOW)
    assert check.find(token, NOW) == record
    assert check.find(token, NOW + 10) is None, "expired"
    mixed = other[: len("sft_") + 12] + token[len("sft_") + 12 :]
    for wrong in (token[:-1], token + "x", token.upper(), mixed, "sft_", "", "sft_\ud800_x"):
        assert check.find(wrong, NOW) is None
    assert file.revoke(record.id) == record
    assert check.find(token, NOW) is None, "revoked"
    found = check.find(other, NOW)
    assert found is not None
    assert found.label == "bob"


def test_revoking_the_last_token_leaves_a_file_so_that_nobody_gets_in(file: TokenFile) -> None:
    assert not file.exists()
    _, record = file.create("ada", BOTH, now_ms=NOW)
    file.revoke(record.id)
    assert file.exists()
    assert file.read() == ()
    assert file.revoke(record.id) is None


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b'{"schema":1,"tokens":[]}', 0o640, "chmod 600"),
        (b'{"schema":2,"tokens":[]}', 0o600, "not a file of tokens"),
        (b'{"schema":1,"tokens":[{"id":"x"}]}', 0o600, "not a file of tokens"),
        (b"", 0o600, "not a file of tokens"),
    ],
)
def test_a_file_that_cannot_be_trusted_lets_nobody_in(file: TokenFile, content: bytes, mode: int, reason: str) -> None:
    """It is said what is wrong, and the token that was known before does not count either."""
    token, _ = file.create("ada", BOTH, now_ms=NOW)
    check = TokenCheck(file)
    assert check.find(token, NOW)
    file.path.write_bytes(content)
    file.path.chmod(mode)
    for _ in range(2):
        with pytest.raises(SettingsInvalid, match=reason):
            check.find(token, NOW)


@pytest.mark.parametrize("label", ["", "  ", "a\nb", "\ud800", "ü" * 129, "sub:grace"])
def test_a_label_that_is_no_actor_is_refused(file: TokenFile, label: str) -> None:
    """Nor may it be the actor of somebody at the issuer."""
    with pytest.raises(SettingsInvalid):
        file.create(label, BOTH, now_ms=NOW)
    assert not file.exists()


def test_tokens_that_are_created_at_the_same_time_are_all_kept(file: TokenFile) -> None:
    together = threading.Barrier(8)

    def create(number: int) -> str:
        together.wait()
        return file.create(f"bearer {number}", BOTH, now_ms=NOW)[0]

    with ThreadPoolExecutor(8) as threads:
        tokens = list(threads.map(create, range(8)))
    check = TokenCheck(file)
    assert [check.find(token, NOW) is not None for token in tokens] == [True] * 8


def test_a_file_that_is_gone_or_out_of_reach_opens_no_door(file: TokenFile) -> None:
    """Once tokens are asked for, they are; and where it cannot be told whether there are any, there are."""
    door = Authenticator(file, None)
    required = [door.is_required]
    file.create("ada", BOTH, now_ms=NOW)
    required.append(door.is_required)
    file.path.unlink()
    required.append(door.is_required)
    assert required == [False, True, True]
    with pytest.raises(Refused) as refused:
        door.principal(Headers()).send(None)
    assert refused.value.problem.status == HTTPStatus.UNAUTHORIZED
    (file.path.parent / "a-file").touch()
    assert TokenFile(file.path.parent / "a-file" / "tokens.json").exists()


def test_an_end_that_no_file_can_hold_is_refused(file: TokenFile) -> None:
    """What is written can be read: a mistake locks nobody out."""
    file.create("ada", BOTH, now_ms=NOW)
    with pytest.raises(SettingsInvalid, match="year 10000"):
        file.create("bob", BOTH, now_ms=NOW, expires_at=2**60)
    assert [token.label for token in file.read()] == ["ada"]
