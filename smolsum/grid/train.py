"""A grid, trained run by run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from smolsum import console
from smolsum.errors import InterruptedRun, SmolsumError, UsageError
from smolsum.grid.plan import Planned
from smolsum.lock import locked
from smolsum.policy import ranks
from smolsum.progress import Progress
from smolsum.train import train

LOCK = ".grid.lock"


def train_all(planned: Sequence[Planned], *, quiet: bool, remedy: str, done: Callable[[Path], None]) -> None:
    """Train what is not done, in order; `done` hears of each run that is there in the end.

    One that fails does not stop the others; in the end SmolsumError names those that did. Ctrl-C is InterruptedRun,
    `remedy` the command that goes on.
    """
    if not ranks.alone():
        raise UsageError(
            "several machines train one run, not a grid", hint="mlx.launch with one --model, --strategy and --reward"
        )
    runs_dir = Path(planned[0].config.run.dir)
    failed: dict[str, Exception] = {}
    with _stoppable(remedy), _holding(runs_dir, remedy):
        for number, one in enumerate(planned, start=1):
            if one.state != "done":
                if not quiet:
                    verb = "goes on" if one.state == "goes on" else "begins"
                    console.narrate(f"run {number} of {len(planned)} {verb}: {one.name}")
                try:
                    _train(one, quiet)
                except InterruptedRun:
                    raise
                except Exception as error:
                    failed[one.name] = error
                    console.warn(f"{one.name} failed: {_told(error)}")
                    continue
            done(one.root)
    if failed:
        names = ", ".join(failed)
        many = f"{len(failed)} of {len(planned)} runs failed: {names}"
        raise SmolsumError(many, hint=f"{remedy} tries them again") from next(iter(failed.values()))


def _train(one: Planned, quiet: bool) -> None:
    with Progress(quiet=quiet) as progress:
        train(one.config, resume=str(one.resume.root) if one.resume else None, progress=progress)
    gc.collect()  # a model's arrays hang in circles, and the next one needs their memory


def _told(error: Exception) -> str:
    message = str(error) or type(error).__name__
    hint = error.hint if isinstance(error, SmolsumError) else None
    return f"{message} ({hint})" if hint else message


@contextmanager
def _stoppable(remedy: str) -> Iterator[None]:
    """However the user stops it, the same command goes on."""
    try:
        yield
    except InterruptedRun as stopped:
        raise InterruptedRun(stopped.message, hint=remedy) from stopped
    except KeyboardInterrupt as error:
        raise InterruptedRun("interrupted between two runs", hint=remedy) from error


@contextmanager
def _holding(runs_dir: Path, remedy: str) -> Iterator[None]:
    """One grid at a time in a directory: two would train the same runs."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    with locked(runs_dir / LOCK, f"a grid is being trained in {runs_dir}", remedy):
        yield
