"""The rollouts of a training step, read for people: grouped by prompt, sorted, compared."""

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from smolsum.files import json_objects, line_blocks
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import salvage
from smolsum.runs.records import RunSettings, SampledRollout
from smolsum.runs.sample_errors import error_size

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
