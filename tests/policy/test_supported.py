"""Every family of the presets, and others, is sampled as it is scored; what cannot be is refused."""

from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest
from support.models import EOS, FAMILIES, SHARED, build, write
from support.refusals import refuses

import smolsum.policy.sampling as sampling
from smolsum.policy.load import check_supported, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.sampling import generate, rollout_seed

# isort: split
import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import BatchKVCache
from mlx_lm.utils import _get_classes

PROMPTS = [[5, 9, 33, 4, 60, 12, 8, 41], [7], [3, 3], [11, 12, 13, 14, 15]]
SEEDS = [[rollout_seed(1, p, g) for g in range(2)] for p in range(len(PROMPTS))]
OTHERS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 8},
    "phi3": {},
    "olmo2": {},
    "starcoder2": {"norm_epsilon": 1e-5},
    "glm4": {"head_dim": 8, "attention_bias": False, "partial_rotary_factor": 0.5},
    "internlm2": {"bias": False},
    "helium": {"head_dim": 8, "attention_bias": False, "mlp_bias": False},
    "cohere2": {
        "head_dim": 8, "layer_norm_eps": 1e-5, "layer_norm_bias": False, "logit_scale": 0.5, "attention_bias": False,
        "sliding_window": 6, "sliding_window_pattern": 2,
    },
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": 24, "norm_topk_prob": True,
    },
    "ernie4_5": {"head_dim": 8, "use_bias": False},
    "hunyuan_v1_dense": {"head_dim": 8, "use_qk_norm": True, "attention_bias": False},
    "gpt2": {
        "n_ctx": 256, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256, "layer_norm_epsilon": 1e-5,
    },
}  # fmt: skip
UNSUPPORTED = ("gpt_bigcode",)


def made(family: str) -> nn.Module:
    """A tiny model of the family with random float32 weights."""
    if family in FAMILIES:
        return build(family)
    settings = {**SHARED, "model_type": family, "rms_norm_eps": 1e-6, **OTHERS[family]}
    model_class, arguments = _get_classes(settings)
    mx.random.seed(0)
    model = model_class(arguments.from_dict(settings))
    model.update(tree_map(lambda p: p + 0.1 * mx.random.normal(p.shape), model.parameters()))
    return model


def sample(model: nn.Module, prompts: list[list[int]], seeds: list[list[int]]) -> list[list[sampling.Completion]]:
    return generate(model, prompts, seeds, eos_ids=frozenset({EOS}), temperature=0.7, max_new_tokens=12)


@pytest.mark.parametrize("family", sorted((FAMILIES.keys() | OTHERS.keys()) - set(UNSUPPORTED)))
def test_a_family_is_sampled_as_it_is_scored_alone_and_in_a_batch(family: str) -> None:
    """Tokens and log-probs, at the sampling temperature. Two prompts make as many rows as the tiny models have
    key-value heads, so that a mask that is broadcast over the wrong axis raises no error."""
    model = made(family)
    check_supported(model, family)
    for prompts, seeds in ((PROMPTS, SEEDS), (PROMPTS[:2], [row[:1] for row in SEEDS[:2]])):
        for prompt, row_seeds, row in zip(prompts, seeds, sample(model, prompts, seeds), strict=True):
            logp, mask = group_logprobs(model, prompt, [one.token_ids for one in row], temperature=0.7)
            assert mask.sum(axis=1).tolist() == [len(one.token_ids) for one in row]
            for got, one in zip(logp.tolist(), row, strict=True):
                np.testing.assert_allclose(got[: len(one.logprobs)], one.logprobs, atol=1e-4)
            assert sample(model, [prompt], [row_seeds[-1:]])[0][0].token_ids == row[-1].token_ids


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_a_model_that_cannot_be_trained_is_refused_when_it_is_loaded(tmp_path: Path, family: str) -> None:
    """Such as one whose head cannot be called alone, as it keeps its trunk elsewhere."""
    with refuses(f"architecture '{family}'", "another architecture"):
        load_policy(str(write(tmp_path / family, family)))


def test_a_model_that_wants_a_cache_is_refused() -> None:
    phi = {**SHARED, "model_type": "phi", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "qk_layernorm": False}
    model_class, arguments = _get_classes(phi)
    with refuses("model phi", "'cache'"):
        check_supported(model_class(arguments.from_dict(phi)), "phi")


def test_a_batch_whose_mask_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its own cache Gemma 2 is such a model: its mask is broadcast over the heads."""
    monkeypatch.setattr(sampling, "_GroupedHeadsCache", BatchKVCache)
    with refuses("model tiny"):
        check_supported(build("gemma2"), "tiny")
    monkeypatch.setattr("smolsum.policy.load.TRIAL_TOKENS", 12)
    monkeypatch.setattr("smolsum.policy.load.TRIAL_SAMPLES", 1)
    with refuses("model tiny", " nats"):
        check_supported(build("gemma2"), "tiny")


def test_weights_that_are_not_finite_are_refused() -> None:
    """Also where a single log-prob is not."""
    policy = load_policy("builtin:tiny", dtype="float32")
    broken = policy.model.model.layers[0].mlp.down_proj
    broken.weight = broken.weight.at[0, 0].multiply(float("nan"))
    with refuses("model tiny", "not finite"):
        check_supported(policy.model, "tiny")
