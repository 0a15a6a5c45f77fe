"""How hard each training prompt is, cut into bands that stages mix (`[difficulty]`): by the length of its post, by a
column of the data, by the scores of an evaluation, or by the reward that the model gets for it when a stage begins.

Bands are quantiles, so each has the same number of prompts, whatever the measure; prompts of equal difficulty are
divided by a digest of their ids. So the plan of a run needs no measurement, and the order of prompts follows from the
seed and the step alone.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path

import xxhash

from smolsum.config.fields import names_in
from smolsum.config.sections import Config, DifficultyConfig
from smolsum.errors import UsageError, nearest
from smolsum.runs.evaluation_records import SCORES, Score
from smolsum.runs.typed_json import read_lines
from smolsum.tasks.base import Task
from smolsum.tasks.data import Example
from smolsum.types import Prompt


def planned_kinds(config: Config, task: Task, examples: Sequence[Example] | Sequence[Prompt]) -> tuple[str, ...]:
    """Return the kind of each training prompt that stages mix by: its category, or its band. Where a reward is to be
    measured, the bands are as large as they will be, and their prompts are not known yet.

    Raises UsageError for a column or scores that do not say how hard each prompt is.
    """
    if config.difficulty.by == "none":
        return task.prompts.categories(examples)
    return in_bands(known_values(config.difficulty, examples), config.difficulty, examples)


def known_values(
    settings: DifficultyConfig, examples: Sequence[Example] | Sequence[Prompt]
) -> Mapping[str, float | None]:
    """Return what each example is measured by, None where it has no value; 0 for a reward, which a stage measures when
    it begins. Raises UsageError as `planned_kinds` does."""
    if settings.by == "reward":
        return dict.fromkeys((one.id for one in examples), 0.0)
    return _VALUES[settings.by](settings, examples)


def in_bands(
    values: Mapping[str, float | None], settings: DifficultyConfig, examples: Sequence[Example] | Sequence[Prompt]
) -> tuple[str, ...]:
    """Return the band of each example, by its value: easy values first, equal ones in the order of a digest. An example
    whose value is missing is in no band (""), since nothing says how hard it is."""
    names, sign = names_in(settings.bands), 1.0 if _is_harder(settings) == "high" else -1.0
    known = [(value, one.id) for one in examples if (value := values.get(one.id)) is not None]
    ranked = sorted(known, key=lambda pair: (sign * pair[0], xxhash.xxh3_64_hexdigest(pair[1].encode())))
    band = {name: names[place * len(names) // len(ranked)] for place, (_, name) in enumerate(ranked)}
    return tuple(band.get(one.id, "") for one in examples)


def described(
    settings: DifficultyConfig, kinds: Sequence[str], values: Mapping[str, float | None], ids: Sequence[str]
) -> str:
    """Return the bands with their numbers of prompts and ranges of values, in words."""
    found: dict[str, list[float]] = {name: [] for name in names_in(settings.bands)}
    for kind, name in zip(kinds, ids, strict=True):
        if kind and (value := values.get(name)) is not None:
            found[kind].append(value)
    return ", ".join(f"{len(own)} {kind} ({min(own):.3g} to {max(own):.3g})" for kind, own in found.items() if own)


def _is_harder(settings: DifficultyConfig) -> str:
    """Return which values are harder, `high` or `low`."""
    if settings.harder != "auto":
        return settings.harder
    return "low" if settings.by in ("scores", "reward") else "high"


def _lengths(settings: DifficultyConfig, examples: Sequence[Example] | Sequence[Prompt]) -> dict[str, float | None]:
    return {one.id: float(len(one.source.split())) for one in examples}


def _column(settings: DifficultyConfig, examples: Sequence[Example] | Sequence[Prompt]) -> dict[str, float | None]:
    found = {one.id: one.metadata.get(settings.column) for one in examples}
    numbers = {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }
    wrong = next((name for name, value in found.items() if value is not None and name not in numbers), None)
    if wrong is not None:
        raise UsageError(
            f"difficulty.column: {settings.column!r} of prompt {wrong} is not a number, but {found[wrong]!r:.40}",
            hint="--set difficulty.column=NAME with a column of numbers, or --set difficulty.by=length",
        )
    if not numbers:
        columns = sorted({name for one in examples for name in one.metadata})
        raise UsageError(
            f"difficulty.column: no training prompt has a column {settings.column!r}",
            hint=f"{nearest(settings.column, columns)}, or --set difficulty.by=length"
            if columns
            else "--set difficulty.by=length",
        )
    return {name: numbers.get(name) for name in found}


def _scores(settings: DifficultyConfig, examples: Sequence[Example] | Sequence[Prompt]) -> dict[str, float | None]:
    path = Path(settings.scores)
    path = path / SCORES if path.is_dir() else path
    hint = "smolsum eval MODEL --split train measures the training prompts, and prints the folder"
    if not path.is_file():
        raise UsageError(f"difficulty.scores: there is no file {path}", hint=hint)
    rows = {str(row.id): row.metrics for row in read_lines(path, Score, hint=hint)}
    if lost := [one.id for one in examples if one.id not in rows]:
        raise UsageError(
            f"difficulty.scores: {path} lacks {len(lost)} of {len(examples)} training prompts, {lost[0]} among them",
            hint=f"scores of these data are needed: {hint}",
        )
    found = {one.id: rows[one.id].get(settings.column) for one in examples}
    numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    if not numbers:
        columns = sorted({name for row in rows.values() for name, v in row.items() if isinstance(v, int | float)})
        raise UsageError(
            f"difficulty.column: {path} has no number {settings.column!r}", hint=nearest(settings.column, columns)
        )
    return {name: numbers.get(name) for name in found}


_VALUES: dict[str, Callable[..., dict[str, float | None]]] = {"length": _lengths, "column": _column, "scores": _scores}
