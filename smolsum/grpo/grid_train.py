"""The runs of a grid, checked before any of them begins, and trained one after another; a failed run does not stop the
others. `.grid.json` in the directory of the runs says how far they are."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace as changed

from smolsum import console
from smolsum.config.sections import Config
from smolsum.config.stages import needs_data
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError
from smolsum.files import digest, locked, replace
from smolsum.grpo.grid import Planned, Previews, steps_of
from smolsum.grpo.loop import train
from smolsum.grpo.progress import Progress
from smolsum.grpo.setup.prepare import forecast
from smolsum.policy import distributed
from smolsum.policy.load import is_here
from smolsum.runs.control import make_request, take_request
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import GRID, GridRecord, RunOfGrid, RunOfGridState
from smolsum.runs.typed_json import encode, to_row
from smolsum.tasks.data import check_references
from smolsum.tasks.data_files import SPLITS

LOCK = ".grid.lock"
"""against a second grid in the same directory, which would train the same runs"""
_SHOWN_NAMES = 3


def check_plan(planned: Sequence[Planned], previews: Previews) -> None:
    """Check data, references, measures and memory of the runs that are not done, as the dry run of one run does; what
    runs share is checked once, and no weight is read.

    Raises an error with a line for each distinct problem. Data on a hub that does not answer, and models that are not
    on this machine, are checked when their run begins.
    """
    forecasts: dict[str, SmolsumError | None] = {}
    problems: dict[str, tuple[SmolsumError, list[str]]] = {}
    waiting = [one for one in planned if one.state != "done"]
    for one in waiting:
        try:
            _check(one.config, previews, forecasts)
        except UnreachableError:
            continue
        except SmolsumError as error:
            problems.setdefault(error.message, (error, []))[1].append(one.name)
    if not problems:
        return
    hints = {problem.hint for problem, _ in problems.values()}
    count = sum(len(names) for _, names in problems.values())
    lines = [f"{count} of {len(waiting)} runs to train cannot be trained"]
    for message, (problem, names) in problems.items():
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        hint = f" ({problem.hint})" if problem.hint and len(hints) > 1 else ""
        lines.append(f"{', '.join(names[:_SHOWN_NAMES])}{more}: {message}{hint}")
    first, _ = next(iter(problems.values()))
    parts = [first.hint if len(hints) == 1 else "each line ends with its hint"]
    if count < len(waiting):
        parts.append("without --dry-run the other runs are trained")
    raise type(first)("\n  ".join(lines), hint="; ".join(filter(None, parts)) or None) from first


def _check(config: Config, previews: Previews, forecasts: dict[str, SmolsumError | None]) -> None:
    """Raise what is wrong with a run. `forecasts` has the problems of the memory that is already known, None for
    none."""
    if not is_here(config.model.path):
        if needs_data(config):
            previews.split(config, "train")
        return
    splits = {name: previews.split(config, name) for name in SPLITS}
    check_references(splits, config.stages)
    settings = asdict(config)
    del settings["run"], settings["stages"]
    key = digest([settings, any(stage.beta > 0 for stage in config.stages.values())])  # a reference takes memory
    if key not in forecasts:
        try:
            forecast(config, splits)
            forecasts[key] = None
        except SmolsumError as error:
            forecasts[key] = error
    if (problem := forecasts[key]) is not None:
        raise problem


def train_grid(planned: Sequence[Planned], *, quiet: bool, retry: str) -> None:
    """Train every run that is not done, in order, and print the directory of each run that is complete.

    `retry` is the command that continues. Raises SmolsumError with the names of the runs that failed, once all others
    are trained; InterruptedRun after Ctrl-C; UsageError where another process trains a grid in the same directory.
    """
    if not distributed.alone():
        raise UsageError(
            "several machines train one run, not a grid", hint="mlx.launch with one --model, --strategy and --reward"
        )
    if not quiet:
        console.narrate(f"{len(planned)} runs, {sum(one.state == 'done' for one in planned)} of them done")
    failed: dict[str, Exception] = {}
    runs_dir = Path(planned[0].config.run.dir)
    busy = f"a grid is being trained in {runs_dir}"
    with (
        _resumable(retry),
        locked(runs_dir / LOCK, busy, retry),
        closing(GridWriter(runs_dir, _runs(planned), retry)) as record,
    ):
        before: RunPaths | None = None
        for number, one in enumerate(planned, start=1):
            if one.state != "done":
                if not quiet:
                    verb = "continues" if one.state == "goes on" else "begins"
                    why = f" ({one.reason})" if one.reason else ""
                    console.narrate(f"run {number} of {len(planned)} {verb}: {one.name}{why}")
                if before and take_request(before, "stop"):  # made after its last step
                    raise InterruptedRun(f"stopped between two runs, before {one.name}")
                record.mark(number - 1, "loading")
                begun, before = _begun(record, number - 1, before), RunPaths(one.root)
                try:
                    with Progress(quiet=quiet) as progress:
                        resume = str(one.there.root) if one.there else None
                        train(one.config, resume=resume, progress=progress, started=begun)
                    gc.collect()  # reference cycles keep the model's arrays, and the next run needs their memory
                except InterruptedRun:
                    raise
                except Exception as error:  # whatever ends one run, the others are trained
                    failed[one.name] = error
                    hint = error.hint if isinstance(error, SmolsumError) else None
                    said = (str(error) or type(error).__name__) + (f" ({hint})" if hint else "")
                    console.warn(f"{one.name} failed: {said}")
                    record.mark(number - 1, "failed", error=said)
                    continue
                record.mark(number - 1, "done")
            console.data(str(one.root))
    if failed:
        summary = f"{len(failed)} of {len(planned)} runs failed: {', '.join(failed)}"
        raise SmolsumError(summary, hint=f"{retry} tries them again") from next(iter(failed.values()))


def _begun(record: GridWriter, number: int, before: RunPaths | None) -> Callable[[Path], None]:
    """Return what to do once the run exists: say so to views, and pass on a stop that the run before was sent."""

    def begun(root: Path) -> None:
        record.mark(number, "training")
        if before and take_request(before, "stop"):
            make_request(RunPaths(root), "stop")

    return begun


@contextmanager
def _resumable(retry: str) -> Iterator[None]:
    """Give an interruption of the block the hint that the same command continues."""
    try:
        yield
    except InterruptedRun as stopped:
        raise InterruptedRun(stopped.message, hint=retry) from stopped
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted between two runs", hint=retry) from error


def _runs(planned: Sequence[Planned]) -> list[RunOfGrid]:
    """Return what views show of the runs, with the steps that are left for each."""
    found = []
    for one, (steps, shared) in zip(planned, steps_of(planned, Previews()), strict=True):
        behind = max(one.step, steps[shared] if steps and shared else 0)
        left = None if steps is None else max(sum(steps.values()) - behind, 0)
        done = one.state == "done"
        found.append(RunOfGrid(one.name, one.config.model.path, "done" if done else "to train", 0 if done else left))
    return found


class GridWriter:
    """Keeps `.grid.json` up to date for the process that trains the grid; where all runs are done, it writes nothing. A
    disk that refuses is passed over: the file is for views alone, and training says what is wrong with the disk."""

    def __init__(self, runs_dir: Path, runs: Sequence[RunOfGrid], command: str) -> None:
        self._path = runs_dir / GRID
        self._idle = all(run.state == "done" for run in runs)
        self._record = GridRecord(
            pid=os.getpid(), host=platform.node(), command=command, state="training", runs=list(runs)
        )
        self._write()

    def mark(self, number: int, state: RunOfGridState, *, error: str = "") -> None:
        """Note the state of the run with this index."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        times = {"loading": {"began": now}, "done": {"ended": now}, "failed": {"ended": now}}.get(state, {})
        self._record.runs[number] = changed(self._record.runs[number], state=state, error=error, **times)
        self._write()

    def close(self) -> None:
        """Note that no more runs are trained."""
        self._record = changed(self._record, state="ended")
        self._write()

    def _write(self) -> None:
        if not self._idle:
            with suppress(SmolsumError):
                replace(self._path, encode(GridRecord, to_row(self._record), indent=2), "")
