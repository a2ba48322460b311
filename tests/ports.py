"""Ports for processes that cannot choose one themselves."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Different ports on the loopback that nobody listens on right now."""
    with ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
