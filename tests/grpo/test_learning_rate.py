"""The default learning rate by size and adapter, and its course by hand."""

import math
from dataclasses import replace

import pytest
from support.models import build
from support.refusals import refuses

from smolsum.config.sections import Config, LoraConfig, ModelConfig, OptimizerConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.learning_rate import choose_rates, default_rate, learning_rate
from smolsum.policy.lora import add_adapters, count_parameters, quantise

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten


def stage(schedule: str, warmup: int = 0) -> StageConfig:
    return StageConfig({}, 10, 1.0, 1.0, learning_rate=8.0, schedule=schedule, warmup_steps=warmup, beta=0.0)


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [8.0] * 6),
        ("linear", 0, [8.0, 8 * 5 / 6, 8 * 4 / 6, 8 * 3 / 6, 8 * 2 / 6, 8 / 6]),
        ("constant", 2, [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        ("linear", 2, [4.0, 8.0, 8.0, 6.0, 4.0, 2.0]),
        ("cosine", 2, [4.0, 8.0, 8.0, 4 * (1 + math.sqrt(0.5)), 4.0, 4 * (1 - math.sqrt(0.5))]),
        ("cosine", 6, [8 / 6, 16 / 6, 4.0, 32 / 6, 40 / 6, 8.0]),
        ("linear", 12, [8 / 12, 16 / 12, 2.0, 32 / 12, 40 / 12, 4.0]),
        *((schedule, 0, [8.0]) for schedule in ("constant", "linear", "cosine")),
    ],
)
def test_learning_rates_by_hand(schedule: str, warmup: int, expected: list[float]) -> None:
    """A warm-up that reaches the peak on its last step, then the schedule, never 0 before the end; a stage of one step
    has its rate, and one whose rate is still 0 would train nothing in silence."""
    steps = len(expected)
    assert [learning_rate(stage(schedule, warmup), step, steps) for step in range(steps)] == pytest.approx(expected)
    with refuses("learning rate", "choose_rates"):
        learning_rate(replace(stage(schedule, warmup), learning_rate=0.0), 0, steps)


@pytest.mark.parametrize(
    ("parameters", "lora", "rate", "why"),
    [
        (400_000, None, 3e-4, "400 k"), (2_000_000, None, 3e-4, "2 M"), (20_000_000, None, 5e-5, "20 M"),
        (135_000_000, None, 7e-6, "135 M"), (494_000_000, None, 2e-6, "494 M"), (7_000_000_000, None, 1e-6, ""),
        (1_000_000, LoraConfig(rank=8, scale=4.0), 1e-3, "rank 8, scale 4"),
        (1_000_000, LoraConfig(rank=8, scale=20.0), 2e-4, "rank 8, scale 20"),
        (494_000_000, LoraConfig(rank=16, scale=2.0), 2e-5, "rank 16, scale 2"),
        (494_000_000, LoraConfig(rank=8, scale=4.0), 2e-5, "494 M"),
        (494_000_000, LoraConfig(rank=8, scale=20.0), 4e-6, "494 M"),
    ],
)  # fmt: skip
def test_default_rate(parameters: int, lora: LoraConfig | None, rate: float, why: str) -> None:
    """It falls with the size, meets the study's rate at its model's size, and has a floor and a ceiling. Of adapters it
    is ten times that of all weights for the usual factor 32 / rank, whatever the rank; less for a larger factor, and
    for small models."""
    assert default_rate(parameters, lora)[0] == rate
    assert why in default_rate(parameters, lora)[1]


def config(**settings: float) -> Config:
    return Config(optimizer=OptimizerConfig(**settings), stages={"length": replace(stage("linear"), learning_rate=0.0)})


def test_only_rates_of_0_are_chosen() -> None:
    """A number stays, in the run's section and in a stage; a configuration without 0 stays as it is."""
    model = build("qwen2")
    rate = default_rate(count_parameters(model))[0]
    chosen = choose_rates(config(), model)
    assert (chosen.optimizer.learning_rate, chosen.stages["length"].learning_rate) == (rate, rate)
    own = replace(config(learning_rate=3e-5), stages={"length": stage("linear")})
    assert choose_rates(own, model) is own
    mixed = choose_rates(config(learning_rate=3e-5), model)
    assert (mixed.optimizer.learning_rate, mixed.stages["length"].learning_rate) == (3e-5, rate)


def test_adapters_and_quantised_weights_do_not_change_the_count() -> None:
    """The size is that of the model: adapters are not counted, and four bits are one weight."""
    model = build("qwen2", hidden_size=64, intermediate_size=64)
    size = sum(p.size for _, p in tree_flatten(model.parameters()))
    assert count_parameters(model) == size
    quantise(model, {}, 4)
    assert count_parameters(model) == size
    add_adapters(model, LoraConfig(rank=4), dtype=mx.float32, seed=0)
    assert count_parameters(model) == size
    adapted = replace(config(), model=ModelConfig(adapter="lora"), lora=LoraConfig(rank=4))
    assert choose_rates(adapted, model).optimizer.learning_rate == default_rate(size, LoraConfig(rank=4))[0]
