"""One deployment's settings, read once at start: flags, then `FEEDBACK_*` variables, then a TOML file.

All processes of a deployment take the same names, so that one file or one set of variables serves them all.
"""

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from feedback import crashpoints
from feedback.commands import MAX_COMMAND_BYTES
from feedback.errors import SettingsInvalid
from feedback.hosts import is_host_name

ENV_PREFIX = "FEEDBACK_"
CONFIG_VARIABLE = "FEEDBACK_CONFIG"

_OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, crashpoints.VARIABLE, "FEEDBACK_CHROMIUM"})
"""Variables of this project that are no settings; the last one is that of benchmarks and tests of the page."""

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=24 * 3600)]
WholeSeconds = Annotated[int, Meta(ge=1, le=10 * 366 * 24 * 3600)]

# Room for ids, versions and actor beside the note in one command.
_NOTE_HEADROOM = 64 * 1024

_SERVERS = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
_SECRETS = frozenset({"redis_url", "sidecar_url"})
"""May hold a password: their values are in no message."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names are the flags' and the TOML file's; as variables they are upper case behind `FEEDBACK_`."""

    max_note_bytes: Positive
    """The bound on a note, in UTF-8 bytes. Required: the contract leaves it to the deployment."""
    redis_url: str = ""
    """The server. Empty: the one that the process embeds, or the one of the system that it joins."""
    sidecar_url: str = "sqlite:///data/sidecar.sqlite3"
    """`sqlite:///relative/path`, `sqlite:////absolute/path`, or `postgresql://user:password@host:port/database`."""
    sessions: str = "data/sessions"
    """The root under which the Session logs lie."""
    logs: Literal["local", "agents"] = "local"
    """"agents": worker and projector see no log root, and ask the agent of the host that a command names."""
    host: Annotated[str, Meta(max_length=253)] = ""
    """The name of the host whose logs lie under `sessions`: an agent's own, a worker's that sees them, and where a
    client's Sessions are."""
    agent_timeout: Seconds = 5.0
    """Seconds that a host's agent has to answer, its live owners' flushes included, before a try counts as failed:
    more than `flush_timeout`."""
    partitions: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Queues that Sessions are spread over. 0: as many as the store was set up with, 32 in a new one."""
    batch_size: Annotated[int, Meta(ge=1, le=4096)] = 256
    lease_ttl: Annotated[float, Meta(ge=1, le=3600)] = 5.0
    """Seconds after which a silent worker's partitions are taken over."""
    max_attempts: Positive = 10
    """Tries of a command whose barrier fails retryably, before it goes to the failed registry."""
    flush_timeout: Seconds = 2.0
    """Seconds that a Session's live owner has to flush its log before a command's try counts as failed."""
    shutdown_grace: Seconds = 10.0
    """Seconds that a worker may take to finish its batch after SIGTERM."""
    io_threads: Annotated[int, Meta(ge=1, le=64)] = 8
    """Logs that a worker, projector or agent reads at the same time."""
    index_bytes: Positive = 64 * 2**20
    """Memory for the index of Session logs, in bytes."""
    result_ttl: WholeSeconds = 500
    """Seconds that an answer stays in Redis; the store keeps it for `command_retention`."""
    failure_ttl: WholeSeconds = 30 * 24 * 3600
    """Seconds that a failed command stays in RQ's failed registry."""
    command_retention: WholeSeconds = 7 * 24 * 3600
    """Seconds: no deadline may lie further ahead, and a record is kept for so long past its deadline."""
    event_retention: Positive = 4096
    """Events kept per partition in its stream, roughly; the store keeps them for `command_retention`."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Where a worker, projector, agent or gateway serves its metrics and health (HTTP). 0: nowhere."""
    metrics_host: str = "127.0.0.1"
    """The address of that. It tells nothing about Sessions, but asks nobody who they are."""
    gateway_host: str = "127.0.0.1"
    """Where the gateway listens. Off the loopback it needs tokens or an issuer."""
    gateway_port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """0: any free port."""
    gateway_tokens: str = "data/tokens.json"
    """The file of bearer tokens (`feedback token`). Where it is there, every request needs one."""
    gateway_issuer: str = ""
    """An OIDC issuer (https) whose access tokens are taken as well. Empty: none."""
    gateway_audience: str = ""
    """What such a token must be meant for (`aud`). Required with an issuer."""
    gateway_token_types: str = ""
    """The `typ`s that its access tokens have in their header, separated by commas: `at+jwt` by RFC 9068. Empty: that,
    or JWT or none without a mark of an ID token."""
    gateway_origins: str = ""
    """Origins of other sites whose pages may use the gateway, separated by commas. Empty: none (CORS off)."""
    gateway_hosts: str = ""
    """Names, besides the loopback's, that a request's Host may have; required of all once set."""
    gateway_rate: Annotated[float, Meta(gt=0, le=1_000_000)] = 50.0
    """Requests a second that one token may make, after a first burst of twice as many."""
    gateway_timeout: Seconds = 10.0
    """Seconds that a request waits for its answer before it is 503."""
    gateway_certificate: str = ""
    """A PEM file: the gateway then speaks TLS. Empty: a proxy in front of it does, or nobody."""
    gateway_key: str = ""
    """The certificate's private key, a PEM file. Empty: it stands in the certificate's file."""


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
) -> Settings:
    """Merge the three sources and check every value.

    `flags` holds what the command line gave, None for "not given". The file is `config`, or what
    `FEEDBACK_CONFIG` names; without either there is none. A variable that is empty is not set, as `X=${Y}` leaves
    it in a shell. `defaults` count for what no source names: how the process finds the system that it joins.

    Raises:
        SettingsInvalid: naming the setting, where it came from, and what is wrong with it.
    """
    named = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    given = {name: value for name, value in flags.items() if value is not None}
    merged: dict[str, object] = {}
    origin: dict[str, str] = {}
    for source, values in (
        ("the running system", defaults or {}),
        (f"configuration file {named}", _from_file(named) if named else {}),
        ("", _from_environ(environ)),
        ("the command line", given),
    ):
        merged |= values
        origin |= {name: source or _variable(name) for name in values}
    return _checked(merged, origin)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that begin like ours and that nothing here reads, each with the one that may have been meant.

    They are no error, for other programs may use the prefix.
    """
    known = sorted(_OTHER_VARIABLES.union(map(_variable, Settings.__struct_fields__)))
    strangers = sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)
    names = [name.removeprefix(ENV_PREFIX) for name in known]
    nearest = {name: _nearest(name.removeprefix(ENV_PREFIX), names) for name in strangers}
    return {name: near and ENV_PREFIX + near for name, near in nearest.items()}


def _checked(values: dict[str, object], origin: Mapping[str, str]) -> Settings:
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(_explain(str(error), values, origin)) from None
    if settings.host and not is_host_name(settings.host):
        raise _invalid("host", settings.host, origin, "no host's name: letters, digits, '.', '_' and '-'")
    if settings.max_note_bytes > MAX_COMMAND_BYTES - _NOTE_HEADROOM:
        reason = f"at most {MAX_COMMAND_BYTES - _NOTE_HEADROOM}, so that a command fits {MAX_COMMAND_BYTES}"
        raise _invalid("max_note_bytes", settings.max_note_bytes, origin, reason)
    if settings.redis_url and not settings.redis_url.startswith(_SERVERS):
        reason = f"not a Redis URL, which begins with one of {', '.join(_SERVERS)}"
        raise _invalid("redis_url", settings.redis_url, origin, reason)
    _check_agents_patience(settings, origin)
    return settings


def _check_agents_patience(settings: Settings, origin: Mapping[str, str]) -> None:
    """Whoever asks an agent waits `agent_timeout`; the agent waits `flush_timeout` for a live owner, and reads
    the log after that. Were the first not longer, no answer that took a flush's whole time would ever be heard."""
    asks_agents = settings.logs == "agents" or settings.host
    if asks_agents and settings.agent_timeout <= settings.flush_timeout:
        raise SettingsInvalid(
            f"agent_timeout: {settings.agent_timeout:g} s (from {origin.get('agent_timeout', 'the defaults')}) must be "
            f"longer than flush_timeout, {settings.flush_timeout:g} s "
            f"(from {origin.get('flush_timeout', 'the defaults')}): an agent waits that long for a live owner"
        )


