"""Ctrl-C before the command line can answer."""

import signal
import subprocess
import sys

import pytest
from support.training import PATIENCE_S

EARLY = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "smolsum.cli.train":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, signal.{handler})
from smolsum.__main__ import start
sys.argv = ["smolsum", "--version"]
sys.exit(start())
"""


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_during_the_imports(handler: str, code: int) -> None:
    """The process ends by the signal, without a word; a job that a shell started in the background ignores it."""
    command = [sys.executable, "-c", EARLY.format(handler=handler)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (code, "")
