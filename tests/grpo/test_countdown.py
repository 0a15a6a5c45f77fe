"""The countdown: which class each token has, its loss against a plain one, in C, in MLX and in chunks, and that it
reaches the lower half of the layers alone."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import EOS, adapted, assert_trees_close, build, stage

from smolsum.config.resolve import resolve
from smolsum.errors import UsageError
from smolsum.grpo.countdown import LEAST, Counted, add_countdown, class_of, codes, counted
from smolsum.grpo.setup.prepare import Setup, prepare
from smolsum.policy.cpu import native
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.lower_half import LowerHalf, width_of
from smolsum.tasks import TASKS
from smolsum.tasks.text_metrics import count_words
from smolsum.types import Rollout, RolloutGroup

# isort: split
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map

POST = [5, 9, 33, 4]
TEXTS_IDS = [[10, 11, 12, EOS], [20, EOS], [30, 31, EOS]]
MOST = 60
GROUPS = [
    Counted(
        TEXTS_IDS,
        [(*POST, 3, 2, 7), (*POST, 1, 9, 2, 7), (*POST, 2, 2, 7)],
        [[40, 39, 38, 37], [9, 8], [0, 0, 0]],
        MOST,
    ),
    Counted(TEXTS_IDS[:1], [(8, 41, 3, 60, 7)], [[51, 50, 49, 48]], MOST),
]
STAGE = replace(stage(), countdown=2.0)


def plain(model: nn.Module) -> tuple[Any, float, float]:
    """Gradient and value of the loss as the docstring writes it, and the mean probability of the right class."""
    code = codes(MOST, width_of(model))

    def loss(model: nn.Module) -> tuple[mx.array, mx.array]:
        logps = []
        for one in GROUPS:
            for text, ids, classes in zip(one.texts_ids, one.prompts_ids, one.classes, strict=True):
                trunk, every = model.model, model.model.layers
                trunk.layers = every[: len(LowerHalf(model, code).layers)]
                hidden = trunk(mx.array([[*ids, *text[:-1]]]))[0, len(ids) - 1 :]
                trunk.layers = every
                logits = nn.log_softmax(hidden @ code.T)
                logps += [logits[n, c] for n, c in enumerate(classes)]
        return -mx.stack(logps).mean(), mx.exp(mx.stack(logps)).mean()

    (value, prob), gradient = nn.value_and_grad(model, loss)(model)
    return gradient, value.item(), prob.item()


def test_every_number_has_a_class_down_to_the_least() -> None:
    assert [class_of(left) for left in range(LEAST - 2, LEAST + 3)] == [0, 0, 0, 1, 2]
    assert class_of(MOST) == MOST - LEAST


@pytest.mark.parametrize(("most", "width"), [(16, 32), (64, 33), (128, 128), (600, 64)])
def test_codes_tell_every_class_from_the_others(most: int, width: int) -> None:
    code = np.array(codes(most, width))
    assert code.shape == (class_of(most) + 1, width)
    likeness = code @ code.T
    assert (likeness.argmax(axis=1) == np.arange(len(code))).all()
    assert np.diag(likeness) == pytest.approx(likeness[0, 0], rel=1e-3)


@pytest.mark.parametrize("kind", ["qwen2", "lfm2", "qwen2 with adapters"])
@pytest.mark.parametrize("where", ["C", "MLX"])
def test_it_adds_the_gradient_of_the_loss(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted by the setting, and none for the upper layers."""
    if where == "MLX":
        monkeypatch.setattr(native, "_library", None)
    model = build(kind.split()[0])
    if "adapters" in kind:
        adapted(model, 2)
    ones = tree_map(mx.ones_like, model.trainable_parameters())
    gradient, metrics = add_countdown(ones, model, GROUPS, STAGE)
    expected, value, prob = plain(model)
    assert metrics == pytest.approx({"countdown/loss": value, "countdown/prob": prob}, rel=1e-4)
    assert_trees_close(gradient, tree_map(lambda one, g: one + 2.0 * g, ones, expected))
    changed = [name for name, array in tree_flatten(gradient) if (array != 1).any()]
    reached = {place for name in changed for place in re.findall(r"layers\.(\d)", name)}
    assert reached == ({"0", "1"} if kind == "lfm2" else {"0"}), "the first layer of two, or that with attention"


