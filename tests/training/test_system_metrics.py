"""What the training process takes of its machine, as metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smolsum.training.system_metrics import SystemMeter, resident_memory


def test_a_busy_step_is_told_from_an_idle_one() -> None:
    """One thread at work is the whole share of one core; a step that waits has next to none."""
    meter, shares = SystemMeter(), []
    cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
    for work in (True, False):
        meter.start()
        until = time.process_time() + 0.1
        while work and time.process_time() < until:
            pass
        began = time.perf_counter()
        while not work and time.perf_counter() < began + 0.1:
            time.sleep(0.05)
        shares.append(meter.metrics()["system/cpu_percent"])
    busy, idle = shares
    assert idle < busy / 2
    assert 0 < busy < 105 / cores


def test_memory_grows_with_what_is_held() -> None:
    """A new array of 200 MB is in it; in a process of its own, as what other tests held is given back at any time."""
    lines = ("import numpy as np", "from smolsum.training.system_metrics import resident_memory as now")
    program = "; ".join((*lines, "before = now()", "held = np.ones(25_000_000)", "print(now() - before)"))
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 0.4 < int(grown) / 200e6 < 1.5


def test_without_proc_ps_says_the_same() -> None:
    """As on a Mac."""
    assert resident_memory(Path("/no/proc/here")) == pytest.approx(resident_memory(), rel=0.05)


def test_memory_that_cannot_be_read_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never 0. On a CPU nothing is said of a GPU."""
    monkeypatch.setenv("PATH", "")
    assert resident_memory(Path("/no/proc/here")) is None
    assert set(SystemMeter(Path("/no/proc/here")).metrics()) == {"system/cpu_percent"}
