"""`feedback sessions`: what there is to rate, and how it is rated now."""

from argparse import ArgumentParser, Namespace
from contextlib import closing, nullcontext

from msgspec import UNSET
from rich.text import Text

from app.catalog import MessageLine, SessionLine, SessionPage, check_root, open_existing_store, session_page
from app.cli.options import add_common, add_settings, client_settings, positive
from app.cli.output import STYLES, console, moment, printable, shortened, write_json
from app.exits import ExitCode
from feedback.requests import check_text
from persistence.session_log import SessionLogs

_LIMIT = 50
_WIDTH = 70


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    parser.add_argument("--limit", metavar="N", type=positive, default=_LIMIT, help=f"Sessions per page ({_LIMIT})")
    parser.add_argument("--after", metavar="CURSOR", help="continue behind this one: `next` of the page before")
    add_common(parser)
    add_settings(parser, "sessions", "sidecar_url", "redis_url")


def run(arguments: Namespace) -> ExitCode:
    check_text("--after", arguments.after)
    settings = client_settings(arguments)
    logs = SessionLogs(check_root(settings.sessions, arguments.data))
    store = open_existing_store(settings.sidecar_url)
    with closing(store) if store else nullcontext():
        page = session_page(logs, store, after=arguments.after, limit=arguments.limit)
    if arguments.json:
        write_json(page)
    else:
        _print(page)
    return ExitCode.SUCCESS


def _print(page: SessionPage) -> None:
    out = console()
    for session in page.sessions:
        out.print(_heading(session))
        for message in session.messages:
            out.print(_message(message))
    if not page.sessions:
        out.print("no Sessions here")
    if page.next is not UNSET:
        out.print(f"more: --after {page.next}", style="dim")


def _heading(session: SessionLine) -> Text:
    name = Text(printable(session.session_id), "bold")
    if session.error is not UNSET:
        return name.append(f"  {session.error.code}: {printable(session.error.message)}", "red")
    assert session.created_at is not None
    return name.append(f"  {moment(session.created_at)}  {printable(session.cwd or '')}".rstrip(), "not bold dim")


def _message(message: MessageLine) -> Text:
    rating = message.feedback.rating if message.feedback else ""
    return Text.assemble(
        f"  {printable(message.message_id):<12} {message.role:<9} ",
        (f"{rating:<8} ", STYLES.get(rating, "")),
        shortened(message.text, _WIDTH),
    )
