"""The completions of an evaluation with their measures, read for people: what is damaged is left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from smolsum.config.targets import GOT, TARGET
from smolsum.files import json_objects, line_blocks
from smolsum.runs.completion_groups import clean
from smolsum.runs.evaluation_records import GENERATIONS, SCORES, Score
from smolsum.runs.record_io import salvage
from smolsum.runs.records import LARGEST, Count, Record, SampledRollout


class EvaluationLine(Record, frozen=True):
    """A line of generations.jsonl or scores.jsonl, as far as it shows a completion."""

    id: str | int = ""
    sample: Count = 0
    text: str = ""
    token_ids: list[Count] = msgspec.field(default_factory=list)
    finish_reason: str = "stop"
    worker: str = ""
    policy_version: Count | None = None


@dataclass(frozen=True)
class EvaluationSamples:
    """The first completion of each example of an evaluation, in the order of the data."""

    name: str
    """of its folder, `<label>-<split>`"""
    samples: Mapping[str, SampledRollout] = field(default_factory=dict)
    """by example, without token ids; `rewards` are the numbers that the evaluation measured"""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """by example, without the end token"""

    @property
    def metrics(self) -> list[str]:
        """What was measured, in order."""
        return list(dict.fromkeys(name for sample in self.samples.values() for name in sample.rewards))


def texts_of(folder: Path) -> Path | None:
    """Return the file with the completions of an evaluation: as they were sampled, or else as they were scored; None
    where both are missing."""
    return next((path for path in (folder / GENERATIONS, folder / SCORES) if path.is_file()), None)


def measures_of(folder: Path) -> dict[str, dict[str, float | None]]:
    """Return what was measured of each example, by its id: numbers, None for a missing value."""
    found = {}
    for _, block in line_blocks(folder / SCORES):
        for row in json_objects(block.splitlines()):
            score = salvage(row, Score) if row is not None else None
            if score is not None:
                found[str(score.id)] = {
                    clean(name): value for name, value in score.metrics.items() if _is_measure(value)
                }
    return found


def as_rollout(line: bytes, measured: Mapping[str, Mapping[str, float | None]]) -> SampledRollout | None:
    """Return a line of generations.jsonl or scores.jsonl like a rollout of training, with what was measured of its
    example as rewards; None for a damaged line."""
    try:
        found = msgspec.json.decode(line, type=EvaluationLine)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        salvaged = salvage(next(json_objects([line])), EvaluationLine)
        if salvaged is None:
            return None
        found = salvaged
    name = str(found.id)
    asked = measured.get(name, {}).get(TARGET) if GOT in measured.get(name, {}) else None
    return SampledRollout(
        prompt_id=name,
        number=found.sample,
        text=found.text,
        token_ids=found.token_ids,
        finish_reason=found.finish_reason,
        target=None if asked is None else int(asked),
        rewards=dict(measured.get(name, {})) if found.sample == 0 else {},
        worker=found.worker,
        version=found.policy_version,
    )


def read_samples(folder: Path) -> EvaluationSamples:
    """Return the first completion of each example of an evaluation; none while there is no file. They are in the order
    of the scores, the examples without scores after them."""
    path, measured = texts_of(folder), measures_of(folder)
    found: dict[str, SampledRollout] = {}
    tokens: dict[str, int] = {}
    for _, block in line_blocks(path) if path else ():
        for line in block.splitlines():
            sample = as_rollout(line, measured)
            if sample is not None and sample.number == 0 and sample.prompt_id:
                tokens[sample.prompt_id] = sample.tokens
                found[sample.prompt_id] = msgspec.structs.replace(sample, text=clean(sample.text), token_ids=[])
    order = [*(name for name in measured if name in found), *(name for name in found if name not in measured)]
    return EvaluationSamples(folder.name, {name: found[name] for name in order}, tokens)


def _is_measure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST)
