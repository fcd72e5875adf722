"""Runs a program that the kernel kills together with its parent: `python launcher.py PARENT_PID PROGRAM ARGUMENT…`.

It is a program of its own between fork and exec, because Python code in `preexec_fn` can deadlock if the parent has threads. It
must run without this package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process's life to its parent's, then run the program in its place."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent:  # the parent ended before the line above, so no signal will be sent
            sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{program[0]} can't be run: {error.strerror}")


if __name__ == "__main__":
    main()
