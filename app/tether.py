"""Run a program that dies with the process that started it: `tether.py PARENT_PID PROGRAM [ARGUMENT ...]`.

Started by its path with `python -I -S`, so it needs nothing but the standard library. It takes the
program's place (exec), so pid, session and open files stay as they are.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Ask the kernel to kill this process with its parent, then become the program.

    Linux only; elsewhere the program merely outlives a killed parent. SIGKILL, because whoever starts the
    next system on the same files must not meet a process that is still tidying up.
    """
    parent, program = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent process ended before its child began")
    os.execv(program[0], program)  # noqa: S606  the argument vector is the caller's own, and no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
