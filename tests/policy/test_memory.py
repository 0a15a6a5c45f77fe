"""What training is expected to take of the memory, next to measured peaks."""

import gc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import _get_classes
from support.models import NEEDS_C, VOCABULARY, build, build_for_c, group, stage

from smolsum.config.resolve import resolve
from smolsum.config.sections import Config, EngineConfig, GrpoConfig, OptimizerConfig, SamplingConfig, TrainConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import fast_math, memory
from smolsum.policy.cpu import gradient, native
from smolsum.policy.cpu.decode import ROWS, Decoder, Draw
from smolsum.policy.cpu.gradient import most_mapped
from smolsum.policy.cpu.streams import streams
from smolsum.policy.group_gradient import WHOLE, Chunking, fits_c
from smolsum.policy.memory import MaxLengths, ModelShape, estimate, of_sampling, shape_of, ways
from smolsum.policy.sampling import prefill
from smolsum.tasks import TASKS

STAGE = stage(rewards={"length": 1.0}, learning_rate=1e-6)
SIZES = {"hidden_size": 192, "num_hidden_layers": 4, "intermediate_size": 640, "vocab_size": 3000}
SHAPE = ModelShape(
    parameters=500_000_000, trained=500_000_000, largest=136_000_000, weight_bytes=2_000_000_000, itemsize=4,
    layers=24, features=17_000, width=896, heads=14, queries=896, vocabulary=151_936, remembered=24_576, unpacked=0,
    shares=True, recomputes=True, merged=0, in_c=False, sampled_in_c=False,
)  # fmt: skip
LORA = replace(SHAPE, trained=4_400_000, largest=39_000)


def config(budget: float = 0.0, prompts: int = 1) -> Config:
    return Config(
        engine=EngineConfig(memory_budget_gb=budget),
        train=TrainConfig(prompts_per_step=prompts, eval_batch=1),
        stages={"a": STAGE},
    )


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products keep to one thread: more of them would spin while other tests use the cores."""
    monkeypatch.setattr("smolsum.policy.cpu.streams.blas_threads", lambda count: nullcontext())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("library", "chunking", "prompts", "lengths"),
    [
        (True, WHOLE, 1, MaxLengths(120, 40)),
        (True, WHOLE, 3, MaxLengths(400, 160)),
        (False, WHOLE, 1, MaxLengths(120, 40)),
        (False, WHOLE, 2, MaxLengths(120, 40)),
        (False, WHOLE, 1, MaxLengths(40, 60)),
        (False, replace(WHOLE, shared_prefix=False), 1, MaxLengths(120, 40)),
        (False, Chunking(rows=2), 1, MaxLengths(120, 40)),
        (False, Chunking(rows=2, checkpointing=True), 2, MaxLengths(120, 40)),
    ],
    ids=["in C", "groups in C", "whole", "groups", "long completions", "repeated", "chunks", "checkpointing"],
)
def test_the_estimate_is_near_the_measured_peak(
    monkeypatch: pytest.MonkeyPatch, library: bool, chunking: Chunking, prompts: int, lengths: MaxLengths
) -> None:
    """Within 25 %, over whole updates with their optimizer."""
    if not library:
        monkeypatch.setattr(native, "_library", None)
    gc.collect()  # what earlier tests have left would be freed in the middle of the measurement
    for stream in streams():
        mx.synchronize(stream)
    held = mx.get_active_memory()
    model = build("qwen2", **SIZES)
    optimizer, tokens = Optimizer(model, OptimizerConfig()), lengths.completion
    completions = [[(g + i) % 60 for i in range(tokens)] for g in range(8)]
    groups = [group([3 + i % 50 for i in range(lengths.prompt)], completions)] * prompts
    advantages = mx.array([[float(g) - 3.5 for g in range(8)]] * prompts)
    mx.reset_peak_memory()
    monkeypatch.setattr(gradient, "_most_mapped", 0)
    for _ in range(2):
        tree, _ = gradients(model, groups, advantages, GrpoConfig(), STAGE, max_new_tokens=tokens, chunking=chunking)
        optimizer.step(model, tree, 1e-6)
        del tree
    measured = mx.get_peak_memory() - held + (most_mapped() if library and fits_c(chunking) else 0)
    expected = sum(estimate(shape_of(model), config(prompts=prompts), chunking, lengths).values())
    assert expected == pytest.approx(measured, rel=0.25)


def test_chunks_hold_less_from_way_to_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rollouts at a time, or layers that are computed twice, never hold more activations; the last way holds a
    fraction of the first."""
    monkeypatch.setattr(
        memory, "streams", lambda: ["one", "other"]
    )  # of two cores, as whole groups are worked on at once
    lengths = MaxLengths(330, 64)
    held = [estimate(LORA, config(prompts=2), way, lengths).get("activations", 0.0) for way in ways(LORA, config())]
    assert held[0] > held[1] > held[3] > held[5]
    assert held[-1] < held[0] / 8


