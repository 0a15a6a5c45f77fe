"""Strict JSON: a prompt states keys, types, counts and nesting, and the answer has to be JSON that has them.

`templates.py` and `generator.py` make prompts, each with a JSON Schema; `answer.py` takes a completion apart,
`signals.py` and `conformance.py` reward it, `measure.py` evaluates; `presets.py` has the stages. `validator.py` and
`contradiction.py` read schemas of a user's own.

Stages, models and settings of strict JSON: those of grpo-strict-generation, and those of the built-in model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from smolsum.config.presets import task_presets
from smolsum.config.sections import TaskConfig
from smolsum.errors import UsageError
from smolsum.tasks.base import Headline, MetricTable, Task
from smolsum.tasks.strict_json import measure
from smolsum.tasks.strict_json.generator import LEVELS
from smolsum.tasks.strict_json.settings import StrictJsonConfig
from smolsum.tasks.strict_json.signals import MEANINGS, SIGNALS, check, redistributed


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
    presets=task_presets("strict-json"),
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
