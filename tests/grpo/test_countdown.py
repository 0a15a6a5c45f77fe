"""The countdown: which class each token has, its loss against a plain one, in C, in MLX and in chunks, and that it
reaches the lower half of the layers alone."""

from dataclasses import replace
from typing import Any

import pytest
from support.models import EOS, assert_trees_close, build, group, stage

from smolsum.grpo.countdown import EXACT, LEAST, PART, Counted, add_countdown, class_of, codes
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.lower_half import LowerHalf, width_of

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map

POST = [5, 9, 33, 4]
ROLLOUTS = group(POST, [[10, 11, 12, EOS], [20, EOS], [30, 31, EOS]], stopped=[True, True, True]).rollouts
MOST = 60
GROUPS = [
    Counted(
        ROLLOUTS, [(*POST, 3, 2, 7), (*POST, 1, 9, 2, 7), (*POST, 2, 2, 7)], [[40, 39, 38, 37], [9, 8], [0, 0, 0]], MOST
    ),
    Counted(ROLLOUTS[:1], [(8, 41, 3, 60, 7)], [[51, 50, 49, 48]], MOST),
]
STAGE = replace(stage(), countdown=2.0)


def plain(model: nn.Module) -> tuple[Any, float, float]:
    """Gradient and value of the loss as the docstring writes it, and the mean probability of the right class."""
    code = codes(MOST, width_of(model))

    def loss(model: nn.Module) -> tuple[mx.array, mx.array]:
        logps = []
        for one in GROUPS:
            for rollout, ids, classes in zip(one.rollouts, one.prompts_ids, one.classes, strict=True):
                trunk, every = model.model, model.model.layers
                trunk.layers = every[: len(LowerHalf(model, code).layers)]
                hidden = trunk(mx.array([[*ids, *rollout.token_ids[:-1]]]))[0, len(ids) - 1 :]
                trunk.layers = every
                logits = nn.log_softmax(hidden @ code.T)
                logps += [logits[n, c] for n, c in enumerate(classes)]
        return -mx.stack(logps).mean(), mx.exp(mx.stack(logps)).mean()

    (value, prob), gradient = nn.value_and_grad(model, loss)(model)
    return gradient, value.item(), prob.item()


def test_classes_are_exact_where_sentences_end_and_coarse_far_away() -> None:
    lefts = range(LEAST - 5, MOST + 60)
    classes = [class_of(left) for left in lefts]
    assert classes == sorted(classes)
    assert set(classes) == set(range(class_of(lefts[-1]) + 1))
    assert class_of(LEAST - 5) == class_of(LEAST) == 0
    assert class_of(EXACT) == EXACT - LEAST
    assert class_of(EXACT + 1) == class_of(EXACT + PART) == class_of(EXACT) + 1
    assert class_of(EXACT + PART + 1) == class_of(EXACT) + 2


@pytest.mark.parametrize(("most", "width"), [(16, 32), (64, 33), (128, 128), (EXACT, 64), (EXACT + 1, 64)])
def test_codes_tell_every_class_from_the_others(most: int, width: int) -> None:
    code = np.array(codes(most, width))
    assert code.shape == (class_of(most) + 1, width)
    likeness = code @ code.T
    assert (likeness.argmax(axis=1) == np.arange(len(code))).all()
    assert np.diag(likeness) == pytest.approx(likeness[0, 0], rel=1e-3)


@pytest.mark.parametrize("kind", ["qwen2", "lfm2"])
@pytest.mark.parametrize("where", ["C", "MLX"])
def test_it_adds_the_gradient_of_the_loss(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted by the setting, and none for the upper layers."""
    if where == "MLX":
        monkeypatch.setattr(native, "_library", None)
    model = build(kind)
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_countdown(ones, model, GROUPS, STAGE)
    expected, value, prob = plain(model)
    assert metrics == pytest.approx({"countdown/loss": value, "countdown/prob": prob}, rel=1e-4)
    assert_trees_close(gradient, tree_map(lambda one, g: one + 2.0 * g, ones, expected))
    reached = {name.split(".")[2] for name, array in tree_flatten(gradient) if "layers" in name and (array != 1).any()}
    assert reached == ({"0"} if kind == "qwen2" else {"0", "1"}), "the first layer of two, or that with attention"


@pytest.mark.parametrize("chunking", [Chunking(rows=1), Chunking(rows=2), Chunking(rows=4, shared_prefix=False)])
def test_chunks_make_no_difference(chunking: Chunking) -> None:
    model = build("qwen2")
    zeros = tree_map(mx.zeros_like, model.trainable_parameters())
    whole, metrics = add_countdown(zeros, model, GROUPS, STAGE)
    parts, others = add_countdown(zeros, model, GROUPS, STAGE, chunking=chunking)
    assert_trees_close(parts, whole)
    assert others == pytest.approx(metrics, abs=1e-5)
