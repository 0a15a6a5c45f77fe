"""The grid that is trained in a directory of runs, as a view of one of its runs sees it: which run is under way, how
much is trained, and the time left for all."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from platform import node
from statistics import fmean

from smolsum.console import duration
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import LAST_BYTES, Document, Run
from smolsum.runs.records import GRID, GridRecord, RunOfGrid
from smolsum.runs.state import MOVING, STALE_S, mean_step, process_lives, read_stamp, run_state, seconds_since

ALMOST = 0.99
"""The largest share that is shown of a grid at work."""


@dataclass(frozen=True)
class GridView:
    """A grid at one moment."""

    number: int
    """of the run under way, or the last one, from 1"""
    total: int
    """runs"""
    share: float
    """of all steps that the grid has to train, in [0, 1]"""
    left_s: float | None
    """seconds for all runs; None where they cannot be known"""
    at_least: bool
    """whether `left_s` leaves out what was never measured: no run of that model has ended yet"""
    loading: bool
    """whether the run under way is being loaded, so that it does not answer yet"""
    failed: tuple[str, ...]
    left: tuple[str, ...]
    """names of the runs that come after the one under way"""
    alive: bool
    complete: bool
    """whether each run is done or has failed"""
    command: str
    """continues the grid"""

    @property
    def text(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        if not self.alive:
            return f"grid of {self.total} runs done{failed}" if self.complete else f"grid stopped in run {self.number}"
        share = min(self.share, ALMOST)  # its last evaluations are left
        time = f", {'at least' if self.at_least else 'about'} {duration(self.left_s)}" if self.left_s else ""
        return f"run {self.number} of {self.total}{' loading' if self.loading else ''}{failed}, {share:.0%}{time}"

    @property
    def stop_question(self) -> str:
        """What a stop of the run under way does to the grid."""
        many = len(self.left)
        begin = f"Run {self.number} of {self.total} finishes its step, saves and ends."
        if not many:
            return f"{begin} It is the last of the grid. This continues it:\n{self.command}"
        after = f"the {many} runs after it are" if many > 1 else "the run after it is"
        return f"{begin} The grid ends with it: {after} not trained. This continues all of them:\n{self.command}"


class GridFollower:
    """Reads `.grid.json` of a directory, and as much of its runs as progress and time left need."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._document = Document(runs_dir / GRID, GridRecord)
        self._run: Run | None = None
        self._measured: dict[str, tuple[str, float, float]] = {}
        """by run that has ended: its model, seconds of a step, seconds of all else"""
        self._was_alive = False

    def poll(self) -> bool:
        """Read what is new; whether the grid changed."""
        changed = self._document.refresh()
        record, here = self._document.value, self._number
        paths = RunPaths(self.runs_dir / record.runs[here].name) if record.runs else None
        if paths and (self._run is None or self._run.paths != paths):
            self._run = Run(paths, last_bytes=LAST_BYTES)
        if paths is None:
            self._run = None
        if self._run and record.state == "training":
            self._run.poll_status()  # its heartbeat is that of a grid on another machine
        alive = self._alive()
        if alive and self._run:
            self._run.poll()
        for run in record.runs if alive else ():
            if run.state == "done" and run.began and run.name not in self._measured:
                self._measured[run.name] = self._measure(run)
        self._was_alive |= alive
        return changed

    def under_way(self) -> RunPaths | None:
        """The run that the grid trains now; None while the next one is being loaded, or where no grid is at work."""
        record = self._document.value
        training = self._alive() and record.runs[self._number].state == "training"
        return RunPaths(self.runs_dir / record.runs[self._number].name) if training else None

    def ended_last(self) -> RunPaths | None:
        """The run before the one that is being loaded: a stop that it is asked for ends the grid."""
        ended = [run.name for run in self._document.value.runs if run.ended]
        return RunPaths(self.runs_dir / ended[-1]) if ended else None

    def view(self, paths: RunPaths) -> GridView | None:
        """Return the grid that a run belongs to, if it is at work or was at work since this began to look."""
        record, alive = self._document.value, self._alive()
        if not (alive or self._was_alive) or paths.name not in [run.name for run in record.runs]:
            return None
        here = self._number
        trained = [self._trained(run) for run in record.runs]
        total = sum(run.steps or 0 for run in record.runs)
        left_s, at_least = self._time_left(trained[here]) if alive else (None, False)
        return GridView(
            number=here + 1,
            total=len(record.runs),
            share=sum(trained) / total if total else 0.0,
            left_s=left_s,
            at_least=at_least,
            loading=record.runs[here].state == "loading",
            failed=tuple(run.name for run in record.runs if run.state == "failed"),
            left=tuple(run.name for run in record.runs if run.state == "to train"),
            alive=alive,
            complete=all(run.state in ("done", "failed") for run in record.runs),
            command=record.command,
        )

    @property
    def _number(self) -> int:
        """The index of the run under way, or of the last one that began."""
        begun = [n for n, run in enumerate(self._document.value.runs) if run.began]
        return begun[-1] if begun else 0

    def _alive(self) -> bool:
        record = self._document.value
        if record.state != "training" or not record.runs:
            return False
        if record.host == node():
            return process_lives(record.pid)
        now = datetime.now(UTC)
        stamps = [record.runs[self._number].began, self._run.status.heartbeat if self._run else ""]
        silent = [s for s in (seconds_since(stamp, now) for stamp in stamps) if s is not None]
        return not silent or min(silent) < STALE_S

    def _trained(self, run: RunOfGrid) -> int:
        """The steps of a run that are trained, or were given up, since the grid began."""
        steps = run.steps or 0
        if run.state in ("done", "failed"):
            return steps
        if run.state == "training" and self._run and self._run.paths.name == run.name and self._run.total:
            return min(max(steps - (self._run.total - self._run.step), 0), steps)
        return 0

    def _measure(self, ended: RunOfGrid) -> tuple[str, float, float]:
        """What a run that ended took for a step, and for all else: loading, evaluations, validations, checkpoints."""
        run = Run(RunPaths(self.runs_dir / ended.name), last_bytes=LAST_BYTES)
        run.poll()
        until = read_stamp(ended.ended)
        whole = (seconds_since(ended.began, until) if until else None) or 0.0
        step = mean_step(run) or 0.0
        return ended.model, step, max(whole - step * (ended.steps or 0), 0.0)

    def _time_left(self, trained: int) -> tuple[float | None, bool]:
        """Seconds until the last run ends, and whether they leave out what was not measured."""
        record, now = self._document.value, datetime.now(UTC)
        current = record.runs[self._number]
        if self._run is None or (current.state == "training" and run_state(self._run, now).state not in MOVING):
            return None, False
        rates: dict[str, tuple[float, float]] = {}
        for model in {run.model for run in record.runs}:
            if known := [(step, rest) for name, step, rest in self._measured.values() if name == model]:
                rates[model] = fmean(step for step, _ in known), fmean(rest for _, rest in known)
        elapsed = seconds_since(current.began, now) or 0.0
        own = mean_step(self._run) if current.state == "training" else None
        at_least = current.model not in rates or current.steps is None
        step = own or rates.get(current.model, (None, 0.0))[0]
        if step is None:
            return None, False
        left = step * ((current.steps or 0) - trained)
        if current.model in rates:
            left = max(left, step * (current.steps or 0) + rates[current.model][1] - elapsed)
        else:
            rates[current.model] = step, max(elapsed - step * trained, 0.0)
        for run in record.runs[self._number + 1 :]:
            if run.state != "to train":
                continue
            if run.model in rates and run.steps is not None:
                left += rates[run.model][0] * run.steps + rates[run.model][1]
            else:
                at_least = True
        return left, at_least


def grid_of(paths: RunPaths) -> GridView | None:
    """Return the grid at work that a run belongs to, if any."""
    follower = GridFollower(paths.root.parent)
    follower.poll()
    return follower.view(paths)
