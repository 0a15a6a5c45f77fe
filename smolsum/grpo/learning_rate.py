"""The learning rate: a default that suits the model, and its course over the steps of a stage.

A rate that suits half a billion parameters (2e-6) teaches a million nothing, and one that suits a million breaks half a
billion. So `optimizer.learning_rate = 0`, the default, stands for `default_rate`. It is chosen once, when a model is
known, and the run's config.toml holds the number.
"""

import math
from dataclasses import replace

import mlx.nn as nn

from smolsum.config.sections import Config, LoraConfig
from smolsum.config.stage import StageConfig
from smolsum.errors import UsageError
from smolsum.policy.lora import count_parameters

RATE_TIMES_PARAMETERS = 1000.0
"""the rate of all weights, times the number of parameters: 2e-6 for 0.5 B"""
LOWEST_RATE, HIGHEST_RATE, HIGHEST_LORA_RATE = 1e-6, 3e-4, 1e-3
LORA_FACTOR, LORA_ALPHA = 10.0, 32.0
"""the rate of adapters as a multiple of that of all weights, where their output has the factor `LORA_ALPHA` / rank"""


def learning_rate(stage: StageConfig, step: int, steps: int) -> float:
    """Return the step size of a stage's optimizer step (from 0) of `steps`: linear warm-up, then constant, or linear or
    cosine towards 0. Raises UsageError for a stage whose rate is 0, which is not chosen yet."""
    if not stage.learning_rate:
        raise UsageError("the stage's learning rate is 0, which is not chosen yet", hint="choose_rates(config, model)")
    if step < stage.warmup_steps:
        return stage.learning_rate * (step + 1) / stage.warmup_steps
    done = (step - stage.warmup_steps) / max(1, steps - stage.warmup_steps)
    course = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return stage.learning_rate * course[stage.schedule]


def default_rate(parameters: int, lora: LoraConfig | None = None) -> tuple[float, str]:
    """Return the peak learning rate for a model of this many parameters, and the reason in words.

    All weights: 1000 / parameters, between 1e-6 and 3e-4, rounded to one digit. Its points: the study's 2e-6 for 0.5 B
    (its Table 9), and smolsum's own sweeps of 40 steps with models of 0.4 and 1 M parameters. These learn a length at
    3e-4 (KL 0.2 to 0.3 nats a token), learn nothing at 2e-6, and from 1e-3 on hit it with text that repeats itself (KL
    7). Between 1 M and 0.35 B the rule is a guess. Above 1 B it is what GRPO is usually run with, 1e-6 (DAPO,
    arXiv:2503.14476, section 4.1).

    Adapters: ten times that ("LoRA Without Regret", Thinking Machines Lab, 2025: about ten times, whatever the rank,
    for an output factor of 32 / rank), at most 1e-3, which was best for 0.4 M. Adam's steps do not depend on the size
    of the gradient, so a larger output factor (`lora.scale`) needs a rate that is smaller by as much: in the trials,
    3e-4 with the factor 20 moved a model as far as 1e-3 did with the factor 4.

    No rule knows the reward, the data or the number of steps: `smolsum train --find-lr` measures.
    """
    rate = min(max(RATE_TIMES_PARAMETERS / parameters, LOWEST_RATE), HIGHEST_RATE)
    reason = f"chosen for {_in_words(parameters)} parameters"
    if lora is not None:
        rate = min(rate * LORA_FACTOR, HIGHEST_LORA_RATE) * LORA_ALPHA / lora.rank / lora.scale
        reason += f" and adapters of rank {lora.rank}, scale {lora.scale:g}"
    return float(f"{rate:.0e}"), reason


def needs_rate(config: Config) -> bool:
    """Return whether a learning rate of the configuration is 0 and stands for `default_rate`."""
    return not all((config.optimizer.learning_rate, *(stage.learning_rate for stage in config.stages.values())))


def choose_rates(config: Config, model: nn.Module) -> Config:
    """Return the configuration with `default_rate` of the model in place of each learning rate that is 0."""
    if not needs_rate(config):
        return config
    rate, _ = default_rate(count_parameters(model), config.lora if config.model.adapter == "lora" else None)
    optimizer = replace(config.optimizer, learning_rate=config.optimizer.learning_rate or rate)
    stages = {k: replace(stage, learning_rate=stage.learning_rate or rate) for k, stage in config.stages.items()}
    return replace(config, optimizer=optimizer, stages=stages)


def _in_words(parameters: int) -> str:
    unit, size = next((u, n) for u, n in (("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)) if parameters >= n or n == 1.0)
    return f"{parameters / size:.3g}{unit and ' '}{unit}"
