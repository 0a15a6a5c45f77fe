"""The lengths that prompts ask for: one for all, or one for each prompt, drawn from `task.targets`.

What a prompt asks for stands in its metadata under `TARGET`. A draw is a pure function of what it is for: evaluations
draw by split and prompt alone, so that every evaluation, of any run and seed, asks a prompt for the same length;
training draws by the run's seed, the stage, the step and the prompt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any, Literal, Protocol

from smolsum.errors import UsageError

TARGET = "target"
"""the key of a prompt's metadata with the length that it asks for; a column of that name in the data is replaced"""
GOT = "got"
"""the column of an evaluation's scores with the length that a completion has, in `task.unit`, next to that of `TARGET`
"""
TOKENS = "tokens"
Unit = Literal["tokens", "words", "sentences"]
MOST = 100_000
"""targets of a run"""
COARSE = 4
"""targets that a curriculum begins with"""
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?:/(\d{1,7}))?)?")


class LengthSettings(Protocol):
    """The settings of a task whose completions have a length to reach."""

    @property
    def target_tokens(self) -> int: ...

    @property
    def tolerance_tokens(self) -> int: ...


@dataclass(frozen=True)
class Targets:
    """The targets of a run, ascending: all of them, and those that training draws."""

    every: tuple[int, ...]
    trained: tuple[int, ...]

    @property
    def unseen(self) -> tuple[int, ...]:
        """Those that training never draws."""
        known = set(self.trained)
        return tuple(target for target in self.every if target not in known)

    def evaluated(self, split: str, prompt_id: str) -> int:
        """Return what an evaluation asks a prompt for."""
        return self.every[lot("evaluation", split, prompt_id) % len(self.every)]

    def nearest(self, length: int) -> int:
        """Return the trained target nearest to a length, of two the smaller."""
        return min(self.trained, key=lambda target: (abs(target - length), target))

    def at(self, progress: float) -> Targets:
        """Return those of a curriculum from coarse to fine: `COARSE` trained targets, spread evenly from the least to
        the greatest, at the progress 0, twice as many intervals with each equal part of the way, and all at 1."""
        last, intervals = len(self.trained) - 1, COARSE - 1
        levels = ceil(log2(last / intervals)) if last > intervals else 0
        level = floor(progress * levels)
        if level >= levels:
            return self
        parts = intervals * 2**level
        return Targets(self.every, tuple(self.trained[round(n * last / parts)] for n in range(parts + 1)))

    def drawn(self, *place: int | str) -> int:
        """Return what training asks for at a place: seed, stage, step and prompt."""
        return self.trained[lot("training", *place) % len(self.trained)]


def parse_targets(text: str, key: str) -> tuple[int, ...]:
    """Return the targets of a setting, ascending and each once: `16,32,64`, a range `16-128`, or a range with a step
    `18-126/3`, in any mixture. Raises UsageError, which names the setting `key`, for another text."""
    found = set[int]()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        low, high, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, 0, 1)
        if not 1 <= low <= high or step < 1:
            raise UsageError(
                f"{key} = {text!r}: {part.strip()!r} is neither a length of 1 or more nor a range of such lengths",
                hint=f"--set {key}=16-128, {key}=16,32,64, or with a step {key}=18-126/3",
            )
        if (high - low) // step + len(found) >= MOST:
            raise UsageError(f"{key} = {text!r} has more than {MOST:,} targets", hint=f"--set {key}=16-128")
        found |= set(range(low, high + 1, step))
    return tuple(sorted(found))


def make_targets(targets: str, held_out: str) -> Targets:
    """Return the targets of `task.targets` and `task.held_out_targets`. Raises UsageError where one cannot be read, and
    where targets are held out that are not among them, or all are."""
    every = parse_targets(targets, "task.targets")
    unseen = set(parse_targets(held_out, "task.held_out_targets")) if held_out else set[int]()
    if strange := sorted(unseen - set(every)):
        raise UsageError(
            f"task.held_out_targets has {strange[0]}, which is not among task.targets = {targets}",
            hint="hold out some of the targets, such as every third: --set task.targets=16-128"
            " --set task.held_out_targets=18-126/3; to evaluate a trained model at other lengths, hold out none:"
            " --set task.held_out_targets=",
        )
    trained = tuple(target for target in every if target not in unseen)
    if not trained:
        raise UsageError(
            "task.held_out_targets holds out every target, so that none is left to train",
            hint="--set task.targets=16-128 --set task.held_out_targets=18-126/3; to evaluate a trained model at such"
            " a length alone, hold out none: --set task.held_out_targets=",
        )
    return Targets(every, trained)


def curriculum_progress(step: int, steps: int, share: float) -> float:
    """Return how far a curriculum over the first `share` of a stage's steps is at a step (from 0): from 0 to 1, and 1
    where the share is 0."""
    return min(1.0, step / (share * steps)) if share else 1.0


def target_of(metadata: Mapping[str, Any], task: LengthSettings) -> int:
    """Return the length that a prompt with this metadata asks for."""
    if not getattr(task, "targets", ""):
        return task.target_tokens
    target: int = metadata[TARGET]
    return target


def tolerance_of(target: int, task: LengthSettings) -> int:
    """Return the distance that still counts as on target: `tolerance_share` of the target, at least 1, where the
    setting is above 0; else `tolerance_tokens`."""
    return tolerance(target, task.tolerance_tokens, getattr(task, "tolerance_share", 0.0))


def tolerance(target: int, fixed: int, share: float) -> int:
    """Return `share` of a target, at least 1, or where the share is 0 the `fixed` distance."""
    return max(1, round(share * target)) if share else fixed


def lot(*place: int | str) -> int:
    """Return a number that follows from its place alone."""
    # not by hash(), which is another in each process
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "big")
