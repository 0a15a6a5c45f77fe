"""Rollouts between the ranks of one training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from smolsum.policy import ranks
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup
from smolsum.rollout.source import Asked


def exchanged(mine: Sequence[RolloutGroup], prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups of all prompts, from what each rank sampled of its share (`ranks.share`)."""
    if ranks.alone():
        return list(mine)
    shares = ranks.gathered(_plain(mine))
    n = len(shares)
    return [_group(prompt, shares[place % n][place // n]) for place, prompt in enumerate(prompts)]


def from_first(groups: Sequence[RolloutGroup] | None, prompts: Sequence[Prompt]) -> list[RolloutGroup]:
    """The groups that the first rank has; the others have none."""
    if ranks.alone():
        return list(groups or [])
    rows = ranks.gathered(_plain(groups or []))[0]
    return [_group(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]


class Receiver:
    """The source of a rank whose first rank has workers; see `smolsum.rollout.source.Source`."""

    depth = 0

    def publish(self, version: int, *, always: bool = False) -> None:
        """The first rank's work."""

    def ahead(self, asked: Asked) -> None:
        """The first rank's work."""

    def sample(self, asked: Asked) -> list[RolloutGroup]:
        """What the first rank's workers sampled."""
        return from_first(None, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """None: the first rank writes them."""
        return {}

    def close(self) -> None:
        """Nothing was taken."""


def _plain(groups: Sequence[RolloutGroup]) -> list[list[dict[str, Any]]]:
    return [[asdict(rollout) for rollout in group.rollouts] for group in groups]


def _group(prompt: Prompt, rows: Sequence[dict[str, Any]]) -> RolloutGroup:
    return RolloutGroup(prompt, tuple(Rollout(**(row | _tuples(row))) for row in rows))


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) for name in ("token_ids", "logprobs")}
