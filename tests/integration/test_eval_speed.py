"""An evaluation without a judge is a matter of seconds."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from smolsum.runs.record_io import read_summary

pytestmark = pytest.mark.slow


def test_200_posts_in_a_minute(tmp_path: Path) -> None:
    """The built-in model's test split takes under a minute, start of the process included: in time on the processor,
    as the clock on the wall measures the neighbours too."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "smolsum", "eval", "tiny", "--runs-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert read_summary(Path(done.stdout.strip())).n == 200
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
