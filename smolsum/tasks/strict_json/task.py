"""Strict JSON: a prompt states keys, types, counts and nesting; the answer has to be JSON that has them.

`generator.py` makes the prompts, each with a JSON Schema. `answer.py` takes a completion apart, `schema.py` compares it
with its schema, `signals.py` rewards it, and this file evaluates it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, cast

from smolsum.config.presets import task_presets
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError
from smolsum.tasks.base import (
    ErrorKind,
    Measure,
    Messages,
    Metric,
    MetricRow,
    MetricTable,
    Summary,
    Task,
    TaskEvaluation,
    TaskPrompts,
    TaskRewards,
    chat,
    with_instruction,
)
from smolsum.tasks.data import Example, Split, load_split
from smolsum.tasks.strict_json import signals
from smolsum.tasks.strict_json.answer import depth, take_apart
from smolsum.tasks.strict_json.generator import LEVELS, split_of
from smolsum.tasks.strict_json.schema import checks, contradiction, satisfies
from smolsum.tasks.strict_json.settings import StrictJsonConfig, settings
from smolsum.tasks.success_rates import interval_of_means, passing, share_of
from smolsum.tasks.text_metrics import length_table
from smolsum.types import Prompt, Rollout, RolloutGroup

GENERATED = "generated"
PASSES = ("parses", "passed")
CHECKED = ("type", "count", "min count", "keys", "types", "enums", "depth", "other")
"""the checks that can fail, as `schema.checks` names them"""


def load(config: Config, split: str) -> Split:
    """Return prompts from the generator, or from the user's data with a column `schema` (a JSON Schema, as an object or
    as text) and the optional columns `depth` (a whole number from 1) and `level`. Raises UsageError for a wrong depth
    and for a schema that nothing can satisfy."""
    if config.data.path == GENERATED:
        return split_of(settings(config), split)
    found = load_split(config.data, split, references=False)
    return replace(found, examples=tuple(_with_schema(example) for example in found.examples))


def _with_schema(example: Example) -> Example:
    """Return the example with its schema parsed and checked."""
    schema, depth = example.metadata.get("schema"), example.metadata.get("depth")
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        problem = "it is missing" if schema is None else contradiction(schema)
    except ValueError as error:
        problem = f"it is not JSON: {error}"
    except RecursionError:
        problem = "it nests too deep"
    if problem:
        raise UsageError(
            f"the schema of example {example.id!r} cannot be satisfied: {problem}",
            hint="correct it in column `schema`, or remove the row",
        )
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
        raise UsageError(
            f"the depth of example {example.id!r} is {depth!r}, not a whole number from 1",
            hint="correct it in column `depth`, or leave it empty",
        )
    return replace(example, metadata={**example.metadata, "schema": schema})


def messages(example: Example, config: Config) -> Messages:
    """Return the instruction and, as the user's turn, what is asked."""
    return chat(settings(config).instruction, example)


def measurer(splits: Sequence[Split], config: Config) -> Measure:
    """Measure one completion: `parses` where a closed block marked as JSON holds JSON, `passed` where that
    satisfies the schema too, the seven signals, and what failed."""

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        answer, schema, asked = take_apart(rollout.text), prompt.metadata["schema"], prompt.metadata.get("depth")
        passed = answer.answers and satisfies(answer.value, schema, asked)
        return {
            "parses": float(answer.answers),
            "passed": float(passed),
            "tokens": rollout.length,
            "truncated": float(rollout.truncated),
            "format": signals.format_reward(rollout.text),
            "validity": signals.validity_reward(rollout.text),
            "schema": signals.schema_reward(rollout.text, prompt),
            "reasoning": signals.reasoning_reward(rollout.text),
            "truncation": signals.truncation_reward(rollout.text),
            "repetition": signals.repetition_reward(rollout.text),
            "strictness": signals.strictness_reward(rollout.text),
            "level": prompt.metadata.get("level"),
            "template": prompt.metadata.get("template"),
            "json_error": answer.error,
            "fence": answer.fence,
            "failed": _failed(answer.value, schema, asked) if answer.answers and not passed else [],
        }

    return measure


def _failed(value: Any, schema: Mapping[str, Any], asked: int | None) -> list[str]:
    """Return the checks that a value does not pass wholly, wherever in it."""
    missed = {name.rpartition(".")[2].removeprefix("item ") for name, score in checks(value, schema) if score < 1}
    if asked is not None and depth(value) < asked:
        missed.add("depth")
    return [name for name in CHECKED if name in missed] or ["other"]


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return the share that parses and that which satisfies its schema, each with its exact 95 % interval, over all and
    by level; means of the signals; lengths."""
    summary: Summary = {}
    for name in PASSES:
        summary |= share_of(name, [row[name] for row in rows])
    for level in LEVELS:
        for name in PASSES:
            summary |= share_of(f"{level}/{name}", [row[name] for row in rows if row["level"] == level])
    for name in (*(n for n in signals.SIGNALS if n in rows[0]), "truncated"):
        summary[name] = fmean(row[name] for row in rows)
    return summary | length_table([row["tokens"] for row in rows])


def aggregate_samples(prompts: Sequence[Sequence[MetricRow]]) -> Summary:
    """Return the summary over all samples, with intervals for samples of which those of a prompt are alike; and the
    chance that one of k samples parses, and that one satisfies its schema, over all prompts and by level."""
    found = summarise([row for rows in prompts for row in rows])
    for level in (None, *LEVELS):
        chosen = [rows for rows in prompts if level is None or rows[0]["level"] == level]
        for name in PASSES if chosen else ():
            counts = [(len(rows), int(sum(row[name] for row in rows))) for rows in chosen]
            low, high = interval_of_means([passed / n for n, passed in counts], counts[0][0])
            several = {"low": low, "high": high, **passing(counts)}
            found |= {f"{f'{level}/' if level else ''}{name}/{key}": value for key, value in several.items()}
    return found


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Return the shares of a step's completions that parse and that satisfy their schemas."""
    measure = measurer((), config)
    rows = [measure(group.prompt, rollout) for group in groups for rollout in group.rollouts]
    return {f"json/{name}": fmean(row[name] for row in rows) for name in PASSES}


