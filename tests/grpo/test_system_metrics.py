"""What the training process takes of its machine, as metrics."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import python
from support.training import PATIENCE_S

from smolsum.grpo import system_metrics
from smolsum.grpo.system_metrics import SystemMeter, resident_memory


def test_a_busy_step_is_told_from_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread at work is the whole share of one core; a step that waits has none, whatever came before it."""
    now = SimpleNamespace(wall=100.0, used=7.0)
    clocks = SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.used)
    monkeypatch.setattr(system_metrics, "time", clocks)
    cores = len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
    meter, shares = SystemMeter(), []
    for wall, used in ((2.0, 2.0), (4.0, 1.0), (0.5, 0.0)):
        meter.start()
        now.wall += wall
        now.used += used
        shares.append(meter.metrics()["system/cpu_percent"])
    assert shares == pytest.approx([100 / cores, 25 / cores, 0.0])


def test_memory_grows_with_what_is_held() -> None:
    """A new array of 200 MB is in it; in a process of its own, as what other tests held is given back at any time."""
    lines = ("import numpy as np", "from smolsum.grpo.system_metrics import resident_memory as now")
    program = "; ".join((*lines, "before = now()", "held = np.ones(25_000_000)", "print(now() - before)"))
    code, grown, err = python("-c", program)
    assert code == 0, err
    assert 0.4 < int(grown) / 200e6 < 1.5


def test_without_proc_ps_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac. Where that fails too the memory is missing, never 0; on a CPU nothing is said of a GPU."""
    monkeypatch.setattr(system_metrics, "PS_S", PATIENCE_S)
    assert resident_memory(Path("/no/proc/here")) == pytest.approx(resident_memory(), rel=0.05)
    monkeypatch.setenv("PATH", "")
    assert resident_memory(Path("/no/proc/here")) is None
    assert set(SystemMeter(Path("/no/proc/here")).metrics()) == {"system/cpu_percent"}
