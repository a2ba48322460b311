"""When to try again: exponential backoff with jitter, capped (pure: the caller brings the randomness)."""

FIRST_S = 0.05
CAP_S = 30.0


def delay(attempt: int, jitter: float, *, first_s: float = FIRST_S, cap_s: float = CAP_S) -> float:
    """Seconds to wait after the `attempt`-th failure (from 1); `jitter` in [0, 1) spreads the upper half."""
    full = min(cap_s, first_s * 2.0 ** min(attempt - 1, 32))
    return full / 2 + full / 2 * jitter
