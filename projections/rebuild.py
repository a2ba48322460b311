"""Making the cached lists anew while they are served."""

from redis import Redis

from projections.cache import ListCache


def rebuild(redis: Redis) -> None:
    """Make every cached list absent at once: from now on readers and events make them anew, from the store.

    Safe at any time, with any number of followers and responders at work; they need not be told. It costs
    nothing that grows with the number of Sessions. Checkpoints stay: what is cached from now on is read from
    the store after this call, so it holds all that the events up to them say.

    Raises:
        RedisError: the server did not do it, or the answer got lost; repeating is harmless.
    """
    ListCache(redis).invalidate()
