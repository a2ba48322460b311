"""`feedback put`, `delete` and `list`: the contract's three operations."""

import os
from argparse import ArgumentParser, Namespace
from typing import assert_never

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rich.text import Text

from app.cli.options import add_common, add_settings, client_settings
from app.cli.output import STYLES, console, moment, printable, shortened, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.tracing import traced
from feedback.client import FeedbackClient
from feedback.connection import SOCKET_TIMEOUT_S, connect
from feedback.errors import QueueUnavailable
from feedback.model import Item
from feedback.requests import check_timeout
from feedback.results import (
    Absent,
    ItemList,
    NoteBlank,
    NoteTooLarge,
    Ok,
    Rejected,
    Rejection,
    Result,
    SessionNotFound,
    TargetNotFound,
    Value,
    VersionConflict,
)

_TIMEOUT_S = 30.0
_SHORTEST_S = 0.1
_NOTE_WIDTH = 60


def configure(command: str, parser: ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="id of the Session (put -- before ids that begin with -)")
    if command != "list":
        parser.add_argument("message", metavar="MESSAGE", help="id of an assistant message in it")
    if command == "put":
        parser.add_argument("rating", choices=("positive", "negative"))
        parser.add_argument("--note", metavar="TEXT", help="why; left out, a note that is there is cleared")
    if command == "list":
        parser.add_argument("--at-least", metavar="N", type=int, help="wait until this revision is there to be read")
    else:
        parser.add_argument("--if-version", metavar="V", help="the current version; left out: there must be none")
        parser.add_argument("--actor", metavar="A", help="who does this; kept in the audit trail only")
        parser.add_argument("--command-id", metavar="UUID", help="makes it safe to send again; made up when left out")
    parser.add_argument("--timeout", metavar="S", type=float, default=_TIMEOUT_S, help="seconds to wait (30)")
    add_common(parser)
    add_settings(parser, "redis_url", "host")


def run(arguments: Namespace) -> ExitCode:
    settings = client_settings(arguments)
    url = require_server(settings, arguments.data)
    _expect_answer(url, check_timeout(arguments.timeout))
    with traced("feedback", os.environ), FeedbackClient.from_url(url, host=settings.host or None) as client:
        result = _call(client, arguments)
    if arguments.json:
        write_json(result)
    else:
        _print(result, arguments)
    return ExitCode.SUCCESS if result.ok else ExitCode.BUSINESS


def _expect_answer(url: str, timeout_s: float) -> None:
    """Give up on a server that takes connections and says nothing; the client alone would wait longer than it may.

    Raises:
        QueueUnavailable: not a word within `timeout_s` seconds.
    """
    try:
        with connect(url, timeout_s=min(SOCKET_TIMEOUT_S, max(timeout_s, _SHORTEST_S))) as redis:
            redis.ping()
    except RedisTimeoutError as error:
        raise QueueUnavailable(f"the server says nothing within {timeout_s:g} s") from error
    except RedisError:
        return  # the client waits it out, or says what it is


def _call(client: FeedbackClient, arguments: Namespace) -> Result:
    session, timeout = arguments.session, arguments.timeout
    if arguments.command == "list":
        return client.list(session, at_least=arguments.at_least, timeout=timeout)
    common = {"if_version": arguments.if_version, "actor": arguments.actor, "command_id": arguments.command_id}
    if arguments.command == "put":
        note = arguments.note
        return client.put(session, arguments.message, arguments.rating, note=note, timeout=timeout, **common)
    return client.delete(session, arguments.message, timeout=timeout, **common)


def _print(result: Result, arguments: Namespace) -> None:
    out = console()
    if isinstance(result, Rejected):
        out.print(Text.assemble(("refused: ", "bold red"), _explained(result.error)))
        return
    assert isinstance(result, Ok)
    for line in _lines(result.value, printable(arguments.session)):
        out.print(line)


def _lines(value: Value, session: str) -> list[Text]:
    if isinstance(value, Item):
        return [Text.assemble("stored: ", _described(value)), Text(f"version {value.version}", "dim")]
    if isinstance(value, Absent):
        return [Text(f"removed: no feedback on this message of {session}")]
    if isinstance(value, ItemList):
        return [_listed(item) for item in value.items] or [Text(f"no feedback in {session}")]
    assert_never(value)


def _listed(item: Item) -> Text:
    return Text.assemble(_described(item), (f"  version {item.version}  {moment(item.updated_at)}", "dim"))


def _described(item: Item) -> Text:
    note = "" if item.note is None else f'  "{shortened(item.note, _NOTE_WIDTH)}"'
    return Text.assemble((item.rating, STYLES[item.rating]), f"  {printable(item.message_id)}{note}")


def _explained(error: Rejection) -> str:
    match error:
        case SessionNotFound():
            return f'there is no Session "{printable(error.session_id)}"'
        case TargetNotFound():
            session, message = printable(error.session_id), printable(error.message_id)
            return f'Session "{session}" has no answer of the assistant with the id "{message}"'
        case VersionConflict():
            if error.current is None:
                return "the message has no feedback now; leave --if-version out"
            return f"the message has other feedback now; --if-version {error.current.version} is what stands there"
        case NoteBlank():
            return "the note is blank"
        case NoteTooLarge():
            return f"the note has {error.actual_bytes} bytes, {error.max_bytes} are allowed"
        case _:
            assert_never(error)
