"""As much of `valkey-cli` as the health checks of docker-compose.yml ask for, where it is not installed."""

import argparse
import socket
import sys


def main() -> None:
    """Send one command, and print its answer of one line; exit with 1 when nobody is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", dest="port", type=int, default=6379)
    parser.add_argument("--user")
    parser.add_argument("--pass", dest="password")
    parser.add_argument("--no-auth-warning", action="store_true")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    with (
        socket.create_connection(("127.0.0.1", asked.port), timeout=1) as connection,
        connection.makefile("rw") as lines,
    ):
        for words in ([["AUTH", asked.user, asked.password]] if asked.user else []) + [asked.command]:
            lines.write(" ".join(words) + "\r\n")
            lines.flush()
            answer = lines.readline()
    sys.stdout.write(answer[1:].rstrip() + "\n")


if __name__ == "__main__":
    main()
