"""`feedback dlq`: look at commands that failed for good, put them back, or drop them."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from itertools import islice

from redis import Redis

from app.cli.dead_letters import DropReport, RetryReport, letter_document, letter_lines, page_document, print_page
from app.cli.options import add_common, add_settings, client_settings, positive
from app.cli.output import console, printable, write_json
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import open_server
from feedback.calls import wall_clock_ms
from feedback.errors import InvalidRequest, QueueFull
from feedback.requests import check_text
from worker.dead_letters import DeadLetters
from worker.letters import DeadLetter, Filter, Place, choose_for_drop, choose_for_retry

_LIMIT = 50
_ID = "COMMAND_ID"


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    steps = parser.add_subparsers(dest="step", required=True, metavar="list|show|retry|drop")
    listing = steps.add_parser("list", help="list them, oldest failure first, partition by partition")
    listing.add_argument("--limit", metavar="N", type=positive, default=_LIMIT, help=f"commands per page ({_LIMIT})")
    listing.add_argument("--after", metavar="CURSOR", help="continue behind this one: `next` of the page before")
    showing = steps.add_parser("show", help="everything about one: members, reason, traceback")
    showing.add_argument("ids", metavar=_ID, nargs=1)
    retrying = steps.add_parser("retry", help="put them back, each Session's in order")
    dropping = steps.add_parser("drop", help="remove them for good")
    dropping.add_argument("--yes", action="store_true", help="do not ask before dropping what is named by a rule")
    for step in (retrying, dropping):
        step.add_argument("ids", metavar=_ID, nargs="*")
        step.add_argument("--all", action="store_true", help="all that failed")
    for step in (listing, retrying, dropping):
        step.add_argument("--session", metavar="S", help="only commands of this Session")
        step.add_argument("--code", metavar="C", help="only this failure, for example LogCorrupt")
    for step in (listing, showing, retrying, dropping):
        step.allow_abbrev = False
        add_common(step)
        add_settings(step, "redis_url")


def run(arguments: Namespace) -> ExitCode:
    steps = {"list": _list, "show": _show, "retry": _retry, "drop": _drop}
    settings = client_settings(arguments)
    if arguments.step in {"retry", "drop"}:
        _check_choice(arguments)
    with open_server(require_server(settings, arguments.data)) as redis:
        return steps[arguments.step](redis, arguments)


def _list(redis: Redis, arguments: Namespace) -> ExitCode:
    after = None if arguments.after is None else Place.of_cursor(arguments.after)
    rule = _rule(arguments)
    letters = (letter for letter in DeadLetters(redis).letters(after) if rule.matches(letter))
    page = list(islice(letters, arguments.limit))
    # Only the last page's reader pays for knowing that it is the last.
    more = len(page) == arguments.limit and next(letters, None) is not None
    cursor = page[-1].place.cursor if more else None
    if arguments.json:
        write_json(page_document(page, cursor))
    else:
        print_page(page, cursor)
    return ExitCode.SUCCESS


def _show(redis: Redis, arguments: Namespace) -> ExitCode:
    dead = DeadLetters(redis)
    found = dead.find(_ids(arguments))
    if not found:
        if arguments.json:
            write_json({"ok": False, "error": {"code": "not-failed", "commandId": printable(arguments.ids[0])}})
        else:
            console().print(f"nothing by the id {printable(arguments.ids[0])} has failed")
        return ExitCode.BUSINESS
    letter, traceback = found[0], dead.traceback(found[0])
    if arguments.json:
        write_json(letter_document(letter, traceback))
    else:
        for line in letter_lines(letter, traceback, wall_clock_ms()):
            console().print(line)
    return ExitCode.SUCCESS


def _retry(redis: Redis, arguments: Namespace) -> ExitCode:
    """Raises `QueueFull` when not all found room; what was put back stays there."""
    dead = DeadLetters(redis)
    choice = choose_for_retry(_named(dead, arguments), wall_clock_ms())
    done = dead.retry(choice.chosen)
    if done.full:
        raise QueueFull(
            f"{done.retried} commands were put back, {done.full} stay failed: their queue is full; try later"
        )
    named = len(set(arguments.ids))
    absent = max(0, named - done.retried - choice.expired - choice.foreign) if named else done.absent
    report = RetryReport(
        ok=done.retried >= named, retried=done.retried, expired=choice.expired, foreign=choice.foreign, absent=absent
    )
    return _reported(report, report.lines(), arguments)


def _drop(redis: Redis, arguments: Namespace) -> ExitCode:
    dead = DeadLetters(redis)
    chosen = choose_for_drop(_named(dead, arguments))
    named = len(set(arguments.ids))
    if not (arguments.ids or arguments.yes) and len(chosen) > 1 and not _confirmed(len(chosen)):
        return _reported(DropReport(ok=False, dropped=0, absent=0), ["nothing was dropped"], arguments)
    dropped = dead.drop(chosen)
    report = DropReport(ok=dropped >= named, dropped=dropped, absent=max(0, (named or len(chosen)) - dropped))
    return _reported(report, report.lines(), arguments)


def _reported(report: RetryReport | DropReport, lines: Sequence[str], arguments: Namespace) -> ExitCode:
    if arguments.json:
        write_json(report)
    else:
        for line in lines:
            console().print(line)
    return ExitCode.SUCCESS if report.ok else ExitCode.BUSINESS


def _confirmed(count: int) -> bool:
    """Ask on stderr: stdout is for the answer."""
    sys.stderr.write(f"Drop {count} failed commands for good? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _check_choice(arguments: Namespace) -> None:
    """Refuse what does not say plainly which commands are meant.

    Raises:
        InvalidRequest: nothing is named, or in two ways; a rule drops commands and nobody can be asked.
    """
    by_rule = arguments.session is not None or arguments.code is not None
    ways = bool(arguments.ids) + by_rule + arguments.all
    if ways != 1:
        raise InvalidRequest(_ID, "name commands by their ids, or by --session and --code, or say --all")
    if arguments.step == "drop" and not (arguments.ids or arguments.yes or _is_interactive()):
        raise InvalidRequest("--yes", "required where nobody can be asked")


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _named(dead: DeadLetters, arguments: Namespace) -> Iterator[DeadLetter]:
    if arguments.ids:
        yield from dead.find(_ids(arguments))
        return
    rule = _rule(arguments)
    yield from (letter for letter in dead.letters() if rule.matches(letter))


def _rule(arguments: Namespace) -> Filter:
    check_text("--session", arguments.session)
    return Filter(arguments.session, arguments.code)


def _ids(arguments: Namespace) -> list[bytes]:
    return [os.fsencode(job_id) for job_id in dict.fromkeys(arguments.ids)]
