"""A Session's write lock: `flock` on `session.lock` in its directory (FORMATS section 10, locks of later builds)."""

import fcntl
import os
from pathlib import Path

from feedback.errors import LogOwned
from persistence.session_log.layout import LOCK_NAME

_ATTEMPTS = 3


def acquire(session_id: str, directory: Path) -> int:
    """The descriptor that holds the lock until it is closed. The lock file stays, empty.

    Raises LogOwned when another writer holds it, OSError when the file cannot be made.
    """
    path = directory / LOCK_NAME
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, named = os.fstat(descriptor), path.stat()
            if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise LogOwned(session_id, str(path), "another writer holds the Session") from error
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was replaced under the lock: what is held guards nothing
    raise LogOwned(session_id, str(path), "the lock file keeps being replaced")
