"""Completions read for people: the rollouts of a training step by prompt, those of an evaluation with their measures,
and what is wrong with one. What is damaged is left out."""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from smolsum.config.targets import GOT, TARGET, TOKENS, tolerance
from smolsum.files import json_objects, line_blocks
from smolsum.runs.evaluation_records import GENERATIONS, SCORES, Score
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import LARGEST, Count, Record, RunSettings, SampledRollout
from smolsum.runs.typed_json import salvage

EARLY_STEPS = 2000
"""Steps that are searched for a prompt's first rollouts."""
MOST_BYTES = 32 << 20
"""Bytes of a step's completions that are shown."""
Change = Literal["same", "gone", "new"]


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt at one step."""

    step: int
    prompt_id: str
    post: str
    references: tuple[str, ...]
    samples: tuple[SampledRollout, ...]
    evaluation: str = ""
    """the folder of the evaluation that they are from; empty for rollouts of training"""


def read_groups(paths: RunPaths, step: int) -> tuple[Group, ...]:
    """Return the groups of a step in the order in which they were sampled; none while there is no file.

    A line that is damaged or half written is passed over, and so is what follows the first `MOST_BYTES` of a file.
    """
    groups: list[list[SampledRollout]] = []
    for offset, block in line_blocks(paths.completions(step)):
        if offset > MOST_BYTES:
            break
        for line in block.splitlines():
            rollout = as_sample(line)
            if rollout is None:
                continue
            # a step may sample a prompt twice, in groups next to each other
            if not groups or rollout.number == 0 or rollout.prompt_id != groups[-1][0].prompt_id:
                groups.append([])
            groups[-1].append(rollout)
    return tuple(_group(step, rollouts) for rollouts in groups)


def as_sample(line: bytes) -> SampledRollout | None:
    """Return a line of completions/*.jsonl; a part of it that is wrong is left out. None for a damaged line."""
    try:
        return msgspec.json.decode(line, type=SampledRollout)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return salvage(next(json_objects([line])), SampledRollout)


def first_group(paths: RunPaths, group: Group, first_step: int) -> Group | None:
    """Return the earliest rollouts of the same prompt before this step; None if EARLY_STEPS steps have none."""
    # most steps lack the prompt, and to look for its id takes far less time than to parse them
    mark = json.dumps(group.prompt_id, ensure_ascii=False).encode()
    for step in range(first_step, min(group.step, first_step + EARLY_STEPS)):
        try:
            if mark not in paths.completions(step).read_bytes():
                continue
        except OSError:
            continue
        for candidate in read_groups(paths, step):
            if candidate.prompt_id == group.prompt_id:
                return candidate
    return None


class Order(NamedTuple):
    """What a listing is sorted by."""

    by: str = "sample"
    backwards: bool = False


def sort_keys(group: Group) -> list[str]:
    """Return the columns that a group can be sorted by, in the order in which the key steps through them."""
    signals = group.samples[0].rewards if group.samples else ()
    return ["sample", "tokens", *signals, "reward", "advantage", "error", "worker"]


def ordered(group: Group, sort: str, settings: RunSettings, *, backwards: bool = False) -> list[SampledRollout]:
    """Return the rollouts sorted: sample and worker ascending, all other columns descending, or the reverse; missing
    values are last."""
    if sort not in sort_keys(group) or sort == "sample":
        return list(group.samples)[:: -1 if backwards else 1]
    if sort == "worker":
        return sorted(group.samples, key=lambda sample: sample.worker, reverse=backwards)

    def key(sample: SampledRollout) -> float:
        value = {
            **sample.rewards,
            "tokens": float(sample.tokens),
            "reward": sample.reward,
            "advantage": sample.advantage,
            "error": error_size(sample, settings),
        }[sort]
        return math.inf if value is None else value if backwards else -value

    return sorted(group.samples, key=key)


def changes(before: str, after: str) -> list[tuple[Change, str]]:
    """Return the words of both texts in stretches, each kept, removed or added."""
    old, new = before.split(), after.split()
    out: list[tuple[Change, str]] = []
    # without autojunk, which takes the frequent words of a long text for noise
    for kind, a, b, c, d in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind == "equal":
            out.append(("same", " ".join(old[a:b])))
            continue
        if a < b:
            out.append(("gone", " ".join(old[a:b])))
        if c < d:
            out.append(("new", " ".join(new[c:d])))
    return out


def clean(text: str) -> str:
    """Return the text without control characters, which a terminal would obey: a model may sample any character."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text.expandtabs(4))


def _group(step: int, rollouts: Sequence[SampledRollout]) -> Group:
    first = rollouts[0]
    posts = [message.content for message in first.messages if message.role == "user"]
    return Group(
        step=step,
        prompt_id=clean(first.prompt_id or "?"),
        post=clean(posts[-1]) if posts else "",
        references=tuple(clean(reference) for reference in first.references),
        samples=tuple(cleaned(rollout) for rollout in rollouts),
    )


def cleaned(rollout: SampledRollout) -> SampledRollout:
    """Return the rollout without control characters in its texts."""
    rewards = {clean(name): value for name, value in rollout.rewards.items()}
    return replace(rollout, text=clean(rollout.text), worker=clean(rollout.worker), rewards=rewards)


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


def scores_of(folder: Path) -> dict[str, dict[str, float | None]]:
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
    path, measured = texts_of(folder), scores_of(folder)
    found: dict[str, SampledRollout] = {}
    tokens: dict[str, int] = {}
    for _, block in line_blocks(path) if path else ():
        for line in block.splitlines():
            sample = as_rollout(line, measured)
            if sample is not None and sample.number == 0 and sample.prompt_id:
                tokens[sample.prompt_id] = sample.tokens
                found[sample.prompt_id] = replace(sample, text=clean(sample.text), token_ids=[])
    order = [*(name for name in measured if name in found), *(name for name in found if name not in measured)]
    return EvaluationSamples(folder.name, {name: found[name] for name in order}, tokens)


def _is_measure(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST)


LENGTH_MEASURES = ("length", "within_tol")
"""The signal, and the measure of evaluations, that are about the length of the whole completion."""
FARTHEST = 9_999


def sample_errors(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> list[str]:
    """Return what is wrong with a sample of `tokens` tokens, by default those of its line: `cut` (the token limit ended
    it), `empty`, a signal without a value, `failed` (a measure `passed` is 0), or how far its length is off a target
    that the run has (`+12 tokens`)."""
    found = ["cut"] if sample.truncated else []
    found += [] if sample.text.strip() else ["empty"]
    found += [f"no {name}" for name, value in sample.rewards.items() if value is None]
    found += ["failed"] if sample.rewards.get("passed") == 0 else []
    off = _off_target(sample, settings, tokens)
    return [*found, f"{off:+d} {settings.unit}"] if off else found


def error_size(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> float:
    """Return how much is wrong with a sample: the number of errors, and of as many, the farther from the target
    length the more. 0 for none."""
    off = min(abs(_off_target(sample, settings, tokens)), FARTHEST)
    return len(sample_errors(sample, settings, tokens)) + off / (FARTHEST + 1)


def _off_target(sample: SampledRollout, settings: RunSettings, tokens: int | None) -> int:
    """Tokens above (or below, negative) the target; 0 within the tolerance, or where length is not measured."""
    if not any(name in sample.rewards for name in LENGTH_MEASURES):
        return 0
    target = sample.target if settings.targets else settings.target_tokens
    got = length_of(sample, settings, tokens)
    if target is None or settings.tolerance_tokens is None or got is None:
        return 0
    return (
        got - target
        if abs(got - target) > tolerance(target, settings.tolerance_tokens, settings.tolerance_share)
        else 0
    )


def length_of(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> int | None:
    """Return a sample's length in the unit of its target; None where its line does not show it."""
    measured = sample.rewards.get(GOT) if settings.targets else None
    if measured is not None:
        return int(measured)
    if settings.unit != TOKENS:
        return None
    return sample.tokens if tokens is None else tokens


def asked_and_got(sample: SampledRollout, settings: RunSettings, tokens: int | None = None) -> str:
    """Return a sample's length next to what its prompt asks for, `60 of 64 tokens`; only its tokens where the prompt
    asks for no length."""
    got, count = length_of(sample, settings, tokens), sample.tokens if tokens is None else tokens
    if sample.target is None:
        return f"{count} tokens"
    if got is None:
        return f"{count} tokens, asked for {sample.target} {settings.unit}"
    return f"{got} of {sample.target} {settings.unit}"
