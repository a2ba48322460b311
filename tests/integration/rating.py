"""Results as the tests of both clients want to see them."""

from redis import Redis

from feedback import (
    Item,
    ItemList,
    Ok,
    Result,
    keys,
)

MESSAGES = tuple(f"m{number}" for number in range(50))


def item_of(result: Result) -> Item:
    assert isinstance(result, Ok), result
    assert isinstance(result.value, Item)
    return result.value


def items_of(result: Result) -> tuple[Item, ...]:
    assert isinstance(result, Ok), result
    assert isinstance(result.value, ItemList)
    return result.value.items


def forget(redis: Redis, command_id: str) -> None:
    """Redis loses what it knows of a command."""
    redis.delete(keys.job(command_id), keys.results(command_id))
