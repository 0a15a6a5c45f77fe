"""Strict JSON: a prompt states keys, types, counts and nesting, and the answer has to be JSON that has them.

`templates.py` and `generator.py` make prompts, each with a JSON Schema; `answer.py` takes a completion apart,
`signals.py` and `conformance.py` reward it, `measure.py` evaluates; `presets.py` has the stages. `validator.py` and
`contradiction.py` read schemas of a user's own.

Stages, models and settings of strict JSON: those of grpo-strict-generation, and those of the built-in model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from smolsum.config.sections import TaskConfig
from smolsum.errors import UsageError
from smolsum.tasks.base import Grid, Headline, MetricTable, Task
from smolsum.tasks.strict_json import measure
from smolsum.tasks.strict_json.generator import LEVELS
from smolsum.tasks.strict_json.settings import StrictJsonConfig
from smolsum.tasks.strict_json.signals import MEANINGS, PLAIN_WEIGHTS, SIGNALS, THINK_WEIGHTS, check, redistributed

Table = dict[str, Any]


def _standard(weights: dict[str, float]) -> Table:
    return {"stages": {"standard": {"rewards": weights}}}


def _curriculum(weights: dict[str, float]) -> Table:
    """Three stages from simple to hard, cooler from one to the next."""
    return {
        "stages": {
            "format_basics": {
                "rewards": weights,
                "temperature": 0.8,
                "mix": {"simple": 0.35, "medium": 0.55, "hard": 0.10},
            },
            "progressive": {
                "rewards": weights,
                "temperature": 0.7,
                "mix": {"simple": 0.15, "medium": 0.35, "hard": 0.50},
            },
            "full_difficulty": {
                "rewards": weights,
                "temperature": 0.6,
                "mix": {"simple": 0.10, "medium": 0.25, "hard": 0.65},
            },
        }
    }


THINKING: Table = {"task": {"think": True}, "sampling": {"max_new_tokens": 1280}}
"""thoughts get 256 tokens beside those of the answer"""
STRATEGIES: dict[str, Table] = {
    "standard": _standard(PLAIN_WEIGHTS),
    "curriculum": _curriculum(PLAIN_WEIGHTS),
    "think-standard": _standard(THINK_WEIGHTS) | THINKING,
    "think-curriculum": _curriculum(THINK_WEIGHTS) | THINKING,
}

DEFAULTS: Table = {
    "data": {"path": "generated", "max_input_tokens": 512},
    "sampling": {"rollouts": 8, "temperature": 0.7, "max_new_tokens": 1024},
    "grpo": {"beta": 0.04},
    "optimizer": {
        "learning_rate": 5e-6,
        "weight_decay": 0.1,
        "max_grad_norm": 0.1,
        "schedule": "cosine",
        "warmup_steps": 80,
    },
    "train": {"prompts_per_step": 1},
    "stage_defaults": {
        "standard": {"steps": 2500, "warmup_steps": 250},
        "format_basics": {"steps": 800},
        "progressive": {"steps": 800},
        "full_difficulty": {"steps": 900, "warmup_steps": 90},
    },
}


def _adapted(path: str) -> Table:
    """A model from the hub with four bits a weight and an adapter of rank 16, alpha 32."""
    return {"model": {"path": path, "quantize": 4, "adapter": "lora"}, "lora": {"rank": 16, "scale": 2.0}}


MODELS: dict[str, Table] = {
    "tiny-json": {
        "model": {"path": "builtin:tiny-json"},
        "sampling": {"rollouts": 8, "temperature": 1.0, "max_new_tokens": 128},
        "grpo": {"beta": 0.02, "mask_truncated": False},
        "optimizer": {
            "learning_rate": 3e-4,
            "beta2": 0.98,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "schedule": "linear",
            "warmup_steps": 0,
        },
        "train": {"prompts_per_step": 8, "validate_every": 50, "checkpoint_every": 50},
        "stage_defaults": {
            "standard": {"steps": 150, "warmup_steps": 0},
            "format_basics": {"steps": 50},
            "progressive": {"steps": 50},
            "full_difficulty": {"steps": 50, "warmup_steps": 0},
        },
    },
    "smollm2-135m": _adapted("HuggingFaceTB/SmolLM2-135M-Instruct"),
    "smollm2-360m": _adapted("HuggingFaceTB/SmolLM2-360M-Instruct"),
    "qwen": _adapted("Qwen/Qwen2.5-0.5B-Instruct"),
    "tinyllama-1.1b": _adapted("TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    "gemma-2-2b": _adapted("google/gemma-2-2b-it"),
}


def variant(settings: TaskConfig, text: str) -> TaskConfig:
    """A baseline's prompt: `plain`, `think`, or an instruction of several words."""
    task = cast(StrictJsonConfig, settings)
    if text in ("plain", "think"):
        return replace(task, system_prompt="", think=text == "think")
    if len(text.split()) < 2:
        raise UsageError(f"no prompt {text!r}", hint="give plain, think, or a whole instruction")
    return replace(task, system_prompt=text)


