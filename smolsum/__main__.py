"""The command `smolsum`, which is also `python -m smolsum`."""

import signal
import sys


def start() -> int:
    """Run the command line. Until it can say so itself, Ctrl-C ends the process as it ends other programs: without a
    traceback of what was being imported."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # it is ignored where a shell starts a job in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from smolsum.cli.main import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(start())
