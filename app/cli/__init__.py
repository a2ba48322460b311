"""The console script `feedback`. What it needs is loaded within `main`, so that Ctrl-C meanwhile is no traceback."""

from importlib import import_module

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, which may not be loaded yet."""


def main() -> int:
    """Run the command that `sys.argv` names; the exit code is one of `ExitCode`."""
    try:
        code: int = import_module("app.cli.dispatch").main()
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
