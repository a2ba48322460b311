"""Exit codes of every command."""

from enum import IntEnum

from feedback.errors import FeedbackError, InvalidRequest, SettingsInvalid


class ExitCode(IntEnum):
    """What a script may rely on."""

    SUCCESS = 0
    BUSINESS = 1
    """The contract's answer is an error: a conflict, an unknown Session or message, a note refused."""
    USAGE = 2
    """Bad arguments, an invalid request, an invalid setting: nothing was sent."""
    INFRASTRUCTURE = 3
    """No answer could be had, or `doctor` found something."""
    INTERRUPTED = 130


def exit_code_of(error: FeedbackError) -> ExitCode:
    """The exit code of a command that raised `error`."""
    return ExitCode.USAGE if isinstance(error, InvalidRequest | SettingsInvalid) else ExitCode.INFRASTRUCTURE