def _explain(message: str, values: Mapping[str, object], origin: Mapping[str, str]) -> str:
    """What msgspec says about a value, as a person can use it."""
    if "missing required field `max_note_bytes`" in message:
        return "max_note_bytes: not set; give --max-note-bytes or FEEDBACK_MAX_NOTE_BYTES (8192 is a usual bound)"
    reason, marker, path = message.rpartition(" - at `$.")
    if not marker:
        return message
    name = path.rstrip("`")
    choices = get_args(get_type_hints(Settings).get(name))
    if choices and reason.startswith("Invalid enum value"):
        reason = f"expected one of {', '.join(choices)}"
    return str(_invalid(name, values.get(name), origin, reason))


def _invalid(name: str, value: object, origin: Mapping[str, str], reason: str) -> SettingsInvalid:
    """The setting, its value where that is no secret, where it came from, and what is wrong with it."""
    shown = "" if name in _SECRETS else f"{value!r}: "
    return SettingsInvalid(f"{name}: {shown}{reason} (from {origin.get(name, 'the defaults')})")


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _nearest(name: str, known: Sequence[str]) -> str | None:
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.75)), None)


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    names = Settings.__struct_fields__
    return {name: value for name in names if (value := environ.get(_variable(name)))}


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsInvalid(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"configuration file {path}: {error}") from None
    for name in values:
        if name not in Settings.__struct_fields__:
            near = _nearest(name, Settings.__struct_fields__)
            hint = f"; is {near} meant?" if near else ""
            raise SettingsInvalid(f"configuration file {path}: there is no setting {name!r}{hint}")
    return values
