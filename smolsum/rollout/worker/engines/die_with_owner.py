"""Run a command that must not outlive its owner: `python die_with_owner.py COMMAND…`, in its own session. It
restarts nothing.

When the pipe at stdin closes, as it does however the owner ends, the command is terminated, and after it all processes
of the session. On Linux the command also ends when this process is killed. A script that imports nothing of smolsum, so
that it starts fast.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from functools import partial

KILL_AFTER_S = 5.0
"""between SIGTERM and SIGKILL"""
PR_SET_PDEATHSIG = 1
"""option of prctl(2): the signal that the kernel sends to a process when its parent ends"""


def main(command: list[str]) -> None:
    """Run the command; does not return."""
    die_with_parent = None
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe
        die_with_parent = partial(prctl, PR_SET_PDEATHSIG, signal.SIGKILL)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def watch() -> None:
        while os.read(0, 1):
            pass
        server.terminate()
        try:
            server.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    print(f"ended with code {server.wait()}", flush=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
