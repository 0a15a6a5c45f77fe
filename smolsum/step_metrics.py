"""What a step's rollouts look like, under TRL's metric names, and the rows that keep every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from smolsum.collect import Batch
from smolsum.grpo.advantages import zero_spread
from smolsum.tasks.proxies import repeated_trigrams


def rollout_metrics(batch: Batch) -> dict[str, float]:
    """Rewards, lengths and degeneration of all that one step sampled.

    `reward_std` is the mean over groups of the standard deviation within a group; `frac_reward_zero_std` the share of
    groups without any; a signal that is missing everywhere has no mean.
    """
    totals_PG = batch.totals
    rollouts = [rollout for group in batch.groups for rollout in group.rollouts]
    lengths = [rollout.length for rollout in rollouts]
    ended = [rollout.length for rollout in rollouts if not rollout.truncated]
    metrics = {
        "frac_reward_zero_std": float(np.mean(zero_spread(totals_PG))),
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/repeated_trigrams": fmean(repeated_trigrams(rollout.text) for rollout in rollouts),
        "num_tokens": float(sum(len(rollout.token_ids) for rollout in rollouts)),
    }
    if ended:
        metrics["completions/mean_terminated_length"] = fmean(ended)
    present = totals_PG[~np.isnan(totals_PG)]
    if present.size:
        rows = [row[~np.isnan(row)] for row in totals_PG]
        metrics["reward"] = float(present.mean())
        metrics["reward_std"] = fmean(float(row.std(ddof=1)) if row.size > 1 else 0.0 for row in rows)
    for name, rows_PG in batch.scores.items():
        values = [value for row in rows_PG for value in row if value is not None]
        if values:
            metrics[f"rewards/{name}/mean"] = fmean(values)
            metrics[f"rewards/{name}/std"] = pstdev(values)
    return metrics


def advantage_metrics(advantages_PG: Any) -> dict[str, float]:
    """Mean and standard deviation (population) of the advantages that a step learns from."""
    values = np.asarray(advantages_PG, dtype=np.float64)
    return {"advantages/mean": float(values.mean()), "advantages/std": float(values.std())}


def rollout_rows(batch: Batch, advantages: Mapping[int, Sequence[float]]) -> list[dict[str, Any]]:
    """One row for each rollout: prompt, text, token ids, every signal, total, advantage, and where it came from.

    The first row of a group also has what was asked and its references, so that a copied run can be read alone.
    `advantages` by the group's place; a group that is not learnt from has none.
    """
    return [
        {
            "prompt_id": group.prompt.id,
            "sample": g,
            "text": rollout.text,
            "token_ids": list(rollout.token_ids),
            "finish_reason": rollout.finish_reason,
            "rewards": {name: rows[p][g] for name, rows in batch.scores.items()},
            "reward": None if np.isnan(batch.totals[p][g]) else float(batch.totals[p][g]),
            "advantage": advantages[p][g] if p in advantages else None,
            "worker": rollout.worker,
            "policy_version": rollout.policy_version,
            "seed": rollout.seed,
            **({} if g else {"messages": group.prompt.messages, "references": group.prompt.references}),
        }
        for p, group in enumerate(batch.groups)
        for g, rollout in enumerate(group.rollouts)
    ]
