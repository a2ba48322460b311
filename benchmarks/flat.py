"""What must not grow: a put's cost with the items of its Session, the catalog, and the commands behind it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from benchmarks.deployment import deployed
from benchmarks.figures import Figure, Target, compared, figure
from benchmarks.measure import Run, alternately, memory_mb
from benchmarks.puts import Load, Rater, submit
from benchmarks.sessions import message_ids, session_ids, write_sessions
from feedback.calls import wall_clock_ms
from feedback.partitions import PartitionId
from persistence.sidecar.store import CommandRecord, SidecarStore

_UNIT = "µs"
_FLAT = Target("at most", 1.3)
_RECORDS_AT_ONCE = 5000
_EVENT_BYTES = 400


def items(run: Run) -> list[Figure]:
    """Lone puts in a Session with 10 items, and in one with 10,000."""
    few, many = 10, run.size(10_000, 200)
    with run.home() as home, deployed(Path(home)) as system:
        root = Path(system.settings.sessions)
        write_sessions(root, ["few"], few)
        write_sessions(root, ["many"], many)
        raters = []
        for session, number in (("few", few), ("many", many)):
            # All but the ones that are rated here, so that each has its number of items.
            submit(system.client, Load([session], message_ids(number)[few // 2 :]).take(number - few // 2))
            raters.append(Rater(system.client, [(session, message) for message in message_ids(few // 2)]))
            for _ in range(few // 2):
                raters[-1]()
        system.settle()
        small, large = alternately(raters, rounds=run.size(15, 2), each=run.size(40, 5))
    name = f"put among {few} items"
    return [figure(name, _UNIT, small), compared(f"put among {many} items", _UNIT, large, name, small, target=_FLAT)]


def catalog(run: Run) -> list[Figure]:
    """Lone puts with 1,000 and with 100,000 Sessions in the catalog and in the store, two deployments side by side."""
    sizes = (run.size(1000, 20), run.size(100_000, 200))
    rounds, each = run.size(15, 2), run.size(20, 3)
    with ExitStack() as stack:
        home = Path(stack.enter_context(run.home()))
        systems = [stack.enter_context(deployed(home / str(size))) for size in sizes]
        new = []
        known = []
        for system, size in zip(systems, sizes, strict=True):
            sessions = session_ids(size + rounds * each)
            write_sessions(Path(system.settings.sessions), sessions, 3, projects=10)
            touched, untouched = sessions[:size], sessions[size:]
            submit(system.client, Load(touched, ["answer-1"]).take(size))
            system.settle()
            new.append(Rater(system.client, [(session, "answer-2") for session in untouched]))
            known.append(Rater(system.client, [(session, "answer-3") for session in touched[-4:]]))
        small, large = alternately(known, rounds=rounds, each=each)
        first_small, first_large = alternately(new, rounds=rounds, each=each)
        memory = [memory_mb(system.worker_pid(), "VmRSS") for system in systems]
    few, many = (f"{size:,} Sessions" for size in sizes)
    return [
        figure(f"put, {few}", _UNIT, small),
        compared(f"put, {many}", _UNIT, large, f"put, {few}", small, target=_FLAT),
        figure(f"first put in a Session, {few}", _UNIT, first_small),
        compared(f"first put in a Session, {many}", _UNIT, first_large, f"the same, {few}", first_small, target=_FLAT),
        figure(f"the worker's memory, {few} touched", "MB", [[memory[0]]]),
        figure(f"the worker's memory, {many} touched", "MB", [[memory[1]]], target=Target("at most", 120, "value")),
    ]


def history(run: Run) -> list[Figure]:
    """Lone puts in a new system, and in one with a million finished commands behind it."""
    behind = run.size(1_000_000, 5000)
    sessions = session_ids(4)
    with ExitStack() as stack:
        home = Path(stack.enter_context(run.home()))
        raters = []
        for name, records in (("new", 0), ("old", behind)):
            system = stack.enter_context(deployed(home / name, workers=0, projector=False))
            write_sessions(Path(system.settings.sessions), sessions, 3)
            _remember(system.store, system.topology.all_partitions(), records)
            system.start_workers(1)
            system.start_projector()
            raters.append(Rater(system.client, [(session, "answer-1") for session in sessions]))
            for _ in sessions:
                raters[-1]()
            system.settle()
        new, old = alternately(raters, rounds=run.size(15, 2), each=run.size(40, 5))
    name = "put, new system"
    return [figure(name, _UNIT, new), compared(f"put, {behind:,} commands later", _UNIT, old, name, new, target=_FLAT)]


def _remember(store: SidecarStore, partitions: Sequence[PartitionId], number: int) -> None:
    """Records of finished commands, as many batches of them leave behind."""
    fences = store.acquire_fences(partitions, "benchmark")
    epochs = {partition: fence.epoch for partition, fence in fences.items()}
    made = list(_records(partitions, number))
    for start in range(0, number, _RECORDS_AT_ONCE):
        with store.transaction(epochs) as transaction:
            transaction.apply((), made[start : start + _RECORDS_AT_ONCE], {})


def _records(partitions: Sequence[PartitionId], number: int) -> Iterator[CommandRecord]:
    now = wall_clock_ms()
    for index in range(number):
        # Ids as random ones are spread: by a multiplication that no two numbers share a result of.
        spread = (index + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128
        yield CommandRecord(
            command_id=str(UUID(int=spread)),
            partition=partitions[index % len(partitions)],
            sequence=index // len(partitions) + 1,
            session_id=f"session-{index % 1000}",
            digest=b"d" * 32,
            event=b"e" * _EVENT_BYTES,
            applied_at=now,
            expires_at=now + 24 * 3600 * 1000,
        )
