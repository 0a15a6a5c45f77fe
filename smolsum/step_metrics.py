"""What a step's rollouts look like, under TRL's metric names, and the rows that keep every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from smolsum.config import Config
from smolsum.rollout.records import RolloutGroup
from smolsum.tasks.proxies import repeated_trigrams

Scores = Mapping[str, Sequence[Sequence[float | None]]]


def rollout_metrics(
    groups: Sequence[RolloutGroup], scores: Scores, totals_PG: Any, zero_P: Any, config: Config
) -> dict[str, float]:
    """Rewards, lengths and degeneration of one step.

    `reward_std` is the mean over groups of the standard deviation within a group; `frac_reward_zero_std` the share of
    groups without any; a signal that is missing everywhere has no mean.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    low, high = (config.task.target_tokens + sign * config.task.tolerance_tokens for sign in (-1, 1))
    metrics = {
        "frac_reward_zero_std": float(np.mean(zero_P)),
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/repeated_trigrams": fmean(repeated_trigrams(rollout.text) for rollout in rollouts),
        "length/within_tol": fmean(low <= n <= high for n in lengths),
        "num_tokens": float(sum(len(rollout.token_ids) for rollout in rollouts)),
    }
    if ended:
        metrics["completions/mean_terminated_length"] = fmean(ended)
    present = totals_PG[~np.isnan(totals_PG)]
    if present.size:
        rows = [row[~np.isnan(row)] for row in totals_PG]
        metrics["reward"] = float(present.mean())
        metrics["reward_std"] = fmean(float(row.std(ddof=1)) if row.size > 1 else 0.0 for row in rows)
    for name, rows_PG in scores.items():
        values = [value for row in rows_PG for value in row if value is not None]
        if values:
            metrics[f"rewards/{name}/mean"] = fmean(values)
            metrics[f"rewards/{name}/std"] = pstdev(values)
    return metrics


def rollout_rows(
    groups: Sequence[RolloutGroup], scores: Scores, totals_PG: Any, advantages_PG: Any
) -> list[dict[str, Any]]:
    """One row for each rollout: prompt, text, token ids, every signal, total, advantage, and where it came from."""
    return [
        {
            "prompt_id": group.prompt.id,
            "sample": g,
            "text": rollout.text,
            "token_ids": list(rollout.token_ids),
            "finish_reason": rollout.finish_reason,
            "rewards": {name: rows[p][g] for name, rows in scores.items()},
            "reward": None if np.isnan(totals_PG[p][g]) else float(totals_PG[p][g]),
            "advantage": float(advantages_PG[p][g].item()),
            "worker": rollout.worker,
            "policy_version": rollout.policy_version,
            "seed": rollout.seed,
        }
        for p, group in enumerate(groups)
        for g, rollout in enumerate(group.rollouts)
    ]
