"""The loss of completions learnt in hindsight: its value by hand, its gradient against a plain one, in C, in MLX and in
chunks; and which ends are chosen for which lengths."""

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
from support.models import EOS, assert_trees_close, build, group, stage

from smolsum.config.stage import StageConfig
from smolsum.grpo.hindsight import Relabelled, add_hindsight, end_loss
from smolsum.grpo.loss import tally_metrics
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import WHOLE, Chunking
from smolsum.policy.logprobs import group_logprobs

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

POST = [5, 9, 33, 4]
ROLLOUTS = group(POST, [[10, 11, 12, EOS], [20, EOS], [30, 31, EOS]], stopped=[True, True, True]).rollouts
GROUPS = [
    Relabelled(ROLLOUTS, [(*POST, 3, 2, 7), (*POST, 1, 9, 2, 7), (*POST, 2, 2, 7)], [True, False, True]),
    Relabelled(ROLLOUTS[:1], [(8, 41, 3, 60, 7)], [False]),
]
STAGE = replace(stage(), hindsight=2.0)
TEXTS = replace(STAGE, hindsight_of="texts")
WEIGHTS = [0.5, 2.0, 0.25]


def plain(model: nn.Module, of: str = "ends") -> tuple[Any, float]:
    """Gradient and value of the objective as the docstring writes it, each completion behind its whole prompt."""

    def loss(model: nn.Module) -> mx.array:
        total, weights = mx.array(0.0), [*WEIGHTS, 1.0]
        for one in GROUPS:
            for rollout, ids, right in zip(one.rollouts, one.prompts_ids, one.right, strict=True):
                logps = group_logprobs(model, ids, [rollout.token_ids], shared_prefix=False)[0][0]
                logp = logps.sum() if of == "texts" else logps[rollout.length]
                weight = weights.pop(0) if of == "texts" else 1.0
                total = total + weight * (logp if right or of == "texts" else mx.log(1 - mx.exp(logp)))
        return -total / 12

    value, gradient = nn.value_and_grad(model, loss)(model)
    return gradient, value.item()


def test_loss_is_what_a_hand_computes() -> None:
    """A right end, one that is too early, and one that does not count."""
    logp, right, counted = mx.log(mx.array([0.25, 0.75, 0.1])), mx.array([1.0, 0.0, 1.0]), mx.array([1.0, 1.0, 0.0])
    loss, tally = end_loss(logp, right, counted, rollouts=8)
    assert loss.item() == pytest.approx(-(log(0.25) + log(1 - 0.75)) / 8, rel=1e-5)
    found = {name: value.item() for name, value in tally_metrics(tally).items()}
    assert found == pytest.approx(
        {"hindsight/early_frac": 0.5, "hindsight/end_prob": 0.25, "hindsight/early_prob": 0.75}, rel=1e-5
    )


def test_a_certain_end_that_is_too_early_has_a_finite_gradient() -> None:
    """Which pushes its logit down with the strength of its probability."""

    def loss(logit: mx.array) -> mx.array:
        logp = nn.log_softmax(mx.stack([logit, mx.array(0.0)]))[:1]
        return end_loss(logp, mx.zeros(1), mx.ones(1), rollouts=1)[0]

    for logit in (2.0, 8.0):
        assert mx.grad(loss)(mx.array(logit)).item() == pytest.approx(1 / (1 + exp(-logit)), rel=1e-3)
    strong, stronger = (mx.grad(loss)(mx.array(logit)).item() for logit in (9.5, 11.0))
    assert 1 > strong > stronger > 0, "less where rounding would have the last word, and never nothing"


@pytest.mark.parametrize("kind", ["qwen2", "lfm2"])
@pytest.mark.parametrize("where", ["C", "MLX"])
def test_it_adds_the_gradient_of_the_objective(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted by the setting, in C and in MLX, with prompts of unequal length and one pass over what they share."""
    if where == "MLX":
        monkeypatch.setattr(native, "_library", None)
    model = build(kind)
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_hindsight(ones, model, GROUPS, STAGE, rollouts=12)
    expected, value = plain(model)
    assert metrics["hindsight/loss"] == pytest.approx(value, abs=1e-5)
    assert metrics["hindsight/copies"] == 4
    assert metrics["hindsight/copies_frac"] == pytest.approx(4 / 12)
    assert metrics["hindsight/early_frac"] == pytest.approx(0.5)
    assert_trees_close(gradient, tree_map(lambda one, g: one + 2.0 * g, ones, expected))


@pytest.mark.parametrize("where", ["C", "MLX"])
def test_texts_add_the_gradient_of_all_their_tokens(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "MLX":
        monkeypatch.setattr(native, "_library", None)
    model = build("qwen2")
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    groups = [replace(GROUPS[0], weights=WEIGHTS), GROUPS[1]]
    gradient, metrics = add_hindsight(ones, model, groups, TEXTS, rollouts=12)
    expected, value = plain(model, "texts")
    lengths = [len(rollout.token_ids) for one in GROUPS for rollout in one.rollouts]
    tokens = sum(weight * length for weight, length in zip([*WEIGHTS, 1.0], lengths, strict=True))
    assert metrics.pop("hindsight/loss") == pytest.approx(value, rel=1e-5)
    assert metrics.pop("hindsight/token_logp") == pytest.approx(-value * 12 / tokens, rel=1e-5)
    assert metrics == {"hindsight/copies": 4, "hindsight/copies_frac": pytest.approx(4 / 12)}
    assert_trees_close(gradient, tree_map(lambda one, g: one + 2.0 * g, ones, expected))


@pytest.mark.parametrize("stage", [STAGE, TEXTS])
@pytest.mark.parametrize("chunking", [Chunking(rows=1), Chunking(rows=2), Chunking(rows=4, shared_prefix=False)])
def test_chunks_make_no_difference(chunking: Chunking, stage: StageConfig) -> None:
    """Whatever number of rows memory allows."""
    model = build("qwen2")
    zeros = tree_map(mx.zeros_like, model.trainable_parameters())
    whole, metrics = add_hindsight(zeros, model, GROUPS, stage, rollouts=12, chunking=WHOLE)
    parts, others = add_hindsight(zeros, model, GROUPS, stage, rollouts=12, chunking=chunking)
    assert_trees_close(parts, whole)
    assert others == pytest.approx(metrics, abs=1e-5)


@pytest.mark.parametrize("right", [True, False])
def test_the_probability_of_ends_that_are_not_there_is_missing(right: bool) -> None:
    model = build("qwen2")
    zeros = tree_map(mx.zeros_like, model.trainable_parameters())
    group = Relabelled(ROLLOUTS[:1], [POST], [right])
    _, metrics = add_hindsight(zeros, model, [group], STAGE, rollouts=1)
    there, missing = ("end", "early") if right else ("early", "end")
    assert metrics[f"hindsight/{there}_prob"] > 0
    assert f"hindsight/{missing}_prob" not in metrics


def test_without_copies_the_gradient_stays() -> None:
    model = build("qwen2")
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_hindsight(ones, model, [], STAGE, rollouts=12)
    assert gradient is ones
    assert metrics == {"hindsight/copies": 0.0, "hindsight/copies_frac": 0.0}
