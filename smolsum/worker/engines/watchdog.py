"""Runs a command that must not outlive whoever started it: `python leash.py COMMAND…`, in a session of its own.

When the pipe at stdin closes, as it does when its owner ends in whatever way, the command is told to end; when it has
ended, so do all processes that it started. On Linux the command ends also when this process is killed. This file
imports nothing of smolsum, so that it costs little.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PATIENCE = 5.0
"""seconds from being told to end to being ended"""
PR_SET_PDEATHSIG = 1
"""of prctl(2): the signal that the kernel sends to a process whose parent ended"""


def main(command: list[str]) -> None:
    """Run it; does not return."""
    bound = None
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl  # found before the fork, after which little is safe
        bound = lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # noqa: E731
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=bound)

    def watch() -> None:
        while os.read(0, 1):
            pass
        server.terminate()
        try:
            server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    print(f"ended with code {server.wait()}", flush=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
