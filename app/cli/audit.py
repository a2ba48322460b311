"""`feedback audit`: who changed what, when, from the events that the store keeps."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import closing
from typing import assert_never

from msgspec import UNSET, Struct, UnsetType
from rich.text import Text

from app.catalog import require_store
from app.cli.options import add_common, add_settings, client_settings, positive
from app.cli.output import STYLES, console, moment, printable, shortened, write_json
from app.exits import ExitCode
from feedback.errors import InvalidRequest
from feedback.events import (
    Event,
    FeedbackDeleted,
    FeedbackPut,
    FeedbackRejected,
    FeedbackUnchanged,
    decode_event,
)
from feedback.requests import check_text
from feedback.results import Rejection
from persistence.sidecar.store import HISTORY_START, HistoryPosition

_LIMIT = 100
_NOTE_WIDTH = 60


class _Page(Struct, frozen=True):
    """Outcomes in commit order, as events; `next` continues behind them and is absent on the last page."""

    events: tuple[Event, ...]
    next: str | UnsetType = UNSET


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    parser.add_argument("session", metavar="SESSION", help="id of the Session (put -- before ids that begin with -)")
    parser.add_argument("--limit", metavar="N", type=positive, default=_LIMIT, help=f"outcomes per page ({_LIMIT})")
    parser.add_argument("--after", metavar="CURSOR", help="continue behind this one: `next` of the page before")
    add_common(parser)
    add_settings(parser, "redis_url", "sidecar_url")


def run(arguments: Namespace) -> ExitCode:
    check_text("SESSION", arguments.session)
    after = HISTORY_START if arguments.after is None else _position(arguments.after)
    with closing(require_store(client_settings(arguments).sidecar_url, arguments.data)) as store:
        found = store.history(arguments.session, after, arguments.limit + 1)
    page = found[: arguments.limit]
    cursor = "-".join(map(str, page[-1].position)) if len(found) > len(page) else UNSET
    events = tuple(decode_event(outcome.event) for outcome in page)
    if arguments.json:
        write_json(_Page(events, cursor))
    else:
        _print(arguments.session, events, cursor)
    return ExitCode.SUCCESS


def _position(cursor: str) -> HistoryPosition:
    words = cursor.split("-")
    if len(words) != len(HISTORY_START) or not all(word.isdecimal() and word.isascii() for word in words):
        raise InvalidRequest("--after", f"expected a cursor as `next` gives it, got {cursor!r:.80}")
    generation, number, sequence = map(int, words)
    return generation, number, sequence


def _print(session: str, events: Sequence[Event], cursor: str | UnsetType) -> None:
    out = console()
    for event in events:
        who = "somebody" if event.actor is None else shortened(event.actor, 24)
        what = f"{printable(event.message_id)}  "
        out.print(Text.assemble((f"{moment(event.occurred_at)}  ", "dim"), f"{who}  {what}", *_outcome(event)))
    if not events:
        out.print(f"nothing is recorded about {printable(session)}")
    if cursor is not UNSET:
        out.print(f"there is more: --after {cursor}", style="dim")


def _outcome(event: Event) -> list[str | tuple[str, str]]:
    match event:
        case FeedbackPut(item=item):
            note = "" if item.note is None else f'  "{shortened(item.note, _NOTE_WIDTH)}"'
            return [(item.rating, STYLES[item.rating]), note, (f"  version {item.version}", "dim")]
        case FeedbackDeleted():
            return ["removed"]
        case FeedbackUnchanged(item=None):
            return [("asked to remove what was not there", "dim")]
        case FeedbackUnchanged():
            return [("said the same again", "dim")]
        case FeedbackRejected(error=error):
            return [("refused: ", "yellow"), _code(error)]
        case _:
            assert_never(event)


def _code(error: Rejection) -> str:
    return str(error.__struct_config__.tag)
