"""Faults of what lies in Redis: commands delivered again, strangers' jobs, operators at work, other partitions."""

import itertools

from redis.exceptions import RedisError

from feedback import keys
from feedback.calls import wall_clock_ms
from tests.chaos.nemesis import Field, Kinds
from worker.dead_letters import DeadLetters
from worker.letters import choose_for_drop, choose_for_retry

_NUMBERS = (1, 3, 8, 16, 24)


class QueueFaults:
    """Queues, jobs, failed registries, and the number of partitions."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._system, self._rng = field.system, field.rng
        self._strangers = itertools.count()

    def kinds(self) -> Kinds:
        return {
            "a command is delivered again": (4, self._deliver_again),
            "a foreign job": (2, self._foreign_job),
            "the partitions are changed": (4, self._change_partitions),
            "a change of partitions is left half done": (1, self._change_half),
            "failed commands are retried": (2, self._retry),
            "failed commands are dropped": (1, self._drop),
        }

    def _deliver_again(self) -> str:
        """On the queue of its Session, or of the partition that served it before the last change."""
        calls = self._field.history.calls[-500:]
        if not calls:
            return ""
        call = self._rng.choice(calls)
        if not self._system.admin.exists(keys.job(call.command_id)):
            return ""
        partition = self._system.partition_of(call.request.session_id, self._rng.choice((0, 0, 1)))
        copies = self._rng.choice((1, 2, 20))
        for _ in range(copies):
            push = self._rng.choice((self._system.admin.rpush, self._system.admin.lpush))
            push(keys.queue(partition), call.command_id)
        return f"{call.command_id} {copies} times in {partition}"

    def _foreign_job(self) -> str:
        current = max(self._system.generations)
        partition = self._rng.choice([one for one in self._system.partitions() if one.generation == current])
        name = f"foreign-{next(self._strangers)}"
        data = self._rng.choice((b"\x80\x04cos\nsystem\n", b"\x94", b"x" * 100))
        self._system.admin.hset(keys.job(name), "data", data)
        self._system.admin.rpush(keys.queue(partition), name)
        return name

    def _change_partitions(self) -> str:
        number = self._rng.choice(_NUMBERS)
        self._system.change_partitions(number)
        return f"to {number}, generation {max(self._system.generations)}"

    def _change_half(self) -> str:
        """Whoever asked for it died in between; later somebody asks again."""
        number = self._rng.choice(_NUMBERS)
        self._system.change_partitions(number, half=True)
        self._field.after(self._rng.uniform(0.5, 3), self._finish_change)
        return f"to {number}, generation {max(self._system.generations)}"

    def _finish_change(self) -> None:
        """As often as it takes: the server may refuse it for another fault's sake."""
        try:
            self._system.finish_change()
        except RedisError:
            self._field.after(0.2, self._finish_change)

    def _retry(self) -> str:
        dead = DeadLetters(self._system.admin)
        choice = choose_for_retry(dead.letters(), wall_clock_ms())
        return f"{dead.retry(choice.chosen).retried} of them" if choice.chosen else ""

    def _drop(self) -> str:
        dead = DeadLetters(self._system.admin)
        chosen = choose_for_drop(itertools.islice(dead.letters(), 5))
        return f"{dead.drop(chosen)} of them" if chosen else ""
