"""The part of the advantages that only the tokens have at which a completion could have ended."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import group
from support.training import trained

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import GrpoConfig
from smolsum.files import read_jsonl
from smolsum.grpo.advantages import group_advantages, step_advantages
from smolsum.grpo.constraints import Bounded
from smolsum.grpo.credit import EndCredit, could_end, sentence_ends
from smolsum.policy.load import load_policy

# isort: split
import mlx.core as mx

LENGTH = [[-0.5, 0.0, -0.25, -1.0], [0.0, 0.0, -0.5, -0.5]]
METEOR = [[0.25, 0.5, 0.75, 0.5], [0.5, 0.25, 0.25, 0.5]]
SCORES: dict[str, Any] = {"length": LENGTH, "meteor": METEOR}
WEIGHTS = {"length": 2.0, "meteor": 1.0}
TOTALS = 2 * np.array(LENGTH) + np.array(METEOR)
NAN = float("nan")


def parts(grpo: GrpoConfig, totals: Any = TOTALS, measured: Any = (), multipliers: Any = ()) -> list[np.ndarray]:
    found = step_advantages(totals, SCORES, WEIGHTS, measured, multipliers, grpo, ["length", "overlong"])
    return [np.array(one) for one in found]


def centred(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(axis=1, keepdims=True)


def deviation(rows: np.ndarray) -> np.ndarray:
    return rows.std(axis=1, ddof=1, keepdims=True)


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_the_part_of_a_signal_is_its_share_of_the_total(scale: Any) -> None:
    """Its centred values over the deviation of the totals: with what the other signals add, it makes the whole."""
    whole, ends = parts(GrpoConfig(advantage_scale=scale, advantage_eps=0.0))
    assert ends == pytest.approx(centred(2 * np.array(LENGTH)) * whole / centred(TOTALS), abs=1e-6)
    assert np.abs(ends).max() > 0.1


def test_the_part_of_a_signal_with_gdpo() -> None:
    """Its advantage in the group, by its weight, over the batch's deviation of the sum."""
    whole, ends = parts(GrpoConfig(advantage_scale="gdpo", advantage_eps=0.0))
    of_length, of_meteor = (np.array(group_advantages(rows, eps=0.0)) for rows in (LENGTH, METEOR))
    spread = (2 * of_length + of_meteor).std(ddof=1)
    assert ends == pytest.approx(2 * of_length / spread, abs=1e-6)
    assert whole - ends == pytest.approx(of_meteor / spread, abs=1e-6)


@pytest.mark.parametrize("method", ["lagrange", "sum"])
def test_a_constraint_on_the_length_belongs_to_the_part(method: Any) -> None:
    """Another constraint does not."""
    on_length, on_other = parse_constraints("length in 9..10: 0.9; meteor >= 0.3")
    values = np.array([[9.0, 20.0, 10.0, 5.0], [10.0, 9.0, 40.0, 10.0]])
    measured = (Bounded(on_length, values, np.full((2, 1), 10.0)), Bounded(on_other, np.array(METEOR), np.ones((2, 1))))
    grpo = GrpoConfig(constraint_method=method, advantage_eps=0.0)
    _, ends = parts(grpo, measured=measured, multipliers=[3.0, 2.0])
    progress = measured[0].progress
    if method == "sum":
        totals = TOTALS + 3 * progress + 2 * np.array(METEOR)
        expected = centred(2 * np.array(LENGTH) + 3 * progress) / deviation(totals)
    else:
        apart = [np.array(group_advantages(rows, eps=0.0)) for rows in (TOTALS, progress, METEOR)]
        spread = (apart[0] + 3 * apart[1] + 2 * apart[2]).std(ddof=1)
        expected = (centred(2 * np.array(LENGTH)) / deviation(TOTALS) + 3 * apart[1]) / spread
    assert ends == pytest.approx(expected, abs=1e-6)


def test_a_rollout_without_a_reward_has_no_part() -> None:
    totals = TOTALS.copy()
    totals[0, 1] = NAN
    whole, ends = parts(GrpoConfig(), totals)
    assert (whole[0, 1], ends[0, 1]) == (0.0, 0.0)
    assert np.isfinite(ends).all()


def test_where_a_completion_could_have_ended() -> None:
    """At its last token, and after the end of a sentence; one that was cut could not at its last."""
    one = group([5], [[7, 3, 8, 9], [7, 3], [6, 7, 8, 8]], stopped=[True, True, False])
    assert could_end(one, frozenset([3])).tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_tokens_have_the_rest_of_the_advantage_everywhere() -> None:
    one = group([5], [[7, 3, 8, 9], [7, 3]])
    credit = EndCredit(mx.array([[2.0, -1.0]]), frozenset([3]))
    found = credit.advantages(0, one, mx.array([3.0, -4.0]))
    assert found.tolist() == [[1.0, 1.0, 3.0, 3.0], [-3.0, -4.0, -3.0, -3.0]]


def test_sentence_ends_of_a_vocabulary() -> None:
    """Full stops, also behind quotes, question marks and ends of lines; no words, no commas."""
    policy = load_policy("builtin:tiny")
    ends = {policy.tokenizer.decode([token]).strip(" ") for token in sentence_ends(policy.tokenizer)}
    assert {".", "!", "?"} <= ends
    assert not {",", "the", "a"} & ends


@pytest.mark.parametrize(("stage", "changes"), [("length", True), ("quality", False)])
def test_the_credit_of_a_stage(stage: str, changes: bool, data: Path, finished: Path, tmp_path: Path) -> None:
    """The update of a stage that credits its ends is another from the same rollouts; where the length earns nothing,
    it is the same."""
    run = trained(data, tmp_path, "ends", **{f"stages__{stage}__length_credit": "ends"})
    first, plain = (read_jsonl(one / "metrics.jsonl") for one in (run, finished))
    assert first[0]["num_tokens"] == plain[0]["num_tokens"]
    assert (first[0]["grad_norm"] != plain[0]["grad_norm"]) == changes
    assert (first[-1]["grad_norm"] != plain[-1]["grad_norm"]) == changes
