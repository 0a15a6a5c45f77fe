"""Trains the runs of a grid one after another. A failed run does not stop the others."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from smolsum import console
from smolsum.cli.grid import Planned, Previews, steps_to_train
from smolsum.errors import InterruptedRun, SmolsumError, UsageError
from smolsum.files import locked
from smolsum.policy import distributed
from smolsum.runs.control import make_request, take_request
from smolsum.runs.grid_record import GridWriter
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunOfGrid
from smolsum.training.loop import train
from smolsum.training.progress import Progress

LOCK = ".grid.lock"
"""against a second grid in the same directory, which would train the same runs"""


def train_grid(planned: Sequence[Planned], *, quiet: bool, remedy: str) -> None:
    """Train every run that is not done, in order, and print the directory of each run that is complete.

    `remedy` is the command that continues. Raises SmolsumError with the names of the runs that failed, once all others
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
    with _resumable(remedy), locked(runs_dir / LOCK, busy, remedy), _recorded(planned, runs_dir, remedy) as record:
        before: RunPaths | None = None
        for number, one in enumerate(planned, start=1):
            if one.state != "done":
                if not quiet:
                    verb = "goes on" if one.state == "goes on" else "begins"
                    why = f" ({one.reason})" if one.reason else ""
                    console.narrate(f"run {number} of {len(planned)} {verb}: {one.name}{why}")
                if before and take_request(before, "stop"):  # made after its last step
                    raise InterruptedRun(f"stopped between two runs, before {one.name}")
                record.mark(number - 1, "loading")
                begun, before = _begun(record, number - 1, before), RunPaths(one.root)
                try:
                    _train(one, quiet, begun)
                except InterruptedRun:
                    raise
                except Exception as error:  # whatever ends one run, the others are trained
                    failed[one.name] = error
                    console.warn(f"{one.name} failed: {_with_hint(error)}")
                    record.mark(number - 1, "failed", error=_with_hint(error))
                    continue
                record.mark(number - 1, "done")
            console.data(str(one.root))
    if failed:
        summary = f"{len(failed)} of {len(planned)} runs failed: {', '.join(failed)}"
        raise SmolsumError(summary, hint=f"{remedy} tries them again") from next(iter(failed.values()))


def _train(one: Planned, quiet: bool, begun: Callable[[Path], None]) -> None:
    with Progress(quiet=quiet) as progress:
        train(one.config, resume=str(one.resume.root) if one.resume else None, progress=progress, begun=begun)
    gc.collect()  # reference cycles keep the model's arrays alive, and the next run needs their memory


@contextmanager
def _recorded(planned: Sequence[Planned], runs_dir: Path, command: str) -> Iterator[GridWriter]:
    """Keep `.grid.json` during the block, for the views of this directory."""
    runs = [
        RunOfGrid(one.name, one.config.model.path, "done" if one.state == "done" else "to train", steps)
        for one, steps in zip(planned, steps_to_train(planned, Previews()), strict=True)
    ]
    record = GridWriter(runs_dir, runs, command)
    try:
        yield record
    finally:
        record.end()


def _begun(record: GridWriter, number: int, before: RunPaths | None) -> Callable[[Path], None]:
    """Return what to do once the run exists: say so to views, and pass on a stop that the run before was sent."""

    def begun(root: Path) -> None:
        record.mark(number, "training")
        if before and take_request(before, "stop"):
            make_request(RunPaths(root), "stop")

    return begun


def _with_hint(error: Exception) -> str:
    message = str(error) or type(error).__name__
    hint = error.hint if isinstance(error, SmolsumError) else None
    return f"{message} ({hint})" if hint else message


@contextmanager
def _resumable(remedy: str) -> Iterator[None]:
    """Give an interruption of the block the hint that the same command continues."""
    try:
        yield
    except InterruptedRun as stopped:
        raise InterruptedRun(stopped.message, hint=remedy) from stopped
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted between two runs", hint=remedy) from error
