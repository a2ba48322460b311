"""Bearer tokens: 256 random bits each, of which the file keeps only a digest.

The file is JSON, private to its owner (mode 0600), and replaced as a whole. Whoever can write it decides who may.
"""

import fcntl
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from feedback.commands import Milliseconds
from feedback.errors import SettingsInvalid
from feedback.requests import MAX_ACTOR_BYTES
from gateway.access.principals import SUBJECT, Scope, is_actor
from persistence.atomic_file import make_directories, replace_file

PREFIX = "sft_"
"""Of every token: tells it from an issuer's, and lets scanners of leaked secrets find it."""

_ID_BYTES = 6
_SECRET_BYTES = 32
_MODE = 0o600


class TokenRecord(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A token as it is kept. Times in milliseconds since the Unix epoch; `digest` is SHA-256 in hex.

    A fast digest is enough: there is no guessing 256 random bits.
    """

    id: str
    label: str
    digest: str
    last_four: str
    scopes: tuple[Scope, ...]
    created_at: Milliseconds
    expires_at: Milliseconds | None

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at is not None and now_ms >= self.expires_at


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    tokens: tuple[TokenRecord, ...]


_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class TokenFile:
    """The tokens at `path`. Any process may change them; readers see the change with their next look."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def exists(self) -> bool:
        """Whether tokens were ever set up here, which counts as true where it cannot be told."""
        try:
            self._path.lstat()
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def read(self) -> tuple[TokenRecord, ...]:
        """All tokens, in order of creation; none where there is no file.

        Raises:
            SettingsInvalid: the file cannot be read, others may read it, or it is no file of tokens.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise SettingsInvalid(f"gateway_tokens: {self._path}: {error.strerror}") from None
        with open(descriptor, "rb") as file:  # noqa: PTH123  what was opened is what is checked
            if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
                raise SettingsInvalid(f"gateway_tokens: {self._path}: others may read or write it; chmod 600")
            try:
                return msgspec.json.decode(file.read(), type=_Document).tokens
            except (OSError, msgspec.MsgspecError) as error:
                raise SettingsInvalid(f"gateway_tokens: {self._path}: not a file of tokens: {error}") from None

    def create(
        self, label: str, scopes: tuple[Scope, ...], *, now_ms: int, expires_at: int | None = None
    ) -> tuple[str, TokenRecord]:
        """A new token, which is never to be seen again, and what is kept of it.

        Raises:
            SettingsInvalid: the label is no actor, the end lies too far ahead, or the file cannot be used.
        """
        check_label(label)
        if expires_at is not None and expires_at > _LAST_MS:
            raise SettingsInvalid("--days: a token ends before the year 10000, or never")
        identifier = secrets.token_hex(_ID_BYTES)
        token = f"{PREFIX}{identifier}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        record = TokenRecord(
            id=identifier,
            label=label,
            digest=digest_of(token),
            last_four=token[-4:],
            scopes=scopes,
            created_at=now_ms,
            expires_at=expires_at,
        )
        with self._changing() as tokens:
            self._write((*tokens, record))
        return token, record

    def revoke(self, identifier: str) -> TokenRecord | None:
        """Take a token back; None when there is none of that id. The file stays, even without tokens."""
        with self._changing() as tokens:
            found = next((token for token in tokens if token.id == identifier), None)
            if found is not None:
                self._write(tuple(token for token in tokens if token.id != identifier))
        return found

    @contextmanager
    def _changing(self) -> Iterator[tuple[TokenRecord, ...]]:
        """One change after the other, whatever processes there are."""
        try:
            make_directories(self._path.parent)
            lock = os.open(
                self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE
            )
        except OSError as error:
            raise SettingsInvalid(f"gateway_tokens: {self._path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)

    def _write(self, tokens: tuple[TokenRecord, ...]) -> None:
        document = msgspec.json.format(msgspec.json.encode(_Document(1, tokens)), indent=2)
        try:
            replace_file(self._path, document + b"\n", mode=_MODE)
        except OSError as error:
            raise SettingsInvalid(f"gateway_tokens: {self._path}: {error.strerror}") from None


class TokenCheck:
    """Tells which token a caller holds; looks at the file again whenever it has changed."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, TokenRecord] = {}

    def find(self, token: str, now_ms: int) -> TokenRecord | None:
        """The record of a token that is valid now.

        Raises:
            SettingsInvalid: the file cannot be used; nobody is let in.
        """
        self._refresh()
        identifier = token.removeprefix(PREFIX).partition("_")[0]
        record = self._tokens.get(identifier)
        known = record.digest if record else "0" * 64
        if not hmac.compare_digest(digest_of(token), known) or record is None or record.is_expired(now_ms):
            return None
        return record

    def _refresh(self) -> None:
        try:
            status = self._file.path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            seen = (0, 0, 0)
        except OSError as error:
            raise SettingsInvalid(f"gateway_tokens: {self._file.path}: {error.strerror}") from None
        if seen != self._seen:
            self._seen = None
            self._tokens = {record.id: record for record in self._file.read()}
            self._seen = seen


def digest_of(token: str) -> str:
    """SHA-256 of the whole token, in hex. What is no text of a token has a digest as well."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def check_label(label: str) -> None:
    """A label is the actor of all that its token's bearer does.

    Raises:
        SettingsInvalid: it is blank, not printable, not well-formed Unicode, too long for an actor, or reads like one
            of an issuer's.
    """
    if not is_actor(label):
        raise SettingsInvalid(f"label: expected printable text that is not blank, of at most {MAX_ACTOR_BYTES} bytes")
    if label.startswith(SUBJECT):
        raise SettingsInvalid(f"label: what begins with {SUBJECT} names the issuer's users")
