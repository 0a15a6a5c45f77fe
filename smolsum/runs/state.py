"""The state of a run for people: a word and a mark, what went wrong and what helps, time elapsed and time left."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median

from smolsum.console import duration
from smolsum.runs.evaluation_records import Summary
from smolsum.runs.reader import Run
from smolsum.runs.writer import AT_WORK_STATES

STALE_S = 600.0
STALE_STEPS = 10
GONE_S = 15.0
"""Seconds without a heartbeat after which a process that no longer exists has crashed: until then its last status may
still be on its way."""
ETA_STEPS = 20
MARKS = {
    "waiting": "○",
    "starting": "○",
    "running": "●",
    "pausing": "◐",
    "paused": "‖",
    "stopping": "◐",
    "finished": "✓",
    "failed": "✗",
    "interrupted": "■",
    "STALE": "?",
    "GONE": "?",
}
TROUBLE = ("failed", "STALE", "GONE")
MOVING = ("starting", "running")
ALIVE_STATES = (*AT_WORK_STATES, "stopping")


@dataclass(frozen=True)
class RunState:
    """The state of a run, what went wrong, and the command that helps."""

    state: str
    detail: str = ""
    hint: str = ""

    @property
    def mark(self) -> str:
        """One character that shows the state without colour."""
        return MARKS.get(self.state, "○")

    @property
    def hopeful(self) -> bool:
        """Whether more steps may come without any action."""
        return self.alive or self.state == "waiting"

    @property
    def answers(self) -> bool:
        """Whether it still answers requests."""
        return self.state in AT_WORK_STATES

    @property
    def alive(self) -> bool:
        """Whether a process works on the run."""
        return self.state in ALIVE_STATES


def run_state(
    run: Run, now: datetime, lives: Callable[[int | None], bool] | None = None, *, gone_s: float = GONE_S
) -> RunState:
    """Return the state of a run. `lives` says whether a process of this machine exists; after `gone_s` seconds without
    a heartbeat, a run whose process does not exist has crashed.

    STALE: it claims to run, but its process is gone, or (from another machine) there was no heartbeat for 10 minutes or
    ten median steps, whichever is longer.
    """
    if run.gone:
        return RunState("GONE", f"{run.paths.root} was removed; this is what was read before")
    status = run.status
    state = status.state or "waiting"
    if state in AT_WORK_STATES:
        silent = seconds_since(status.heartbeat, now) or 0.0
        # a process id says something on its own machine alone
        here = status.host == platform.node()
        # one step of a large model may take minutes
        limit = max(STALE_S, STALE_STEPS * median(run.recent("perf/step_s", 50) or [0.0]))
        if here and silent >= gone_s and not (lives or process_lives)(status.pid):
            return _stale(run, f"process {status.pid} is gone, its last heartbeat was {duration(silent)} ago")
        if not here and silent > limit:
            return _stale(run, f"no heartbeat from {status.host or 'its machine'} for {duration(silent)}")
        if run.requested("stop"):
            return RunState("stopping", "stopping: its step is finished and saved first")
        if run.requested("pause"):
            hint = f"rm {run.paths.control / 'pause'}"
            if state == "paused":
                return RunState("paused", f"paused after step {run.step}: saved, safe to kill", hint)
            return RunState("pausing", "pausing: its step is finished and saved first", hint)
        # the request was withdrawn, and the trainer has not looked yet
        state = "running" if state in ("pausing", "paused") else state
        if silent > limit:
            return RunState(state, f"no heartbeat for {duration(silent)}, but its process exists")
        return RunState(state)
    if state in ("failed", "interrupted"):
        why = status.error or f"stopped after step {run.step}"
        return RunState(state, why, status.hint or run.paths.resume_command)
    return RunState(state)


def _stale(run: Run, why: str) -> RunState:
    """The state of a crashed run, with the error that it last reported, if any."""
    last = next((event for event in reversed(run.events) if event.kind in ("started", "failed")), None)
    if last and last.kind == "failed":
        return RunState("STALE", f"{last.message} ({why})", last.hint or run.paths.resume_command)
    return RunState("STALE", why, run.paths.resume_command)


@dataclass(frozen=True)
class Pace:
    """Elapsed time and time left, in seconds; None where it cannot be known."""

    elapsed_s: float | None
    eta_s: float | None


def pace(run: Run, state: RunState, now: datetime) -> Pace:
    """Return the time since the attempt began, up to now or its last heartbeat, and the time that is left: of steps at
    the mean of the last few, of evaluations as the newest one took. Only a run that makes steps has an end in sight."""
    began = next((event.time for event in reversed(run.events) if event.kind == "started"), "")
    elapsed = seconds_since(began, now)
    if elapsed is not None and not state.alive:
        elapsed -= seconds_since(run.status.heartbeat, now) or 0.0
    step = mean_step(run)
    if step is None or state.state not in MOVING:
        return Pace(elapsed, None)
    left = step * max(run.total - run.step, 0) + (run.evaluation_s or 0.0) * _evaluations_left(run)
    return Pace(elapsed, left or None)


def _evaluations_left(run: Run) -> float:
    """Return how many evaluations a run still makes; of one that is under way, or of which a sample is done, the part
    that is left."""
    left = {label: _part_left(summary) for label, summary in run.results.items()}
    status = run.status
    if status.phase == "evaluating" and status.completions and left.get(status.stage):
        left[status.stage] = 1.0 - min(status.done / status.completions, 1.0)
    return sum(left.values())


def _part_left(summary: Summary) -> float:
    if not summary.metrics:
        return 1.0
    return 1.0 - summary.n / summary.whole if summary.whole and summary.so_far else 0.0


def mean_step(run: Run) -> float | None:
    """Return the mean seconds of the newest steps of a run (`mean_without_pauses`); None before the first one."""
    return mean_without_pauses(run.recent("perf/step_s", ETA_STEPS))


def mean_without_pauses(step_s: Sequence[float]) -> float | None:
    """Return the mean of steps' seconds without those in which the machine slept or the process was stopped, which took
    more than ten times the median; None without any step."""
    longest = STALE_STEPS * median(step_s or [0.0])
    return fmean(s for s in step_s if s <= longest) if step_s else None


def seconds_since(stamp: str, now: datetime) -> float | None:
    """Return the seconds from a time as a run's files have it to `now`; None for any other text."""
    then = read_stamp(stamp)
    return None if then is None else max(0.0, (now - then).total_seconds())


def read_stamp(stamp: str) -> datetime | None:
    """Return a time as a run's files have it (ISO 8601, with its zone); None for any other text."""
    try:
        found = datetime.fromisoformat(stamp)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo else None


def time_of_day(stamp: str, form: str = "%H:%M:%S") -> str:
    """Return the local time of day of a time in a run's files; nothing for any other text."""
    found = read_stamp(stamp)
    return found.astimezone().strftime(form) if found else ""


def process_lives(pid: int | None) -> bool:
    """Whether this machine has a process with this number that has not ended."""
    if pid is None or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process can have a number that large
        return False
    except OSError:  # it exists, and belongs to another user
        return True
    return not _defunct(pid)


def _defunct(pid: int) -> bool:
    """Whether a process has ended and waits for its parent, which in a container may never collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False


def progress(run: Run) -> str:
    """Return the step of a run and its planned steps."""
    return f"{run.step}/{run.total}" if run.total else str(run.step)