@pytest.mark.parametrize("chunking", [Chunking(rows=1), Chunking(rows=2), Chunking(rows=4, shared_prefix=False)])
def test_chunks_make_no_difference(chunking: Chunking) -> None:
    model = build("qwen2")
    zeros = tree_map(mx.zeros_like, model.trainable_parameters())
    whole, metrics = add_countdown(zeros, model, GROUPS, STAGE)
    parts, others = add_countdown(zeros, model, GROUPS, STAGE, chunking=chunking)
    assert_trees_close(parts, whole)
    assert others == pytest.approx(metrics, abs=1e-5)


TEXTS = ("My uncle raised my rent. I am 26.", "I wrote him a letter and got no answer. Should I go?")


def batch_of(setup: Setup, seed: int = 0) -> Any:
    """The first prompt with completions, drawn from seeds; nothing else of a batch is read."""
    prompt = setup.prompts["train"][0]
    ids = [(*setup.policy.tokenizer.encode(text, add_special_tokens=False), setup.policy.end_id) for text in TEXTS]
    rollouts = [
        Rollout(own, (-1.0,) * len(own), "stop", 0, "local", seed + n, text)
        for n, (own, text) in enumerate(zip(ids, TEXTS, strict=True))
    ]
    return SimpleNamespace(groups=[RolloutGroup(prompt, rollouts)])


@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_each_completion_counts_down_from_a_length_of_its_own(unit: str) -> None:
    """Under the prompt that asks for it, in the unit of the targets, and from another one at the next step, though a
    reference has the same seed there."""
    sets = ["task.targets=8-96", f"task.unit={unit}"]
    setup = prepare(resolve(TASKS, model="tiny", strategy="finetuned", sets=sets).config)
    tokenizer = setup.policy.tokenizer
    assert setup.writer
    places = [(batch_of(setup), 0), (batch_of(setup, 2), 0), (batch_of(setup), 1)]
    drawn = [counted(batch, setup, setup.writer.targets, step)[0] for batch, step in places]
    assert len({ids for one in drawn for ids in one.prompts_ids}) == 6
    found = drawn[0]
    assert found.most == 96
    for text, ids, classes in zip(found.texts_ids, found.prompts_ids, found.classes, strict=True):
        target = int(re.findall(rf"(\d+) {unit}", tokenizer.decode(list(ids)))[-1])
        before = [list(text[:n]) for n in range(len(text))]
        got = [len(own) if unit == "tokens" else count_words(tokenizer.decode(own)) for own in before]
        assert classes == [class_of(target - n) for n in got]


def test_a_completion_is_continued_by_the_others_of_its_group() -> None:
    """Without the ends between them, as far as a completion may go, and no further than what is still told apart."""
    sets = ["task.targets=8-24", "sampling.max_new_tokens=28"]
    config = resolve(TASKS, model="tiny", strategy="finetuned", sets=sets).config
    setup = prepare(config)
    batch = batch_of(setup)
    first, second = (rollout.token_ids for rollout in batch.groups[0].rollouts)
    assert setup.writer

    def texts(setup: Setup) -> Any:
        (found,) = counted(batch, setup, setup.writer.targets, 0)  # type: ignore[union-attr]
        return [tuple(ids) for ids in found.texts_ids]

    assert texts(setup) == [(first[:-1] + second)[:28], (second[:-1] + first)[:28]]
    far = replace(setup, config=replace(config, sampling=replace(config.sampling, max_new_tokens=200)))
    assert texts(far) == [(first[:-1] + second)[: 24 - LEAST + 1], (second[:-1] + first)[: 24 - LEAST + 1]]
    cut = replace(batch.groups[0].rollouts[0], token_ids=first[:-1], finish_reason="length")
    batch.groups[0] = RolloutGroup(batch.groups[0].prompt, (cut, *batch.groups[0].rollouts[1:]))
    assert texts(setup)[0] == (first[:-1] + second)[:28]


def test_with_one_target_prompts_stay() -> None:
    setup = prepare(resolve(TASKS, model="tiny", strategy="finetuned").config)
    (found,) = counted(batch_of(setup), setup, None, 0)
    assert {*found.prompts_ids} == {setup.prompts["train"][0].token_ids}
    assert list(found.classes[0][:2]) == [class_of(64), class_of(63)]


def test_adapters_that_reach_no_lower_layer_are_refused() -> None:
    sets = ["model.adapter=lora", "optimizer.learning_rate=1e-3", "grpo.countdown=1"]
    prepare(resolve(TASKS, model="tiny", strategy="finetuned", sets=sets).config)
    config = resolve(TASKS, model="tiny", strategy="finetuned", sets=[*sets, "lora.layers=2"]).config
    with pytest.raises(UsageError, match=r"lower half .* lora\.layers = 2") as refusal:
        prepare(config)
    assert "lora.layers=0" in str(refusal.value.hint)
