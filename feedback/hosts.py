"""Names of hosts, and who looks into a host's Session logs: whoever sees them, or the agent that runs there."""

import re

from msgspec import Struct

from feedback.errors import HostUnknown, InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
"""It stands in keys and in access rules, so it holds nothing that means something there."""


def is_host_name(name: str) -> bool:
    """Whether a host may have this name: up to 253 letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(name) is not None


def check_host(path: str, name: object) -> None:
    """Raises InvalidRequest for what is no host's name."""
    if not isinstance(name, str) or not is_host_name(name):
        got = f"{name!r:.80}" if isinstance(name, str) else type(name).__name__
        raise InvalidRequest(path, f"expected a host's name (letters, digits, '.', '_', '-'), got {got}")


class Sight(Struct, frozen=True):
    """Which Session logs a process sees: those of its own host, or none."""

    logs: bool
    host: str = ""
    """Its own host's name; empty: it has none, and sees the logs of those who name none."""

    def agent_for(self, host: str | None) -> str | None:
        """The host whose agent must be asked about a Session that lies on `host` (None: it was not said).

        None when the log root of this process is the place to look.

        Raises:
            HostUnknown: this process sees no logs, and was not told where they are.
        """
        if self.logs and host in (None, self.host):
            return None
        if host is None:
            raise HostUnknown(
                "the Session's logs are not here, and nobody said on which host they are: "
                "give the client a host (`host=` of FeedbackClient, --host or FEEDBACK_HOST of the command line)"
            )
        return host
