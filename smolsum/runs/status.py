"""How a run stands: its state in a word and a mark, what went wrong, how far it is, how long it will take."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median

from smolsum.console import duration
from smolsum.runs.journal import ALIVE as AT_WORK
from smolsum.runs.reader import Run, process_lives, seconds_since, text

STALE_S = 600.0
STALE_STEPS = 10
GONE_S = 15.0
"""Seconds without a heartbeat after which a process that is not there any more counts as crashed: its last words may be
on their way."""
ETA_STEPS = 20
MARKS = {
    "waiting": ("○", "."),
    "starting": ("○", "."),
    "running": ("●", "*"),
    "pausing": ("◐", "~"),
    "paused": ("‖", "="),
    "stopping": ("◐", "~"),
    "finished": ("✓", "+"),
    "failed": ("✗", "x"),
    "interrupted": ("■", "#"),
    "STALE": ("?", "?"),
    "GONE": ("?", "?"),
}
TROUBLE = ("failed", "STALE", "GONE")
MOVING = ("starting", "running")
ALIVE = (*AT_WORK, "stopping")


@dataclass(frozen=True)
class RunState:
    """A run's state, with what went wrong and the command that helps."""

    state: str
    detail: str = ""
    hint: str = ""

    def mark(self, ascii: bool) -> str:
        """One character that tells the state without colour."""
        return MARKS.get(self.state, ("○", "."))[ascii]

    @property
    def hopeful(self) -> bool:
        """Whether there may be more steps without anybody doing something."""
        return self.alive or self.state == "waiting"

    @property
    def answers(self) -> bool:
        """Whether it can be asked for something still."""
        return self.state in AT_WORK

    @property
    def alive(self) -> bool:
        """Whether somebody is at work on the run."""
        return self.state in ALIVE


def run_state(
    run: Run, now: datetime, lives: Callable[[object], bool] = process_lives, *, gone_s: float = GONE_S
) -> RunState:
    """Returns how the run stands. `lives` tells whether a process of this machine is there; after `gone_s` seconds
    without a sign one that is not counts as crashed.

    STALE: it says that it runs, but its process is gone, or (from another machine) there was no heartbeat for the
    longer of 10 minutes and ten median steps.
    """
    if run.gone:
        return RunState("GONE", f"{run.paths.root} is no longer there; what is shown was read before")
    status = run.status.value
    state = text(status.get("state")) or "waiting"
    if state in AT_WORK:
        silent = seconds_since(status.get("heartbeat"), now) or 0.0
        here = status.get("host") == platform.node()
        limit = max(STALE_S, STALE_STEPS * median(run.recent("perf/step_s", 50) or [0.0]))
        if here and silent >= gone_s and not lives(status.get("pid")):
            return _stale(run, f"process {status.get('pid')} is gone, its last heartbeat was {duration(silent)} ago")
        if not here and silent > limit:
            return _stale(run, f"no heartbeat from {status.get('host', 'its machine')} for {duration(silent)}")
        if run.asks("stop"):
            return RunState("stopping", "stopping: its step is finished and saved first")
        if run.asks("pause"):
            remedy = f"rm {run.paths.control / 'pause'}"
            if state == "paused":
                return RunState("paused", f"paused after step {run.step}: saved, safe to kill", remedy)
            return RunState("pausing", "pausing: its step is finished and saved first", remedy)
        # the request was withdrawn, and the trainer has not looked yet
        state = "running" if state in ("pausing", "paused") else state
        if silent > limit:
            return RunState(state, f"no heartbeat for {duration(silent)}, but its process is there")
        return RunState(state)
    if state in ("failed", "interrupted"):
        why = text(status.get("error")) or f"stopped after step {run.step}"
        return RunState(state, why, text(status.get("hint")) or run.paths.resume_command)
    return RunState(state)


def _stale(run: Run, why: str) -> RunState:
    """The error that the run last told of, if there is one, after what made it stale."""
    last = next((event for event in reversed(run.events) if event.get("kind") in ("started", "failed")), {})
    remedy = text(last.get("hint")) or run.paths.resume_command
    if last.get("kind") == "failed":
        return RunState("STALE", f"{text(last.get('message'))} ({why})", remedy)
    return RunState("STALE", why, run.paths.resume_command)


@dataclass(frozen=True)
class Pace:
    """How long it took and will take, in seconds; None for what cannot be known."""

    elapsed_s: float | None
    eta_s: float | None


def pace(run: Run, stands: RunState, now: datetime) -> Pace:
    """Returns the time of the attempt until now, or until its last sign of life, and that of the steps to come at the
    mean of the last few; a run that rests comes to no end."""
    began = next((event.get("time") for event in reversed(run.events) if event.get("kind") == "started"), None)
    elapsed = seconds_since(began, now)
    if elapsed is not None and not stands.alive:
        elapsed -= seconds_since(run.status.value.get("heartbeat"), now) or 0.0
    steps = run.recent("perf/step_s", ETA_STEPS)
    left = run.total - run.step
    return Pace(elapsed, fmean(steps) * left if steps and stands.state in MOVING and left > 0 else None)
