"""How often: a token bucket per bearer, in memory, bounded."""

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

_MOST_BUCKETS = 10_000


class RateLimiter:
    """Each bucket holds up to `burst` requests and gains `rate` a second. For one thread.

    Past `most` buckets the one that was used longest ago is forgotten: it would be full again, or nearly.
    """

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float] = monotonic, most: int = _MOST_BUCKETS
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, bucket: str) -> float:
        """Take one request out of the bucket: 0, or, when it is empty, the seconds until there is one again."""
        now = self._clock()
        left, at = self._buckets.pop(bucket, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[bucket] = (left if wait else left - 1, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return wait