def _interval(name: str, title: str) -> tuple[Headline, ...]:
    return (
        Headline(name, title, "{:.1%}".format),
        Headline(f"{name}/low", "from", "{:.1%}".format),
        Headline(f"{name}/high", "to", "{:.1%}".format),
    )


def _in_samples(name: str, title: str) -> tuple[Headline, ...]:
    return tuple(Headline(f"{name}/pass@{k}", f"{title}@{k}", "{:.1%}".format) for k in (1, 2, 4, 8))


PASSED = Headline("passed", "schema", "{:.1%}".format)
PARSES = Headline("parses", "parses", "{:.1%}".format)
TOKENS = Headline("completions/mean_length", "tokens", "{:.1f}".format)

TASK = Task(
    name="strict-json",
    settings=StrictJsonConfig,
    messages=measure.messages,
    signals=SIGNALS,
    meanings=MEANINGS,
    weigh=redistributed,
    kind="level",
    model="tiny-json",
    strategy="standard",
    strategies=STRATEGIES,
    grid=Grid(models=tuple(name for name in MODELS if name != "tiny-json")),
    defaults=DEFAULTS,
    models=MODELS,
    load=measure.load,
    check=check,
    measurer=measure.measurer,
    summarise=measure.summarise,
    over_samples=measure.over_samples,
    step_metrics=measure.step_metrics,
    watched={"passed": ("json/passed", "passed")},
    headlines=(PARSES, PASSED, *(Headline(f"{level}/passed", level, "{:.1%}".format) for level in LEVELS), TOKENS),
    panels=(
        MetricTable(
            "Pass@1, 95 % intervals", (*_interval("parses", "parses"), *_interval("passed", "satisfies the schema"))
        ),
        *(
            MetricTable(
                level, (*_interval(f"{level}/parses", "parses"), *_interval(f"{level}/passed", "satisfies the schema"))
            )
            for level in LEVELS
        ),
        MetricTable("parses in k samples", _in_samples("parses", "pass")),
        MetricTable(
            "satisfies the schema in k samples",
            _in_samples("passed", "pass"),
            remedy="--temperature 0.7 --samples 8",
        ),
        *(
            MetricTable(
                f"{level} in k samples",
                (*_in_samples(f"{level}/parses", "parses"), *_in_samples(f"{level}/passed", "schema")),
            )
            for level in LEVELS
        ),
        MetricTable(
            "signals",
            tuple(Headline(name, name, "{:.3f}".format) for name in SIGNALS if name != "overlong"),
        ),
        MetricTable("length", (TOKENS, Headline("truncated", "cut off", "{:.1%}".format))),
    ),
    errors=measure.ERRORS,
    score="passed",
    variant=variant,
    prompting=("system_prompt", "think"),
    baselines=("plain", "think"),
)