def test_sampling_counts_where_an_update_holds_little() -> None:
    """What the layers remember of the prompts of an evaluation is the peak of a model with adapters in small chunks."""
    *_, smallest = ways(LORA, config())
    several = replace(config(), train=replace(config().train, eval_batch=8))
    parts = estimate(LORA, several, smallest, MaxLengths(512, 160))
    assert parts["sampling"] > 2 * 8 * 672 * LORA.remembered
    assert "activations" not in parts


def test_reading_prompts_takes_at_most_what_is_planned() -> None:
    """Of a model that MLX samples, with long prompts, whose attention scores are most of it."""
    model = build("gemma3", **SIZES, max_position_embeddings=2048)
    mx.eval(model.parameters())
    fast_math.install(model)
    lengths, prompts = MaxLengths(1200, 8), [[n % 3000 for n in range(start, start + 1200)] for start in range(4)]
    settings = replace(config(prompts=4), sampling=SamplingConfig(rollouts=1))
    planned = of_sampling(shape_of(model), settings, lengths)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    prefill(model, [tuple(one) for one in prompts])
    assert planned / 3 < mx.get_peak_memory() - before < 1.1 * planned


def test_reading_takes_no_more_on_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts are read at once, however many streams there are."""
    planned = []
    for cores in (1, 2, 64):
        monkeypatch.setattr(memory, "streams", lambda cores=cores: ["one"] * cores)
        planned.append(of_sampling(LORA, config(prompts=4), MaxLengths(2048, 8)))
    assert planned[0] < planned[1] == planned[2]


def test_hindsight_holds_another_gradient_and_every_rollout() -> None:
    """Its completions pass through the model apart from those that the main objective learns from."""
    lengths, plain = MaxLengths(512, 160), config()
    plain = replace(plain, grpo=replace(plain.grpo, update_rollouts=2))
    more = replace(plain, stages={name: replace(one, hindsight=1.0) for name, one in plain.stages.items()})
    whole = next(ways(SHAPE, plain))
    before, after = (estimate(SHAPE, one, whole, lengths) for one in (plain, more))
    assert after["others"] == SHAPE.trained * 4.0
    assert after["activations"] > 1.5 * before["activations"]


def test_layers_remember_as_much_as_their_caches() -> None:
    """Bytes of a token: keys and values of every layer, in the type that computes; no weight is read for it."""
    shape = shape_of(build("qwen2", **SIZES))
    assert (shape.width, shape.heads, shape.vocabulary, shape.layers) == (192, 4, 3000, 4)
    assert shape.remembered == 4 * 2 * 2 * (192 // 4) * 4  # layers, keys and values, heads, width, bytes
    assert shape.unpacked == 0


@pytest.mark.parametrize(
    ("settings", "heads"),
    [
        ({"model_type": "gpt2", "n_ctx": 64, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64,
          "layer_norm_epsilon": 1e-5}, 4),
        ({"model_type": "mamba", "hidden_size": 32, "intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2,
          "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4}, 0),
    ],
    ids=["GPT-2", "Mamba"],
)  # fmt: skip
def test_sizes_are_found_under_the_names_of_other_architectures(settings: dict[str, Any], heads: int) -> None:
    """GPT-2's config.json has neither `hidden_size` nor `num_attention_heads`; Mamba has no heads."""
    model_class, arguments = _get_classes(settings)
    shape = shape_of(model_class(arguments.from_dict({**settings, "vocab_size": 70})))
    assert (shape.width, shape.heads, shape.vocabulary, shape.layers) == (32, heads, 70, 2)


def test_every_way_of_the_benchmark_is_a_run_that_train_takes() -> None:
    """`benchmarks/memory.py` trains each of its ways under a name of its own, with settings that exist."""
    benchmark = run_path(str(Path(__file__).parents[2] / "benchmarks" / "memory.py"))
    names = [benchmark["run_name"](way) for way in benchmark["WAYS"]]
    assert len(set(names)) == len(benchmark["WAYS"]) == 6
    for name, (_, sets) in zip(names, benchmark["WAYS"].values(), strict=True):
        assert resolve(TASKS, flags={"run.name": name}, sets=sets).config.run.name == name


@NEEDS_C
def test_sampling_in_c_takes_what_its_caches_take() -> None:
    """On top there are the logits and outputs of a pass."""
    model = build_for_c("qwen2")
    shape, settings = shape_of(model), config()
    settings = replace(settings, train=replace(settings.train, eval_batch=400), sampling=SamplingConfig(rollouts=1))
    tokens = settings.sampling.max_new_tokens
    draws = [Draw((n % VOCABULARY,) * (100 + n // VOCABULARY), np.zeros(tokens, np.float32), 1.0) for n in range(400)]
    made = Decoder(model, 110 + tokens, []).add(draws)
    caches = sum(one.cache.nbytes for rollout in made for one in (rollout, rollout.prefix) if one is not None)
    planned = estimate(shape, settings, WHOLE, MaxLengths(110, tokens))["sampling"]
    assert planned - caches == 4 * ROWS * (shape.vocabulary + shape.features)
