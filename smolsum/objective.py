"""The sections [grpo] and [optimizer] of a configuration: what is minimised, and how gradients become weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smolsum.values import (
    AdvantageScale,
    Cap,
    Correction,
    Count,
    Decay,
    KlEstimate,
    LossKind,
    LowerClip,
    NonNegative,
    Positive,
    Schedule,
    WeightFloor,
)


@dataclass(frozen=True)
class GrpoConfig:
    """The objective."""

    loss: LossKind = "grpo"
    """`grpo` clips a ratio for each token and averages each sequence, `dapo` all tokens, `dr_grpo` over max_new_tokens;
    `cispo` weights by the ratio and clips nothing; `gspo` has one ratio a sequence, as has the study's own, `study`."""
    eps_low: LowerClip = 0.2
    """The ratio is clipped below at 1 - eps_low; GSPO's paper has 3e-4."""
    eps_high: Positive = 0.2
    """The ratio is clipped above at 1 + eps_high; DAPO's paper has 0.28, GSPO's 4e-4."""
    eps_max: Cap = 5.0
    """Largest ratio that weighs a token in `cispo`, which reads neither eps_low nor eps_high."""
    beta: NonNegative = 1e-4
    """Weight of the KL to the frozen starting model; 0 loads no reference."""
    kl: KlEstimate = "k3"
    """Estimate of that KL. `k1` has no gradient on average, unless kl_unbiased is set."""
    kl_unbiased: bool = False
    """Whether each token's KL is weighted with its ratio, so that its gradient is that of the KL off-policy too."""
    advantage_scale: AdvantageScale = "group"
    """Standard deviation that centred rewards are divided by; `gdpo`: each signal by its group's, before the weighted
    sum, and the sum by the batch's, so that no signal drowns another."""
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    """The ratio's denominator: what the sampler reported, or a second pass just before the update."""
    correction: Correction = "none"
    """With recomputed log-probs, how a token or a sequence is weighted for having been drawn by the sampler:
    `truncate` caps the weight, `mask` leaves out what lies outside floor and cap."""
    correction_cap: Cap = 2.0
    """Largest weight of the correction."""
    correction_floor: WeightFloor = 0.5
    """Least weight that a `mask` lets pass."""
    off_policy_delta: NonNegative = 0.0
    """A punished sequence is dropped if its tokens' log-probs fell by more than this in the mean since they were drawn;
    0: never."""
    mask_truncated: bool = True
    """Whether completions cut at max_new_tokens are left out of the loss. Signal `overlong` punishes them instead."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "adamw"] = "adamw"
    """`adamw` applies the weight decay, `adam` has none."""
    learning_rate: Positive = 2e-6
    """Peak step size."""
    beta1: Decay = 0.9
    """Decay of the first moment."""
    beta2: Decay = 0.999
    """Decay of the second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, times the learning rate at each update."""
    bias_correction: bool = True
    """Whether the moments are corrected for starting at 0."""
    precision: Literal["masters", "stochastic", "study"] = "masters"
    """`masters`: float32 copies take the updates; `stochastic`: bfloat16 weights rounded at random, half the memory;
    `study`: all in the weights' type, which loses small updates."""
    max_grad_norm: Positive = 1.0
    """Global gradient norm above which gradients are scaled down."""
    schedule: Schedule = "constant"
    """Course of the learning rate after the warm-up."""
    warmup_steps: Count = 0
    """Optimizer steps of linear rise to the learning rate."""
    between_stages: Literal["fresh", "kept"] = "fresh"
    """Whether a stage begins with new moments or with those that the stage before ended with."""
