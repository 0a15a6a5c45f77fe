"""What a step's rollouts look like, computed by hand."""

import math

import numpy as np
import pytest
from support.models import EOS, group

from smolsum.config.sections import Config
from smolsum.grpo.advantages import zero_spread
from smolsum.tasks.tldr.lengths import step_metrics
from smolsum.tasks.tldr.settings import TldrConfig
from smolsum.training.batch import Batch
from smolsum.training.batch import step_metrics as batch_metrics
from smolsum.types import RolloutGroup

NAN = float("nan")
CONFIG = Config(task=TldrConfig(target_tokens=3, tolerance_tokens=1))
# lengths without EOS: 3 and 1; 5 (cut) and 2
GROUPS = [group([5], [[9, 9, 9, EOS], [9, EOS]]), group([6], [[9] * 5, [9, 9, EOS]], stopped=[False, True])]
SCORES = {"length": [[0.0, -1.0], [-0.5, None]], "judge": [[None, None], [None, None]]}
TOTALS = np.array([[1.0, 2.0], [4.0, NAN]])


def metrics(groups: list[RolloutGroup] = GROUPS, totals: np.ndarray = TOTALS) -> dict[str, float]:
    found = batch_metrics(Batch(groups, SCORES, totals, zero_spread(totals)), np.array([[1.0, -1.0], [0.0, 0.0]]))
    return found | step_metrics(groups, CONFIG)


def test_hand_computed() -> None:
    """Every metric of two groups of two, one rollout cut and one reward missing."""
    expected = {
        "advantages/mean": 0.0, "advantages/std": math.sqrt(0.5), "frac_reward_zero_std": 0.5,
        "completions/mean_length": 11 / 4, "completions/min_length": 1.0, "completions/max_length": 5.0,
        "completions/clipped_ratio": 0.25, "completions/mean_terminated_length": 2.0,
        "completions/repeated_trigrams": 0.0, "length/within_tol": 0.5, "length/within_1": 0.5, "length/within_2": 1.0,
        "num_tokens": 14.0, "reward": 7 / 3, "reward_std": math.sqrt(0.5) / 2, "rewards/length/mean": -0.5,
        "rewards/length/std": math.sqrt(1 / 6),
    }  # fmt: skip
    assert metrics() == pytest.approx(expected)


def test_a_mean_of_nothing_is_left_out() -> None:
    """No rollout that ended, no reward that could be computed: no metric, not 0 and not NaN."""
    cut = [group([5], [[9, 9], [9, 9]], stopped=[False, False])]
    got = metrics(cut, np.array([[NAN, NAN]]))
    missing = {"completions/mean_terminated_length", "reward", "reward_std", "rewards/judge/mean", "rewards/judge/std"}
    assert not missing & set(got)
    assert got["completions/clipped_ratio"] == 1.0
    assert all(math.isfinite(value) for value in got.values())


def test_rows_keep_everything() -> None:
    """A row for each rollout, in order, also of a group that is not learnt from; what is missing is None, which JSON
    can write."""
    rows = Batch(GROUPS, SCORES, TOTALS, zero_spread(TOTALS)).rows({1: [0.25, 0.0]})
    assert [row["advantage"] for row in rows] == [None, None, 0.25, 0.0]
    assert [(row["prompt_id"], row["sample"]) for row in rows] == [("p", 0), ("p", 1), ("p", 0), ("p", 1)]
    assert [row["reward"] for row in rows] == [1.0, 2.0, 4.0, None]
    assert rows[2] == {
        "prompt_id": "p", "sample": 0, "text": "", "token_ids": [9] * 5, "finish_reason": "length",
        "rewards": {"length": -0.5, "judge": None}, "reward": 4.0, "advantage": 0.25, "worker": "w",
        "policy_version": 0, "seed": 0, "messages": (), "references": (),
    }  # fmt: skip
    assert ["references" in row for row in rows] == [True, False, True, False]
