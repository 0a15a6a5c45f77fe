"""The rollouts of a step, as the run directory keeps them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import items, number, table, whole

EARLY_STEPS = 2000
"""Steps that are searched for a prompt's first rollouts."""
Change = Literal["same", "gone", "new"]


@dataclass(frozen=True)
class Sample:
    """One rollout; None where the run could not say."""

    number: int
    text: str
    tokens: int
    truncated: bool
    rewards: Mapping[str, float | None]
    reward: float | None
    advantage: float | None
    worker: str
    version: int | None


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt at one step; post and references are empty in runs that did not keep them."""

    step: int
    prompt_id: str
    post: str
    references: tuple[str, ...]
    samples: tuple[Sample, ...]


def read_groups(paths: RunPaths, step: int) -> tuple[Group, ...]:
    """Returns the groups of a step in the order in which they were sampled; none while there is no file.

    A line that is damaged or half written is passed over.
    """
    try:
        content = paths.completions(step).read_bytes()
    except OSError:
        return ()
    found: list[list[dict[str, Any]]] = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict):
            continue
        if not found or row.get("sample") == 0 or row.get("prompt_id") != found[-1][0].get("prompt_id"):
            found.append([])
        found[-1].append(row)
    return tuple(_group(step, rows) for rows in found)


def first_group(paths: RunPaths, group: Group, first_step: int) -> Group | None:
    """Returns the earliest rollouts of the same prompt before this step; None if EARLY_STEPS steps have none."""
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
    """Returns the columns that a group can be sorted by, in the order in which a key goes through them."""
    return ["sample", "tokens", *(group.samples[0].rewards if group.samples else ()), "reward", "advantage", "worker"]


def chosen(group: Group, sort: str, query: str) -> list[Sample]:
    """Returns the rollouts that contain `query` (whatever the case), the highest of `sort` first, those without it
    last; by sample number and by worker upwards."""
    kept = [sample for sample in group.samples if query.lower() in sample.text.lower()]
    if sort == "sample":
        return kept
    if sort == "worker":
        return sorted(kept, key=lambda sample: sample.worker)

    def key(sample: Sample) -> float:
        value = {
            "tokens": float(sample.tokens),
            "reward": sample.reward,
            "advantage": sample.advantage,
            **sample.rewards,
        }
        found = value.get(sort)
        return float("inf") if found is None else -found

    return sorted(kept, key=key)


def changes(before: str, after: str) -> list[tuple[Change, str]]:
    """Returns the words of both texts in runs: those that stayed, went and came."""
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
    """Returns the text without what a terminal would obey: a model may sample any character."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text.expandtabs(4))


def _group(step: int, rows: Sequence[Mapping[str, Any]]) -> Group:
    messages = [table(message) for message in items(rows[0].get("messages"))]
    asked = [str(message.get("content", "")) for message in messages if message.get("role") == "user"]
    return Group(
        step=step,
        prompt_id=clean(str(rows[0].get("prompt_id", "?"))),
        post=clean(asked[-1]) if asked else "",
        references=tuple(clean(str(text)) for text in items(rows[0].get("references"))),
        samples=tuple(_sample(row) for row in rows),
    )


def _sample(row: Mapping[str, Any]) -> Sample:
    stopped = row.get("finish_reason") == "stop"
    return Sample(
        number=whole(row.get("sample")) or 0,
        text=clean(str(row.get("text", ""))),
        tokens=max(len(items(row.get("token_ids"))) - stopped, 0),
        truncated=not stopped,
        rewards={clean(name): number(value) for name, value in table(row.get("rewards")).items()},
        reward=number(row.get("reward")),
        advantage=number(row.get("advantage")),
        worker=clean(str(row.get("worker", ""))),
        version=whole(row.get("policy_version")),
    )
