"""Many evaluations, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smolsum import console
from smolsum.errors import InterruptedRun, SmolsumError, UnreachableError, UsageError
from smolsum.evaluate.generate import Sampler
from smolsum.evaluate.referee import bench_of
from smolsum.evaluate.scores import has_scores, read_summary
from smolsum.evaluation import JudgeOptions, evaluate
from smolsum.subjects import Subject
from smolsum.tasks import TASKS


def evaluate_all(
    subjects: Mapping[str, Callable[[], Subject]],
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


def is_done(subject: Subject, judging: JudgeOptions | None) -> bool:
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
