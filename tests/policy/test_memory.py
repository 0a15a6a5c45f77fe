"""What an update is expected to take of the memory, and the chunks that keep it within a budget."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
import pytest
from support.models import build

from smolsum.config.sections import Config, EngineConfig, GrpoConfig, OptimizerConfig, StageConfig, TrainConfig
from smolsum.errors import MachineError
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy.cpu.streams import streams
from smolsum.policy.group_gradient import WHOLE, Chunking
from smolsum.policy.memory import GB, MaxLengths, ModelShape, choose_chunking, estimate, shape_of
from smolsum.types import Prompt, Rollout, RolloutGroup

STAGE = StageConfig(
    rewards={"length": 1.0}, steps=1, epochs=1.0, temperature=1.0, learning_rate=1e-6, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip
SIZES = {"hidden_size": 192, "num_hidden_layers": 4, "intermediate_size": 640, "vocab_size": 3000}
SHAPE = ModelShape(
    parameters=500_000_000, trained=500_000_000, largest=136_000_000, weight_bytes=2_000_000_000, itemsize=4,
    layers=24, features=17_000, width=896, heads=14, vocabulary=151_936, shares=True, recomputes=True,
)  # fmt: skip


def config(budget: float = 0.0, prompts: int = 1) -> Config:
    return Config(
        engine=EngineConfig(memory_budget_gb=budget), train=TrainConfig(prompts_per_step=prompts), stages={"a": STAGE}
    )


def needed(chunking: Chunking, lengths: MaxLengths) -> float:
    return sum(estimate(SHAPE, config(), chunking, lengths).values()) / GB


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products keep to one thread: more of them would spin while other tests use the cores."""
    monkeypatch.setattr("smolsum.policy.cpu.streams.blas_threads", lambda count: nullcontext())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("chunking", "prompts", "lengths"),
    [
        (WHOLE, 1, MaxLengths(120, 40)),
        (WHOLE, 2, MaxLengths(120, 40)),
        (WHOLE, 1, MaxLengths(40, 60)),
        (replace(WHOLE, shared_prefix=False), 1, MaxLengths(120, 40)),
        (Chunking(rows=2), 1, MaxLengths(120, 40)),
        (Chunking(rows=2, checkpointing=True), 2, MaxLengths(120, 40)),
    ],
    ids=["whole", "groups", "long completions", "repeated", "chunks", "checkpointing"],
)
def test_the_estimate_is_near_the_measured_peak(chunking: Chunking, prompts: int, lengths: MaxLengths) -> None:
    """Within 25 %, over whole updates with their optimizer."""
    gc.collect()  # what earlier tests have left would be freed in the middle of the measurement
    for stream in streams():
        mx.synchronize(stream)
    held = mx.get_active_memory()
    model = build("qwen2", **SIZES)
    optimizer, tokens = Optimizer(model, OptimizerConfig()), lengths.completion
    groups = [
        RolloutGroup(
            Prompt("p", (), tuple(3 + i % 50 for i in range(lengths.prompt)), ("",), {}),
            tuple(
                Rollout(tuple((g + i) % 60 for i in range(tokens)), (-4.0,) * tokens, "stop", 0, "", g, "")
                for g in range(8)
            ),
        )
        for _ in range(prompts)
    ]
    advantages = mx.array([[float(g) - 3.5 for g in range(8)]] * prompts)
    mx.reset_peak_memory()
    for _ in range(2):
        tree, _ = gradients(model, groups, advantages, GrpoConfig(), STAGE, max_new_tokens=tokens, chunking=chunking)
        optimizer.step(model, tree, 1e-6)
        del tree
    measured = mx.get_peak_memory() - held
    sizes = {"hidden_size": 192, "num_attention_heads": model.args.num_attention_heads, "vocab_size": 3000}
    expected = sum(estimate(shape_of(model, sizes), config(prompts=prompts), chunking, lengths).values())
    assert expected == pytest.approx(measured, rel=0.25)


def test_without_a_budget_nothing_is_cut() -> None:
    """All of a group at once, whatever it takes."""
    assert choose_chunking(SHAPE, config(), MaxLengths(512, 160)) == WHOLE


def test_a_model_that_cannot_share_its_prompt_is_planned_so() -> None:
    """Its estimate is that of the repeated prompt, which is more."""
    repeated = choose_chunking(replace(SHAPE, shares=False), config(), MaxLengths(330, 64))
    assert not repeated.shared_prefix
    assert needed(repeated, MaxLengths(330, 64)) > needed(WHOLE, MaxLengths(330, 64))


def test_a_budget_is_kept_at_the_least_cost() -> None:
    """A budget that the whole update needs changes nothing; a smaller one takes fewer rollouts at a time, then
    recomputed layers; each choice fits."""
    lengths = MaxLengths(330, 64)
    assert choose_chunking(SHAPE, config(needed(WHOLE, lengths) + 0.1), lengths) == WHOLE
    smaller = choose_chunking(SHAPE, config(needed(WHOLE, lengths) - 0.5), lengths)
    assert smaller.rows is not None
    assert not smaller.checkpointing
    smallest = needed(Chunking(rows=1, logits=2_000_000, checkpointing=True), lengths)
    least = choose_chunking(SHAPE, config(smallest + 0.05), lengths)
    assert least.checkpointing
    assert needed(least, lengths) <= smallest + 0.05


def test_a_budget_too_small_for_one_rollout_says_what_would_fit() -> None:
    """The error names the need, and its hint is a budget that is then accepted."""
    lengths = MaxLengths(330, 64)
    with pytest.raises(MachineError, match=r"one rollout at a time needs about \d") as caught:
        choose_chunking(SHAPE, config(1.0), lengths)
    assert caught.value.hint is not None
    budget = float(caught.value.hint.split("memory_budget_gb=")[1].split(",")[0])
    assert choose_chunking(SHAPE, config(budget), lengths).checkpointing
