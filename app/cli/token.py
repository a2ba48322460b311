"""`feedback token`: who may use the gateway, and as whom."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType
from rich.text import Text

from app.cli.options import add_common, client_settings, positive
from app.cli.output import console, moment, printable, write_json
from app.exits import ExitCode
from feedback.calls import wall_clock_ms
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile, TokenRecord

_DAY_MS = 24 * 3600 * 1000


class _Line(Struct, frozen=True, kw_only=True, rename="camel"):
    """A token as `--json` shows it: all but its digest. Times in milliseconds since the Unix epoch."""

    id: str
    label: str
    last_four: str
    scopes: tuple[Scope, ...]
    created_at: int
    expires_at: int | None
    is_expired: bool
    token: str | UnsetType = UNSET
    """The secret itself, when it has just been made."""


def configure(command: str, parser: ArgumentParser) -> None:
    del command
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
    create = actions.add_parser("create", help="make a token and show it, this once", allow_abbrev=False)
    create.add_argument("label", metavar="LABEL", help="who will use it: the actor of all that is done with it")
    create.add_argument("--read-only", action="store_true", help="it may list and follow, not rate")
    create.add_argument("--days", metavar="N", type=positive, help="it counts for so many days (for ever)")
    listing = actions.add_parser("list", help="list the tokens", allow_abbrev=False)
    revoke = actions.add_parser("revoke", help="take a token back, at once", allow_abbrev=False)
    revoke.add_argument("id", metavar="ID", help="of the token, as `list` shows it")
    for action in (create, listing, revoke):
        action.add_argument(
            "--tokens", dest="gateway_tokens", metavar="FILE", help="the file of tokens (DIR/tokens.json)"
        )
        add_common(action)


def run(arguments: Namespace) -> ExitCode:
    actions = {"create": _create, "list": _list, "revoke": _revoke}
    return actions[arguments.action](TokenFile(Path(client_settings(arguments).gateway_tokens)), arguments)


def _create(file: TokenFile, arguments: Namespace) -> ExitCode:
    now = wall_clock_ms()
    expires_at = now + arguments.days * _DAY_MS if arguments.days else None
    scopes = (Scope.READ,) if arguments.read_only else tuple(Scope)
    token, record = file.create(arguments.label, scopes, now_ms=now, expires_at=expires_at)
    if arguments.json:
        write_json(_line(record, now, token))
    else:
        console().print(f"{token}\nThis is the only time that it is shown. Its id is {record.id}.")
    return ExitCode.SUCCESS


def _list(file: TokenFile, arguments: Namespace) -> ExitCode:
    now = wall_clock_ms()
    tokens = file.read()
    if arguments.json:
        write_json({"tokens": [_line(record, now) for record in tokens]})
        return ExitCode.SUCCESS
    for record in tokens:
        console().print(_described(record, now))
    if not tokens:
        console().print("no tokens" if file.exists() else "no tokens: everybody on this machine may use the gateway")
    return ExitCode.SUCCESS


def _revoke(file: TokenFile, arguments: Namespace) -> ExitCode:
    revoked = file.revoke(arguments.id)
    if arguments.json:
        write_json({"revoked": revoked is not None})
    elif revoked is None:
        console().print(f"there is no token {printable(arguments.id)}")
    else:
        console().print(f"revoked {revoked.id}: {printable(revoked.label)}")
    return ExitCode.SUCCESS if revoked else ExitCode.BUSINESS


def _line(record: TokenRecord, now_ms: int, token: str | UnsetType = UNSET) -> _Line:
    members = msgspec.structs.asdict(record)
    del members["digest"]
    return _Line(**members, is_expired=record.is_expired(now_ms), token=token)


def _described(record: TokenRecord, now_ms: int) -> Text:
    until = "no end" if record.expires_at is None else f"until {moment(record.expires_at)}"
    end = ("expired", "red") if record.is_expired(now_ms) else until
    scopes = "+".join(record.scopes)
    about = f"  {scopes}  made {moment(record.created_at)}  …{record.last_four}  "
    return Text.assemble((record.id, "bold"), f"  {printable(record.label)}", (about, "dim"), end)
