"""What the signals `judge` and `preference` judge by: criteria of the task, or a rubric of the user."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from smolsum.config.presets import ConfigurableTask
from smolsum.config.sections import Config, JudgeConfig
from smolsum.errors import UsageError, nearest
from smolsum.types import Criterion

SIGNALS = ("judge", "preference")
RUBRIC = "rubric"
"""the name of the criterion that a rubric is"""


def asking(signals: Mapping[str, Any], rewards: Collection[str]) -> list[str]:
    """Return those of the rewards that ask the judge of `[judge]`; a user's own reward may have such a name."""
    return [name for name in SIGNALS if name in rewards and getattr(signals.get(name), "asks_judge", False)]


def judged_by(settings: JudgeConfig, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return the criteria that count, of those that a task has. Raises UsageError for a task without criteria, and
    for an unknown one."""
    if settings.rubric.strip():
        return (Criterion(RUBRIC, (settings.rubric.strip(),)),)
    if not criteria:
        raise UsageError(
            "the signals judge and preference have nothing to judge by, as the task has no criteria",
            hint='--set judge.rubric="What a good completion is, in a sentence or more."',
        )
    known = {one.name: one for one in criteria}
    names = [name.strip() for name in settings.criteria.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"judge.criteria: the task has no criterion {name!r}", hint=nearest(name, known))
    return tuple(known[name] for name in dict.fromkeys(names))


def check_judge(config: Config, sources: Mapping[str, str], task: ConfigurableTask) -> None:
    """Raise UsageError where a stage uses a judge that is not named or has nothing to judge by, and for a judge that
    no stage rewards."""
    judge = config.judge
    signals = task.rewards.signals
    asked = [(name, one) for name, stage in config.stages.items() for one in asking(signals, stage.used_signals)]
    if not asked:
        for key in ("model", "rubric", "criteria"):
            if getattr(judge, key):
                stage = next(iter(config.stages))
                raise UsageError(
                    f"{sources[f'judge.{key}']}: judge.{key} is set, but no stage uses judge or preference",
                    hint=f"--set stages.{stage}.rewards.judge=1.0; an evaluation's judge is --judge MODEL",
                )
        return
    stage, signal = asked[0]
    if not judge.model.strip():
        key = f"stages.{stage}.rewards"
        places = (f"{key}.{signal}", f"{key}_end.{signal}", f"stages.{stage}.constraints")
        source = next(sources[place] for place in places if place in sources)
        raise UsageError(
            f"{source}: stage {stage} uses {signal}, and judge.model is empty",
            hint="--set judge.model=MODEL, with SMOLSUM_JUDGE_URL=http://HOST:PORT/v1 or OPENAI_API_KEY",
        )
    if judge.rubric.strip() and judge.criteria:
        raise UsageError(
            f"{sources['judge.criteria']}: judge.criteria chooses among the task's, and judge.rubric replaces them",
            hint="--set judge.criteria='', or --set judge.rubric=''",
        )
    judged_by(judge, task.evaluation.criteria)
