"""The keys of an issuer, kept: nobody waits for it who can be answered without it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from gateway.access.jwks import Fetch, SigningKey, check_issuer_url, fetch_bytes, published_keys

FRESH_S = 600.0
"""Keys are fetched again when they are older."""
STALE_S = 3600.0
"""Keys older than this count for nothing, however long the issuer is out of reach."""
ASK_EVERY_S = 10.0
"""An issuer that answers is not asked more often, whatever keys callers make up."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""One that does not answer is left alone for so long, twice as long each time."""
PATIENCE_S = 10.0
"""No request waits longer for keys."""

_Keys = Mapping[str | None, SigningKey]

_log = logging.getLogger(__name__)


class IssuerUnavailable(Exception):
    """The issuer's keys are not to be had right now."""


class KeySet:
    """The keys of one issuer, by `kid`. For one event loop.

    One fetch at a time, in the background. Only who needs a key that is not known waits for it; and while the issuer
    is known not to answer, only the request that tries it again.
    """

    def __init__(self, issuer: str, fetch: Fetch | None = None, clock: Callable[[], float] = monotonic) -> None:
        """`issuer` is as in its tokens' `iss`. Nothing is fetched yet.

        Raises:
            SettingsInvalid: it is no https URL (http is for the loopback).
        """
        check_issuer_url(issuer)
        self._issuer = issuer
        self._fetch = fetch or fetch_bytes
        self._clock = clock
        self._keys: _Keys = {}
        self._fetched_at: float | None = None
        self._ask_at: float | None = None
        self._failures = 0
        self._fetching: asyncio.Task[None] | None = None

    async def key(self, kid: str | None) -> SigningKey | None:
        """The key of that id, or the only one for None; None when the issuer has none such.

        Raises:
            IssuerUnavailable: there are no keys that are young enough, or none such, and the issuer does not answer.
        """
        if self._older_than(FRESH_S) or kid not in self._keys:
            is_first = self._fetch_if_due()
            is_needed = kid not in self._keys or self._older_than(STALE_S)
            if self._fetching is not None and is_needed and (is_first or not self._failures):
                await asyncio.wait({self._fetching}, timeout=PATIENCE_S)
        found = self._keys.get(kid)
        is_out_of_reach = self._failures > 0 or self._fetching is not None
        if self._older_than(STALE_S) or (found is None and is_out_of_reach):
            raise IssuerUnavailable
        return found

    def _older_than(self, seconds: float) -> bool:
        return self._fetched_at is None or self._clock() - self._fetched_at > seconds

    def _fetch_if_due(self) -> bool:
        """Whether this call began to fetch."""
        if self._fetching is not None or (self._ask_at is not None and self._clock() < self._ask_at):
            return False
        self._fetching = asyncio.create_task(self._refresh())
        return True

    async def _refresh(self) -> None:
        asked_at = self._clock()
        try:
            self._keys = await _in_a_thread(lambda: published_keys(self._issuer, self._fetch))
            self._fetched_at, self._failures = self._clock(), 0
            self._ask_at = asked_at + ASK_EVERY_S
        except Exception as error:  # noqa: BLE001  whatever it is, the keys that are known go on to count
            self._ask_at = self._clock() + min(FIRST_PAUSE_S * 2 ** min(self._failures, 10), LONGEST_PAUSE_S)
            self._failures += 1
            _log.warning("issuer out of reach issuer=%s failures=%d reason=%s", self._issuer, self._failures, error)
        finally:
            self._fetching = None


async def _in_a_thread(work: Callable[[], _Keys]) -> _Keys:
    """What `work` returns or raises. The end of the process does not wait for it, as it would for a pool's thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Keys] = loop.create_future()

    def settle(keys: _Keys | None, error: Exception | None = None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        elif keys is not None:
            done.set_result(keys)

    def run() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            try:
                loop.call_soon_threadsafe(settle, work())
            except Exception as error:  # noqa: BLE001  whoever waits gets it
                loop.call_soon_threadsafe(settle, None, error)

    threading.Thread(target=run, name="issuer-keys", daemon=True).start()
    return await done
