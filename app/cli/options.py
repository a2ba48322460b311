"""Arguments that commands share, and the settings that follow from them."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from pathlib import Path

from app.endpoint import USUAL_NOTE_BYTES, settings_in
from feedback.settings import Settings

SETTING_HELP = {
    "max_note_bytes": "bound on a note in UTF-8 bytes",
    "redis_url": "an existing Redis (7.0 or newer) or Valkey (8 or newer): redis://, rediss://, unix://, redis+sentinel://",
    "sidecar_url": "the store: sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database",
    "sessions": "root of the Session logs",
    "logs": "local, or agents: this process sees no log root and asks the agents of hosts (local)",
    "host": "name of the host where the Session logs lie",
    "agent_timeout": "seconds that a host's agent has to answer (5)",
    "partitions": "queues that Sessions are spread over (as the store was set up, 32 in a new one)",
    "batch_size": "commands that a worker takes at once",
    "lease_ttl": "seconds after which a silent worker's partitions are taken over",
    "max_attempts": "tries of a command whose Session log cannot be read",
    "flush_timeout": "seconds that a Session's live owner has to flush its log",
    "shutdown_grace": "seconds that a worker may take to finish its batch",
    "io_threads": "logs that a worker reads at the same time",
    "index_bytes": "memory for the index of Session logs, in bytes",
    "result_ttl": "seconds that an answer stays in Redis",
    "failure_ttl": "seconds that a failed command stays in RQ's failed registry",
    "command_retention": "seconds for which a command id is remembered, at least",
    "event_retention": "events kept per partition in Redis, roughly",
    "metrics_port": "port on which this process serves metrics and health; `up`: the first of its processes' (none)",
    "metrics_host": "address of that (127.0.0.1)",
    "gateway_host": "address to listen on (127.0.0.1); another than the loopback needs tokens or an issuer",
    "gateway_port": "port to listen on (8080; 0: any free one)",
    "gateway_tokens": "file of bearer tokens, kept by `feedback token` (DIR/tokens.json)",
    "gateway_issuer": "OIDC issuer whose access tokens are taken as well",
    "gateway_audience": "audience that those must be meant for",
    "gateway_token_types": "`typ`s that those must have in their header, such as at+jwt, separated by commas",
    "gateway_origins": "other sites whose pages may use the gateway (CORS), separated by commas",
    "gateway_hosts": "names that a request's Host may have, separated by commas",
    "gateway_rate": "requests a second that one token may make (50)",
    "gateway_timeout": "seconds that a request waits for its answer (10)",
    "gateway_certificate": "PEM file of a certificate, for TLS",
    "gateway_key": "PEM file of its private key",
}


def add_common(parser: ArgumentParser) -> None:
    """The arguments of every command."""
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path("data"), help="home of the system (./data)")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file of settings (FEEDBACK_CONFIG)")


def add_settings(parser: ArgumentParser, *names: str) -> None:
    """Flags for these settings; by default for all but the gateway's. Values are checked with the other sources'."""
    usual = [name for name in Settings.__struct_fields__ if not name.startswith("gateway_")]
    for name in names or usual:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=SETTING_HELP.get(name))


def settings_of(arguments: Namespace, *, defaults: Mapping[str, object] | None = None) -> Settings:
    """Flags, then variables, then the file, then what runs in `--data`.

    Raises:
        SettingsInvalid: naming the setting and where its value came from.
    """
    data: Path = arguments.data
    return settings_in(data, named_settings(arguments), os.environ, arguments.config, defaults=defaults)


def client_settings(arguments: Namespace) -> Settings:
    """As `settings_of`, for commands to which the bound on notes does not matter: the running system's counts."""
    return settings_of(arguments, defaults={"max_note_bytes": USUAL_NOTE_BYTES})


def named_settings(arguments: Namespace) -> dict[str, object]:
    """What the command line says about settings."""
    return {name: getattr(arguments, name, None) for name in Settings.__struct_fields__}


def positive(text: str) -> int:
    """An argument that is a whole number, 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return value
