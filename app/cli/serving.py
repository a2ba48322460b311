"""What `feedback worker` and `feedback projector` share: settings, logs, signals, and one blocking call."""

import gc
import os
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from redis.exceptions import RedisError

from app.catalog import check_root
from app.cli.options import add_common, add_settings, client_settings, settings_of
from app.endpoint import require_server
from app.exits import ExitCode
from app.inspection import refuse_unfit_server
from app.logs import setup_logging
from app.signals import stop_on_signals
from app.tracing import traced
from feedback import crashpoints
from feedback.errors import QueueUnavailable, SettingsInvalid
from feedback.settings import Settings

HARD_EXIT_MARGIN_S = 3.0
"""Past `shutdown_grace`, before a process that does not end is ended."""


def add_serving(parser: ArgumentParser) -> None:
    """The arguments of a process that serves."""
    add_common(parser)
    add_settings(parser)
    parser.add_argument("--log-json", action="store_true", help="log JSON objects instead of key=value pairs")


def serve(
    arguments: Namespace,
    process: Callable[[Settings, threading.Event], None],
    *,
    settings_from: Callable[[Namespace], Settings] = settings_of,
) -> ExitCode:
    """Run `process` until it is asked to stop. `settings_from` says how its settings are found.

    Raises:
        FeedbackError: what needs an operator.
    """
    crashpoints.arm(os.environ)
    # Whoever forgot to start a system is told so, and not asked for a setting that it would have had.
    require_server(client_settings(arguments), arguments.data)
    settings = settings_from(arguments)
    refuse_unfit_server(require_server(settings, arguments.data))
    setup_logging(json_lines=arguments.log_json or arguments.json)
    # Nothing of what is there now goes again, and hardly anything of what comes makes cycles: seldom look for them.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    stop = threading.Event()
    grace_s = settings.shutdown_grace + HARD_EXIT_MARGIN_S
    with (
        stop_on_signals(stop, grace_s=grace_s, exit_code=ExitCode.INFRASTRUCTURE),
        traced(f"feedback-{arguments.command}", os.environ),
    ):
        try:
            process(settings, stop)
        except RedisError as error:
            raise QueueUnavailable(f"Redis: {error}") from error
    return ExitCode.SUCCESS


def with_logs(process: Callable[[Settings, threading.Event], None]) -> Callable[[Settings, threading.Event], None]:
    """The same process, refused where it would see no log root without having been told so.

    To one that looks into an empty or wrong place, no Session exists.
    """

    def checked(settings: Settings, stop: threading.Event) -> None:
        if settings.logs == "local":
            try:
                check_root(settings.sessions)
            except SettingsInvalid as error:
                raise SettingsInvalid(
                    f"{error}; give --sessions, or --logs agents where other hosts have them"
                ) from None
        process(settings, stop)

    return checked
