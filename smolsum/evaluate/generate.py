"""Greedy completions of a whole split, each measured by its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smolsum.config import Config
from smolsum.policy.generate import generate
from smolsum.policy.load import Policy
from smolsum.rollout.local import WORKER, decode
from smolsum.rollout.records import Prompt, Rollout, RolloutGroup


def greedy(policy: Policy, prompts: Sequence[Prompt], config: Config, *, version: int) -> list[RolloutGroup]:
    """One greedy completion for each prompt, `train.eval_batch` prompts at a time; the longest prompts first, so that
    memory peaks early."""
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i].token_ids), i))
    groups: dict[int, RolloutGroup] = {}
    for start in range(0, len(order), config.train.eval_batch):
        chosen = order[start : start + config.train.eval_batch]
        completions = generate(
            policy.model,
            [prompts[i].token_ids for i in chosen],
            [[0]] * len(chosen),
            eos_ids=policy.eos_ids,
            temperature=0.0,
            max_new_tokens=config.sampling.max_new_tokens,
        )
        for i, (c,) in zip(chosen, completions, strict=True):
            text = decode(policy, c.token_ids)
            groups[i] = RolloutGroup(
                prompts[i], (Rollout(c.token_ids, c.logprobs, c.finish_reason, version, WORKER, 0, text),)
            )
    return [groups[i] for i in range(len(prompts))]


def measured(
    groups: Sequence[RolloutGroup], measure: Callable[[Prompt, Rollout], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each greedy completion: its id, text and metrics."""
    return [{"id": g.prompt.id, "text": g.rollouts[0].text, **measure(g.prompt, g.rollouts[0])} for g in groups]
