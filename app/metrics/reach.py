"""The server and the store as a scrape or a probe reaches them: on connections of its own, with little patience."""

import contextlib
from collections.abc import Iterator

from redis import Redis
from redis.exceptions import RedisError

from app.catalog import open_existing_store
from feedback.connection import connect
from feedback.errors import FeedbackError, StoreUnavailable
from feedback.settings import Settings
from persistence.sidecar import SidecarStore

_PATIENCE_S = 1.0


class Reach:
    """Used by one thread at a time. `close` it in the end."""

    def __init__(self, settings: Settings, *, has_store: bool) -> None:
        """`has_store`: this process works on the sidecar store."""
        self._sidecar_url = settings.sidecar_url if has_store else None
        self._store: SidecarStore | None = None
        self.redis: Redis = connect(settings.redis_url, timeout_s=_PATIENCE_S)

    @contextlib.contextmanager
    def store(self) -> Iterator[SidecarStore]:
        """The store, open from the first use on until it fails.

        Raises:
            FeedbackError: it cannot be opened, or is not there.
        """
        if self._store is None:
            self._store = None if self._sidecar_url is None else open_existing_store(self._sidecar_url)
        if self._store is None:
            raise StoreUnavailable("there is no store yet")
        try:
            yield self._store
        except FeedbackError:
            self._drop_store()
            raise

    def missing(self) -> list[str]:
        """What is out of reach, in words; nothing: this process can do its work."""
        reasons: list[str] = []
        try:
            self.redis.ping()
        except RedisError as error:
            reasons.append(f"server: {type(error).__name__}")
        if self._sidecar_url is not None:
            try:
                with self.store() as store:
                    store.topology()
            except FeedbackError as error:
                reasons.append(f"store: {error.code}")
        return reasons

    def close(self) -> None:
        """Close what is open."""
        self._drop_store()
        self.redis.close()

    def _drop_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
