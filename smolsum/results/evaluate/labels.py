"""A person's labels as one of the judges: a CSV with the columns `id`, `criterion` and `score`.

A score is from 0 to 1, as a judge's. A column `text` may hold the completion that was labelled; it is then compared
with the one of the evaluation, so that labels of other completions are not taken for these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from smolsum.errors import UsageError, nearest
from smolsum.results.evaluate.judgements import LABELS, JudgeSpec
from smolsum.runs.evaluation_records import Judgement
from smolsum.tasks.data_files import csv_records
from smolsum.types import Criterion, RolloutGroup

COLUMNS = ("id", "criterion", "score")
TEXT = "text"
SUFFIX = ".csv"


def is_labels(name: str) -> bool:
    """Return whether the name of a judge is a file of labels."""
    return name.lower().endswith(SUFFIX)


def labels_spec(path: Path, criteria: Sequence[Criterion]) -> JudgeSpec:
    """Return the specification of the person who made the labels: known by the file's name, one round."""
    return JudgeSpec(path.name, 1, {c.name: LABELS + c.name for c in criteria})


def read_labels(path: Path, groups: Sequence[RolloutGroup], criteria: Sequence[Criterion]) -> list[Judgement]:
    """Return the labels of a file as judgements, one for each example and criterion, without a score where there is
    none. Raises UsageError for a file that cannot be read, a row that cannot be a label, and a file without any label
    of these examples."""
    spec = labels_spec(path, criteria)
    texts = {group.prompt.id: group.rollouts[0].text for group in groups}
    found: dict[tuple[str, str], float] = {}
    seen = 0
    try:
        for where, row in csv_records(path):
            seen += 1
            for name in COLUMNS:
                if name not in row:
                    raise UsageError(f"{where} has no column {name!r}", hint=f"a first row of {','.join(COLUMNS)}")
            key, criterion, score = ((row[name] or "").strip() for name in COLUMNS)
            if criterion not in spec.prompts:
                raise UsageError(f"{where}: no criterion {criterion!r}", hint=nearest(criterion, list(spec.prompts)))
            if (key, criterion) in found:
                raise UsageError(f"{where}: {key} has a second label for {criterion}", hint="remove one of the two")
            if key in texts:
                shown = row.get(TEXT)
                if shown is not None and shown.split() != texts[key].split():
                    raise UsageError(
                        f"{where}: the label of {key} is for another text than this evaluation's completion",
                        hint="label the completions of this evaluation, which are in its scores.jsonl",
                    )
                found[key, criterion] = _score(score, where)
    except OSError as error:
        raise UsageError(
            f"cannot read the labels {path}: {error.strerror or error}", hint=f"a CSV with {','.join(COLUMNS)}"
        ) from error
    if not found:
        what = f"none of the {seen} labels is of an example" if seen else "no label of any example"
        raise UsageError(f"{path}: {what} of this evaluation", hint=f"ids such as {next(iter(texts), 'post-1')}")
    wanted = (question.wanted for question in spec.questions(groups, criteria))
    return [
        msgspec.structs.replace(one, score=score, error="no label" if score is None else "")
        for one in wanted
        for score in [found.get((one.id, one.metric))]
    ]


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        raise UsageError(f"{where}: the score {text!r:.40} is not a number", hint="a number from 0 to 1") from None
    if not math.isfinite(score) or not 0 <= score <= 1:
        hint = "divide scores from 0 to 10 by 10" if 1 < score <= 10 else "a number from 0 to 1"
        raise UsageError(f"{where}: the score {text!r:.40} is not from 0 to 1", hint=hint)
    return score
