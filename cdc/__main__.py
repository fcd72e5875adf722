"""`python -m cdc` is `tarantool-cdc`.

The imports take most of a second. Ctrl-C ends a command meanwhile as any program that doesn't handle it, without a traceback.
"""

import signal
import sys


def main() -> int:
    """Import the commands, and run the one that the arguments name; return the exit status."""
    at_interrupt = signal.getsignal(signal.SIGINT)
    if at_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cdc import cli

    signal.signal(signal.SIGINT, at_interrupt)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
