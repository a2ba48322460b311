"""`feedback up`: everything on one machine, watched, and stopped in order."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from msgspec import Struct

from app.catalog import check_root
from app.demo import write_demo_root
from app.endpoint import USUAL_NOTE_BYTES, check_server_url, home_defaults, remove_endpoint, write_endpoint
from app.home import check_spelling, hold, typed_failures
from app.processes import Child
from app.pulse import Pulse
from app.signals import SignalWatch
from app.system import System
from feedback.errors import ShuttingDown
from feedback.settings import Settings, load_settings
from persistence.sidecar import open_store

_FIRST_DELAY_S = 0.5
_LAST_DELAY_S = 10.0
_STEADY_S = 60.0
"""A child that lived this long starts over with the first delay."""
_SQLITE = "sqlite:///"

_log = logging.getLogger(__name__)


class UpPlan(Struct, frozen=True):
    """What `up` is going to run. `settings.redis_url` is empty when the server is embedded."""

    data: Path
    settings: Settings
    makes_demo: bool
    gateway: bool


def plan_up(data: Path, flags: Mapping[str, object], environ: Mapping[str, str], config: Path | None) -> UpPlan:
    """Settings of everything that `up` runs, with what nobody named placed under `data`.

    Raises:
        SettingsInvalid: a setting is malformed, a path is not UTF-8, or a root that was named is not readable.
    """
    unnamed: dict[str, object] = {"redis_url": "", "sidecar_url": "", "sessions": ""}
    unnamed |= {"max_note_bytes": USUAL_NOTE_BYTES, "gateway_tokens": home_defaults(data)["gateway_tokens"]}
    named = load_settings(flags, environ, config, defaults=unnamed)
    if named.sessions:
        check_root(named.sessions)
    if named.redis_url:
        check_server_url(named.redis_url)
    usual = home_defaults(data)
    settings = msgspec.structs.replace(
        named,
        sidecar_url=_absolute(named.sidecar_url or str(usual["sidecar_url"])),
        sessions=str(Path(named.sessions or str(usual["sessions"])).absolute()),
    )
    home = data.absolute()
    for name, text in (("--data", str(home)), ("sidecar_url", settings.sidecar_url), ("sessions", settings.sessions)):
        check_spelling(name, text)
    gateway = flags.get("gateway_port") is not None
    return UpPlan(home, settings, makes_demo=not named.sessions, gateway=gateway)


def run_up(plan: UpPlan, announce: Callable[[System], None]) -> None:
    """Start everything, `announce` it, keep it running until SIGTERM or SIGINT, and stop it in order.

    Raises:
        SettingsInvalid: `data` cannot be used, or another `up` uses it.
        LogUnreadable: the demo cannot be written.
        StoreForeign, StoreUnavailable: the sidecar is not one that this program can use.
        QueueUnavailable, ProcessEnded: the server, the worker or the projector does not start.
    """
    watch = SignalWatch()
    with hold(plan.data) as lock:
        _withdraw(plan.data)
        if plan.makes_demo:
            _make_demo(Path(plan.settings.sessions))
        # A foreign or newer sidecar is said here, not by a worker that keeps dying of it.
        with closing(open_store(plan.settings.sidecar_url)):
            pass
        system = System(plan.data, plan.settings, inherit=(lock,), gateway=plan.gateway)
        try:
            with typed_failures(plan.data):
                system.start(cancelled=lambda: watch.stop_requested)
                write_endpoint(plan.data, system.settings)
            announce(system)
            _keep_running(system, watch)
        except ShuttingDown:
            pass
        finally:
            try:
                _withdraw(plan.data)
            finally:
                for name in system.stop():
                    _log.warning("killed, because it did not stop in time process=%s", name)


def _withdraw(data: Path) -> None:
    with typed_failures(data):
        remove_endpoint(data)


def _make_demo(root: Path) -> None:
    with typed_failures(root, "sessions"):
        root.mkdir(parents=True, exist_ok=True)
        if not any(root.iterdir()):
            write_demo_root(root)


def _absolute(url: str) -> str:
    """A relative SQLite path means the same file to whoever reads `endpoint.json`, from wherever."""
    return f"{_SQLITE}{Path(url.removeprefix(_SQLITE)).absolute()}" if url.startswith(_SQLITE) else url


class _Restarts:
    """One child's way back: starts it again with a capped backoff."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._delay_s = _FIRST_DELAY_S
        self._started_at = time.monotonic()
        self.due_at: float | None = None

    def look(self, now: float) -> None:
        """Notice its end, or start it when that is due. `now` on the monotonic clock."""
        child = self._child
        if self.due_at is None and (code := child.poll()) is not None:
            if now - self._started_at > _STEADY_S:
                self._delay_s = _FIRST_DELAY_S
            self.due_at = now + self._delay_s
            _log.warning(
                "ended process=%s exit=%d starts_again_in=%g log=%s", child.name, code, self._delay_s, child.log
            )
            self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S)
        elif self.due_at is not None and now >= self.due_at:
            with typed_failures(child.log.parent):
                child.start()
            self.due_at, self._started_at = None, now
            _log.info("started again process=%s pid=%d", child.name, child.pid)


def _keep_running(system: System, watch: SignalWatch) -> None:
    restarts = [_Restarts(child) for child in system.children]
    with ExitStack() as opened:
        pulses = [
            opened.enter_context(closing(Pulse(child, system.settings.redis_url, system.settings.lease_ttl)))
            for child in system.children
            if child.name == "worker"
        ]
        while not watch.stop_requested:
            now = time.monotonic()
            for restart in restarts:
                restart.look(now)
            for pulse in pulses:
                pulse.look(now)
            due = [one.due_at for one in restarts if one.due_at is not None] + [one.next_look for one in pulses]
            watch.wait(max(0.0, min(due) - time.monotonic()) if due else None)
