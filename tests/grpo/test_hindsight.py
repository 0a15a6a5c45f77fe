"""The loss of relabelled completions: its value by hand, its gradient against a plain one, and that pairs stay together
however a group is cut."""

from math import exp, log
from typing import Any

import pytest
from support.models import EOS, assert_trees_close, build, group, stage

from smolsum.config.sections import GrpoConfig
from smolsum.grpo.hindsight import Relabelled, add_hindsight, hindsight_loss
from smolsum.grpo.loss import tally_metrics
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import WHOLE, Chunking
from smolsum.policy.logprobs import group_logprobs
from smolsum.types import Rollout

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

POST = [5, 9, 33, 4]
ASKED = (*POST, 63, 2, 7)
ROLLOUTS = group(POST, [[10, 11, 12, EOS], [20, EOS], [30, 31, EOS]], stopped=[True, True, True]).rollouts
GROUPS = [
    Relabelled(ASKED, ROLLOUTS, [(*POST, 3, 2, 7), (*POST, 1, 9, 2, 7), (*POST, 2, 2, 7)], [0.5, 1.0, 0.25]),
    Relabelled((8, 41, 3, 22, 7), ROLLOUTS[:1], [(8, 41, 3, 60, 7)], [0.75]),
]


def config(**changes: Any) -> GrpoConfig:
    return GrpoConfig(hindsight=2.0, **changes)


def plain(model: nn.Module, *, train_eos: bool = True) -> tuple[Any, float]:
    """Gradient and value of the objective as the docstring writes it, each completion behind its whole prompt."""

    def loss(model: nn.Module) -> mx.array:
        total = mx.array(0.0)
        for one in GROUPS:
            for rollout, own, gain in zip(one.rollouts, one.prompts_ids, one.gains, strict=True):
                margin = whole(model, own, rollout) - whole(model, one.asked_ids, rollout)
                total = total + gain * mx.log(mx.sigmoid(margin))
        return -total / 12

    def whole(model: nn.Module, ids: Any, rollout: Rollout) -> mx.array:
        kept = rollout.token_ids if train_eos else rollout.token_ids[:-1]
        return group_logprobs(model, ids, [kept], shared_prefix=False)[0].sum()

    value, gradient = nn.value_and_grad(model, loss)(model)
    return gradient, value.item()


def test_loss_is_what_a_hand_computes() -> None:
    """Two pairs with margins of 1 and -2 nats and gains of 0.5 and 1, and one that does not count, over 8 rollouts."""
    own, asked = mx.array([-10.0, -12.0, -3.0]), mx.array([-11.0, -10.0, -9.0])
    loss, tally = hindsight_loss(own, asked, mx.array([0.5, 1.0, 9.0]), mx.array([1.0, 1.0, 0.0]), rollouts=8)
    assert loss.item() == pytest.approx((0.5 * log(1 + exp(-1)) + log(1 + exp(2))) / 8, rel=1e-6)
    found = {name: value.item() for name, value in tally_metrics(tally).items()}
    assert found["hindsight/gain"] == pytest.approx(0.75)
    assert found["hindsight/margin"] == pytest.approx(-0.5)
    assert found["hindsight/accuracy"] == pytest.approx(0.5)
    assert found["hindsight/weight"] == pytest.approx((1 / (1 + exp(1)) + 1 / (1 + exp(-2))) / 2, rel=1e-6)


def test_a_policy_that_does_not_read_the_length_gets_two_policy_gradients() -> None:
    """With equal log-probs the gradient by them is half the gain, up for the prompt that asks for the length, down for
    the other, so that what both have in common cancels."""
    logp = mx.array([-10.0, -20.0])

    def loss(own: mx.array, asked: mx.array) -> mx.array:
        return hindsight_loss(own, asked, mx.array([0.5, 1.0]), mx.ones(2), rollouts=2)[0]

    up, down = mx.grad(loss, argnums=(0, 1))(logp, logp)
    assert up.tolist() == pytest.approx([-0.125, -0.25])
    assert down.tolist() == pytest.approx([0.125, 0.25])


@pytest.mark.parametrize("kind", ["qwen2", "lfm2"])
@pytest.mark.parametrize("where", ["C", "MLX"])
@pytest.mark.parametrize("train_eos", [True, False])
def test_it_adds_the_gradient_of_the_objective(
    kind: str, where: str, train_eos: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighted by the setting, in C and in MLX, with prompts of unequal length and one pass over what they share."""
    if where == "MLX":
        monkeypatch.setattr(native, "_library", None)
    model = build(kind)
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_hindsight(ones, model, GROUPS, config(train_eos=train_eos), stage(), rollouts=12)
    expected, value = plain(model, train_eos=train_eos)
    assert metrics["hindsight/loss"] == pytest.approx(value, abs=1e-5)
    assert metrics["hindsight/copies"] == 4
    assert metrics["hindsight/copies_frac"] == pytest.approx(4 / 12)
    assert_trees_close(gradient, tree_map(lambda one, g: one + 2.0 * g, ones, expected))


@pytest.mark.parametrize("chunking", [Chunking(rows=1), Chunking(rows=3), Chunking(rows=4, shared_prefix=False)])
def test_pairs_stay_together_in_chunks(chunking: Chunking) -> None:
    """Whatever number of rows memory allows."""
    model = build("qwen2")
    zeros = tree_map(mx.zeros_like, model.trainable_parameters())
    whole, metrics = add_hindsight(zeros, model, GROUPS, config(), stage(), rollouts=12, chunking=WHOLE)
    parts, others = add_hindsight(zeros, model, GROUPS, config(), stage(), rollouts=12, chunking=chunking)
    assert_trees_close(parts, whole)
    assert others == pytest.approx(metrics, abs=1e-5)


def test_without_copies_the_gradient_stays() -> None:
    model = build("qwen2")
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_hindsight(ones, model, [], config(), stage(), rollouts=12)
    assert gradient is ones
    assert metrics == {"hindsight/copies": 0.0, "hindsight/copies_frac": 0.0}
