"""`smolsum train` of many configurations.

A grid, trained run by run.

Many evaluations, one after another.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from smolsum import console
from smolsum.cli.grid_plan import Planned
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError
from smolsum.evaluate.judging import bench_of
from smolsum.evaluate.run import JudgeOptions, evaluate
from smolsum.evaluate.sampling import Sampler
from smolsum.evaluate.target import Target
from smolsum.files import locked
from smolsum.policy import ranks
from smolsum.runs.records import has_scores, read_summary
from smolsum.tasks import TASKS
from smolsum.train.loop import train
from smolsum.train.progress import Progress

if TYPE_CHECKING:
    from smolsum.cli.grid_plan import Planned


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


def evaluate_all(
    subjects: Mapping[str, Callable[[], Target]],
    *,
    split: str,
    sampler: Sampler,
    judging: JudgeOptions | None,
    skip: bool,
    quiet: bool,
    remedy: str,
) -> None:
    """Evaluate each of them and print its folder; with `skip` not those that have all that is asked for.

    One that fails does not stop the others, unless the judge is out of reach, which is the same for all; in the end
    SmolsumError names those that did.
    """
    failed: dict[str, SmolsumError] = {}
    for number, (name, make) in enumerate(subjects.items(), start=1):
        try:
            subject = make()
            if skip and is_done(subject, judging):
                folder = subject.folder
            else:
                if not quiet and len(subjects) > 1:
                    console.narrate(f"evaluation {number} of {len(subjects)}: {name}")
                if not quiet and subject.chosen:
                    console.narrate(subject.chosen)
                folder = evaluate(subject, split=split, sampler=sampler, judging=judging, quiet=quiet, remedy=remedy)
        except (UnreachableError, InterruptedRun):
            raise
        except SmolsumError as error:
            if len(subjects) == 1:
                raise
            failed[name] = error
            console.warn(f"{name}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        console.data(str(folder))
    if failed:
        many = f"{len(failed)} of {len(subjects)} evaluations failed: {', '.join(failed)}"
        first = next(iter(failed.values()))
        # what was asked wrongly fails again, however often
        wrong = all(isinstance(error, UsageError) for error in failed.values())
        raise SmolsumError(many, hint=first.hint if wrong and first.hint else f"{remedy} tries them again") from first


def is_done(subject: Target, judging: JudgeOptions | None) -> bool:
    """Whether the folder has the scores, and where a judge is asked for, all of that judge's."""
    if not has_scores(subject.folder):
        return False
    if judging is None:
        return True
    summary = read_summary(subject.folder)
    facts, criteria = summary.get("judging") or {}, TASKS[subject.config.task.name].criteria
    if summary.get("judge") != bench_of(judging.endpoint, judging.rounds, criteria).name or facts.get("missing"):
        return False
    second = facts.get("second", {})
    wanted = judging.second
    return wanted is None or (second.get("model"), second.get("endpoint")) == (wanted.model, wanted.address)


def train_grid(planned: Sequence[Planned], arguments: Sequence[str], *, dry_run: bool, quiet: bool) -> None:
    """Shows the plan and, unless it is for show only, trains what is not done; prints the directory of each run."""
    if dry_run:
        show_plan(planned)
        return
    todo = [one for one in planned if one.state != "done"]
    if not quiet:
        console.narrate(f"{len(planned)} runs, {len(planned) - len(todo)} of them done")

    remedy = shlex.join(["smolsum", *arguments])
    train_all(planned, quiet=quiet, remedy=remedy, done=lambda root: console.data(str(root)))


def show_plan(planned: Sequence[Planned]) -> None:
    """Prints a line for each run: what it is, its steps, and how far it is."""
    from smolsum.cli.grid_plan import status_of, steps_of

    rows, left, unknown = [], 0, False
    trained: set[tuple[object, ...]] = set()
    for one, steps in zip(planned, steps_of(planned), strict=True):
        stages, told = one.config.stages, []
        for name, stage in stages.items():
            count = steps[name] if steps else 0
            first = name == next(iter(stages))
            key = (one.config.model.path, tuple(sorted(stage.rewards.items())), count)
            shared = first and len(stages) > 1 and key in trained
            if first:
                trained.add(key)
            told.append(f"{name} {count or f'{stage.epochs:g} of the data'}{' (shared)' if shared else ''}")
            left += 0 if shared or one.state == "done" else count
            unknown = unknown or steps is None
        step = status_of(one.resume).get("step") if one.resume else None
        state = f"goes on at step {step}" if one.state == "goes on" and step else one.state
        rows.append([one.name, state, " > ".join(told), one.strategy, one.reward, one.config.model.path])
    console.data_table(["name", "state", "steps", "strategy", "reward", "model"], rows)
    states = [one.state for one in planned]
    counts = ", ".join(f"{states.count(state)} {what}" for state, what in _STATES.items() if state in states)
    console.narrate(
        f"{len(planned)} runs: {counts}; {'steps known once the data are here' if unknown else f'{left} steps at most'}"
    )


_STATES = {"done": "done", "goes on": "to go on with", "to train": "to train"}


def refuse_single(flags: Sequence[str]) -> None:
    """UsageError for flags that are about one run."""
    if flags:
        raise UsageError(
            f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} for one run, and several are selected",
            hint="give one --model, --strategy and --reward; smolsum watch shows the run under way",
        )
