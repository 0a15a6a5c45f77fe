"""The offline stand-in for a judge, as its users start it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.places import ROOT


@contextmanager
def rules_served() -> Iterator[str]:
    """Where `scripts/rule_judge.py` answers while the block runs."""
    script = ROOT / "scripts" / "rule_judge.py"
    process = subprocess.Popen([sys.executable, str(script), "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.communicate()
