"""Random batches against a plain dict: whatever is committed, the store lists what the model lists."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from feedback.model import Item, SessionIdentity
from persistence.sidecar import SidecarStore
from persistence.sidecar.store import Change, CommandRecord, DeleteItem, PutItem, StartSession
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, SECOND_LIFE, Engine, item, record

SESSIONS = ("", "s", "s\0")
MESSAGES = ("", "m", "m\0", "n")


class Step(Struct, frozen=True):
    """What happens to one Session: a put (in this life), a delete, or only a start."""

    kind: str
    session_id: str
    message_id: str
    identity: SessionIdentity
    note: str | None


class ModelSession(Struct):
    identity: SessionIdentity
    revision: int
    items: dict[str, Item]


Model = dict[str, ModelSession]

notes = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
steps = st.builds(
    Step,
    st.sampled_from(["put", "put", "delete", "start"]),
    st.sampled_from(SESSIONS),
    st.sampled_from(MESSAGES),
    st.sampled_from([FIRST_LIFE, SECOND_LIFE]),
    notes,
)
batches = st.lists(st.tuples(st.lists(steps, max_size=8), st.booleans()), max_size=8)


class Abandoned(Exception):
    """The batch is given up before its end."""


def decide(model: Model, step: Step) -> list[Change]:
    """The changes of one step, as a worker would make them, applied to the model as well."""
    changes: list[Change] = []
    stored = model.get(step.session_id)
    if step.kind != "delete" or stored is None:
        changes.append(StartSession(step.session_id, step.identity))
        if stored is None or stored.identity != step.identity:
            stored = ModelSession(step.identity, 0 if stored is None else stored.revision, {})
            model[step.session_id] = stored
    if step.kind == "put":
        stored.revision += 1
        rated = item(step.message_id, note=step.note)
        stored.items[step.message_id] = rated
        changes.append(PutItem(step.session_id, rated, stored.revision))
    elif step.kind == "delete" and step.message_id in stored.items:
        stored.revision += 1
        del stored.items[step.message_id]
        changes.append(DeleteItem(step.session_id, step.message_id, stored.revision))
    return changes


def copy(model: Model) -> Model:
    return {name: ModelSession(kept.identity, kept.revision, dict(kept.items)) for name, kept in model.items()}


def assert_same(store: SidecarStore, model: Model) -> None:
    for session_id in SESSIONS:
        feedback, expected = store.feedback(session_id), model.get(session_id)
        if feedback is None or expected is None:
            assert feedback is None
            assert expected is None
        else:
            assert (feedback.identity, feedback.revision) == (expected.identity, expected.revision)
            assert feedback.items == tuple(expected.items.values())
    health = store.health()
    assert (health.sessions, health.items) == (len(model), sum(len(kept.items) for kept in model.values()))
    with store.transaction({}) as transaction:
        snapshot = transaction.load([], [(session, message) for session in SESSIONS for message in MESSAGES])
    assert set(snapshot.sessions) == set(model)
    assert snapshot.items == {(name, key): rated for name, kept in model.items() for key, rated in kept.items.items()}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_any_batches_leave_what_a_dict_would_hold(engine: Engine, batches: list[tuple[list[Step], bool]]) -> None:
    """Committed batches count in full, abandoned ones not at all; records follow each other without a gap."""
    with engine.opened() as store:
        check(store, batches)


def check(store: SidecarStore, batches: list[tuple[list[Step], bool]]) -> None:
    model = Model()
    epoch = store.acquire_fences([P0], "model")[P0].epoch
    recorded: list[CommandRecord] = []
    for batch, abandoned in batches:
        after = copy(model)
        changes = [change for step in batch for change in decide(after, step)]
        records = [record(len(recorded) + number) for number in range(1, len(batch) + 1)]
        with suppress(Abandoned), store.transaction({P0: epoch}) as transaction:
            transaction.apply(changes, records, {})
            if abandoned:
                raise Abandoned
        if not abandoned:
            model = after
            recorded += records
        assert_same(store, model)
    assert store.outcomes(P0, 0, 1000) == [(kept.sequence, kept.event) for kept in recorded]
