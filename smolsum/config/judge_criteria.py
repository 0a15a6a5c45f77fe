"""What the signals `judge` and `preference` judge by: criteria of the task, or a rubric of the user."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from smolsum.config.fields import names_in
from smolsum.config.sections import JudgeConfig
from smolsum.errors import UsageError, nearest
from smolsum.types import Criterion

SIGNALS = ("judge", "preference")


def asking(signals: Mapping[str, Any], rewards: Collection[str]) -> list[str]:
    """Return those of the rewards that ask the judge of `[judge]`; a user's own reward may have such a name."""
    return [name for name in SIGNALS if name in rewards and getattr(signals.get(name), "asks_judge", False)]


def judged_by(settings: JudgeConfig, criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return the criteria that count, of those that a task has. Raises UsageError for a task without criteria, and
    for an unknown one."""
    if settings.rubric.strip():
        return (Criterion("rubric", (settings.rubric.strip(),)),)
    if not criteria:
        raise UsageError(
            "the signals judge and preference have nothing to judge by, as the task has no criteria",
            hint='--set judge.rubric="What a good completion is, in a sentence or more."',
        )
    known = {one.name: one for one in criteria}
    names = names_in(settings.criteria) or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"judge.criteria: the task has no criterion {name!r}", hint=nearest(name, known))
    return tuple(known[name] for name in dict.fromkeys(names))