def _missed(check: str) -> Callable[[MetricRow], bool]:
    return lambda row: check in row["failed"]


ERRORS = (
    ErrorKind("no block", "no closed block that is marked as JSON", lambda row: row["fence"] != "json"),
    ErrorKind("cut off", "the token limit ended it", lambda row: row["truncated"] > 0),
    ErrorKind(
        "broken JSON", "the block does not parse", lambda row: row["fence"] == "json" and bool(row["json_error"])
    ),
    ErrorKind("wrong top", "an object instead of an array, or the reverse", _missed("type")),
    ErrorKind("wrong count", "not the number of entries that was asked for", _missed("count")),
    ErrorKind("too few", "fewer entries than at least were asked for", _missed("min count")),
    ErrorKind("missing keys", "a required key is not there", _missed("keys")),
    ErrorKind("wrong types", "a value of another type", _missed("types")),
    ErrorKind("wrong choice", "a value that is not among those allowed", _missed("enums")),
    ErrorKind("too shallow", "fewer objects inside one another than asked", _missed("depth")),
    ErrorKind("other", "another limit of the schema is broken", _missed("other")),
    ErrorKind("talk", "text outside block and thoughts", lambda row: row["fence"] != "none" and row["strictness"] < 1),
    ErrorKind("repetitive", "the same over and over", lambda row: row["repetition"] < 0),
)


def variant(task: TaskConfig, text: str) -> TaskConfig:
    """Return the settings for a baseline's prompt: `plain`, `think`, or an instruction of several words."""
    if text in ("plain", "think"):
        return replace(cast(StrictJsonConfig, task), system_prompt="", think=text == "think")
    return with_instruction(task, text, "plain, think")


def _interval(name: str, title: str) -> tuple[Metric, ...]:
    return (Metric(name, title), Metric(f"{name}/low", "from"), Metric(f"{name}/high", "to"))


def _intervals(prefix: str) -> tuple[Metric, ...]:
    return (*_interval(f"{prefix}parses", "parses"), *_interval(f"{prefix}passed", "satisfies the schema"))


def _in_samples(name: str, title: str) -> tuple[Metric, ...]:
    return tuple(Metric(f"{name}/pass@{k}", f"{title}@{k}") for k in (1, 2, 4, 8))


PASSED = Metric("passed", "schema", better="higher", role="quality", meaning="answers that satisfy the schema")
PARSES = Metric("parses", "parses", better="higher", role="constraint", meaning="answers that parse")
TOKENS = Metric("completions/mean_length", "tokens", ".1f")

TABLES = (
    MetricTable("Pass@1, 95 % intervals", _intervals("")),
    *(MetricTable(level, _intervals(f"{level}/")) for level in LEVELS),
    MetricTable("parses in k samples", _in_samples("parses", "pass")),
    MetricTable(
        "satisfies the schema in k samples", _in_samples("passed", "pass"), hint="--temperature 0.7 --samples 8"
    ),
    *(
        MetricTable(
            f"{level} in k samples",
            (*_in_samples(f"{level}/parses", "parses"), *_in_samples(f"{level}/passed", "schema")),
        )
        for level in LEVELS
    ),
    MetricTable("signals", tuple(Metric(name, name, ".3f") for name in signals.SIGNALS if name != "overlong")),
    MetricTable("length", (TOKENS, Metric("truncated", "cut off"))),
)

TASK = Task(
    name="strict-json",
    settings=StrictJsonConfig,
    prompts=TaskPrompts(
        messages=messages,
        load=load,
        category="level",
        variant=variant,
        baselines=("plain", "think"),
        prompt_settings=("system_prompt", "think"),
    ),
    rewards=TaskRewards(signals=signals.SIGNALS, adjust_weights=signals.redistributed),
    evaluation=TaskEvaluation(
        measurer=measurer,
        quick_measurer=measurer,
        summarise=summarise,
        aggregate_samples=aggregate_samples,
        step_metrics=step_metrics,
        watched={"passed": ("json/passed", "passed")},
        headlines=(PARSES, PASSED, *(Metric(f"{level}/passed", level) for level in LEVELS), TOKENS),
        tables=TABLES,
        errors=ERRORS,
        score="passed",
    ),
    presets=task_presets("strict-json"),
    check=signals.check,
)
