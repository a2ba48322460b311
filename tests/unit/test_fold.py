"""The fold: whatever order events come in, a cached list is one that the store once had, and never goes back."""

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from feedback.events import Event, FeedbackDeleted, FeedbackPut, FeedbackRejected, FeedbackUnchanged
from feedback.lists import CachedList
from feedback.model import Item, SessionIdentity
from feedback.results import TargetNotFound
from projections.fold import Gap, View, fold

SESSION = "session-1"
LIVES = (SessionIdentity(created_at=1, cwd="/a"), SessionIdentity(created_at=2))
MESSAGES = ("m1", "m2", "m3")


def apply(view: View, event: Event) -> View | Gap:
    """The view after one event."""
    return fold(view, (event,))


def item(message_id: str, revision: int) -> Item:
    return Item(message_id=message_id, rating="positive", version=f"v{revision}", created_at=1, updated_at=revision)


def put(message_id: str, revision: int, life: int = 0) -> FeedbackPut:
    return FeedbackPut(
        event_id=f"1-0-{revision}",
        command_id=f"put-{revision}",
        session_id=SESSION,
        session=LIVES[life],
        revision=revision,
        message_id=message_id,
        occurred_at=revision,
        partition=0,
        epoch=1,
        item=item(message_id, revision),
    )


def deleted(message_id: str, revision: int, life: int = 0) -> FeedbackDeleted:
    return FeedbackDeleted(
        event_id=f"1-0-{revision}",
        command_id=f"delete-{revision}",
        session_id=SESSION,
        session=LIVES[life],
        revision=revision,
        message_id=message_id,
        occurred_at=revision,
        partition=0,
        epoch=1,
    )


def unchanged(message_id: str, revision: int) -> FeedbackUnchanged:
    return FeedbackUnchanged(
        event_id="1-0-99",
        command_id="unchanged",
        session_id=SESSION,
        session=LIVES[0],
        revision=revision,
        message_id=message_id,
        occurred_at=1,
        partition=0,
        epoch=1,
    )


def rejected(revision: int) -> FeedbackRejected:
    return FeedbackRejected(
        event_id="1-0-99",
        command_id="rejected",
        session_id=SESSION,
        revision=revision,
        message_id="m",
        occurred_at=1,
        partition=0,
        epoch=1,
        error=TargetNotFound(session_id=SESSION, message_id="m"),
    )


def view(revision: int, *items: Item, life: int = 0) -> CachedList:
    return CachedList(session_id=SESSION, identity=LIVES[life], revision=revision, items=items)


def test_first_put_of_a_session_needs_no_history() -> None:
    """Revision 1 begins a list by itself."""
    assert apply(None, put("m1", 1)) == view(1, item("m1", 1))


def test_a_material_event_without_a_view_is_a_gap() -> None:
    """What came before is not known, so the store must be asked."""
    assert apply(None, put("m1", 2)) == Gap()
    assert apply(None, deleted("m1", 1)) == Gap()


def test_an_immaterial_event_changes_nothing() -> None:
    """No-ops and rejections leave the view as it is, also where nothing is cached."""
    before = view(3, item("m1", 3))
    for event in (unchanged("m1", 3), rejected(3), rejected(0)):
        assert apply(before, event) is before
        assert apply(None, event) is None


def test_an_immaterial_event_of_a_later_revision_is_a_gap() -> None:
    """It tells that a material one was missed."""
    assert apply(view(3), unchanged("m1", 4)) == Gap()
    assert apply(view(3), rejected(5)) == Gap()


def test_update_keeps_its_place_and_recreation_goes_to_the_end() -> None:
    """Items stand in order of first creation."""
    events = (put("m1", 1), put("m2", 2), put("m1", 3))
    assert fold(None, events) == view(3, item("m1", 3), item("m2", 2))
    assert fold(None, (*events, deleted("m1", 4), put("m1", 5))) == view(5, item("m2", 2), item("m1", 5))


def test_an_older_event_is_skipped() -> None:
    """Applied twice is applied once."""
    before = view(3, item("m1", 3))
    assert apply(before, put("m1", 3)) is before
    assert apply(before, deleted("m1", 2)) is before


def test_a_session_that_nobody_has_rated_yet_begins_with_its_first_put() -> None:
    """Its cached list is empty, of revision 0 and of whatever life it was then in."""
    nothing = view(0, life=1)
    assert apply(nothing, put("m1", 1)) == view(1, item("m1", 1))
    assert apply(nothing, rejected(0)) is nothing
    assert apply(nothing, put("m1", 2)) == Gap()


def test_a_missed_revision_is_a_gap() -> None:
    """Revisions are dense over material events."""
    assert apply(view(3, item("m1", 3)), put("m2", 5)) == Gap()
    assert fold(view(3), (put("m2", 5), put("m2", 4))) == Gap()


def test_a_new_life_starts_with_an_empty_list() -> None:
    """The first put of another identity drops the old items; the revision goes on."""
    before = view(3, item("m1", 1), item("m2", 3))
    assert apply(before, put("m1", 4, life=1)) == view(4, item("m1", 4), life=1)


def test_contradictions_are_gaps() -> None:
    """A delete of what is not listed, in the same life or a new one, and one revision in two lives."""
    before = view(3, item("m1", 3))
    assert apply(before, deleted("m2", 4)) == Gap()
    assert apply(before, deleted("m1", 4, life=1)) == Gap()
    assert apply(before, put("m1", 3, life=1)) == Gap()


Step: TypeAlias = tuple[str, str, int]
steps = st.lists(
    st.tuples(st.sampled_from(("put", "delete")), st.sampled_from(MESSAGES), st.sampled_from((0, 0, 0, 1))), max_size=12
)


def history(script: list[Step]) -> tuple[list[Event], list[View]]:
    """The events of a Session and the store's list after each revision, by the contract's rules (a plain model)."""
    events: list[Event] = []
    items: dict[str, Item] = {}
    life, lists = 0, list[View]([None])
    for operation, message_id, wanted in script:
        revision = len(lists)
        if operation == "put":
            items = dict(items) if wanted == life else {}
            life = wanted
            items[message_id] = item(message_id, revision)
            events.append(put(message_id, revision, life))
        elif wanted == life and message_id in items:
            items = {key: kept for key, kept in items.items() if key != message_id}
            events.append(deleted(message_id, revision, life))
        else:
            events.append(unchanged(message_id, revision - 1))
            continue
        lists.append(view(revision, *items.values(), life=life))
    return events, lists


@given(script=steps, data=st.data())
def test_any_delivery_ends_in_the_stores_list(script: list[Step], data: st.DataObject) -> None:
    """Duplicates, reordering, losses: each view is one that the store had, none older than the one before; and
    the last event leads to the store's own list."""
    events, lists = history(script)
    if not events:
        return
    delivery = data.draw(st.lists(st.sampled_from(events), max_size=2 * len(events)))
    current: View = None
    for event in [*delivery, *events[-1:]]:
        folded = apply(current, event)
        if isinstance(folded, Gap):
            # The store knows at least what the event says, and whatever was committed since.
            folded = lists[data.draw(st.integers(event.revision, len(lists) - 1))]
        reached = folded.revision if folded else 0
        assert folded == lists[reached]
        assert reached >= (current.revision if current else 0)
        if current is not None:
            assert reached >= event.revision
        current = folded
    if current is not None:
        assert current == lists[-1]


@given(script=steps)
def test_the_whole_history_in_order_needs_no_store(script: list[Step]) -> None:
    """Fold from nothing, in order: the store's list after each event."""
    events, lists = history(script)
    assert fold(None, events) == lists[-1]
