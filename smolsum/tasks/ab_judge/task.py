"""Judging which of two samples is the original, the other having been corrupted: notes first, then a letter."""

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any, cast

from smolsum.config.presets import task_presets
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError
from smolsum.tasks.ab_judge.corruption import BY_MODEL, FAULTS, MIN_WORDS
from smolsum.tasks.ab_judge.pairs import Corruptor, make_pairs, rules
from smolsum.tasks.ab_judge.settings import NOTES_TOKENS, AbJudgeConfig, settings
from smolsum.tasks.ab_judge.signals import SIGNALS, decoder, is_right, notes_tokens, read
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
    mean,
    with_instruction,
)
from smolsum.tasks.data import Example, Split, generated_split, load_split
from smolsum.tasks.success_rates import exact_interval
from smolsum.tasks.text_metrics import PERCENTILES, length_table
from smolsum.types import Prompt, Rollout, RolloutGroup

KINDS = (*FAULTS, BY_MODEL)


def load(config: Config, split: str) -> Split:
    """Return a pair for each text of the split's `data.prompt_column` that can be corrupted, and a note on those that
    cannot. Raises UsageError where none can."""
    texts, model = load_split(config.data, split, references=False), settings(config).corruptor
    if model == "rules":
        return _pairs(config, texts, split, rules(config, texts))
    from smolsum.tasks.ab_judge.corruptor_model import by_model  # loads an HTTP client

    return _pairs(config, texts, split, by_model(model, texts.examples))


def preview(config: Config, split: str) -> Split:
    """Return the split for a dry run, as `load` where rules corrupt; a model is not asked, as it may cost money."""
    model = settings(config).corruptor
    if model == "rules":
        return load(config, split)
    from smolsum.tasks.ab_judge.corruptor_model import preview as stand_in

    return _pairs(config, load_split(config.data, split, references=False), split, stand_in(model))


def preview_note(config: Config) -> str:
    """Return what a dry run does not have: the corruptor's texts."""
    model = settings(config).corruptor
    return "" if model == "rules" else f"the corrupted texts come from the corruptor {model} when training starts"


def _pairs(config: Config, texts: Split, split: str, corruptor: Corruptor) -> Split:
    task = settings(config)
    if turned := next((text for text in texts.examples if text.turns), None):
        raise UsageError(
            f"example {turned.id!r} of the {split} split is a chat of {len(turned.turns) + 1} messages, not a text",
            hint="--set data.prompt_column=NAME for a column of texts, or --task tldr",
        )
    pairs, count = make_pairs(texts.examples, corruptor, seed=task.pairs_seed), len(texts.examples)
    if not pairs:
        raise _no_pairs(f"none of the {count} texts of the {split} split can be corrupted", task)
    left_out = f"{count - len(pairs)} of {count} texts of the {split} split cannot be corrupted and were left out"
    left_out = "; ".join(filter(None, [texts.left_out, left_out if len(pairs) < count else ""]))
    return generated_split(split, pairs, left_out, texts.origin)


def _no_pairs(what: str, task: AbJudgeConfig) -> UsageError:
    longer = "--set data.prompt_column=NAME for a column of longer texts"
    if task.corruptor == "rules":
        return UsageError(
            f"{what}: each has fewer than {MIN_WORDS} words, or nothing that task.faults = {task.faults!r} could "
            "change",
            hint=f"{longer}, or --set task.faults=all",
        )
    return UsageError(
        f"{what}: each has fewer than {MIN_WORDS} words, or {task.corruptor} refused it, or gave it back as it was",
        hint=f"{longer}, or --set task.corruptor=NAME for another model, or rules",
    )


def messages(example: Example, config: Config) -> Messages:
    """Return the instruction with the number of tokens in it, and both samples."""
    task = settings(config)
    return chat(task.system_prompt.replace(NOTES_TOKENS, str(task.notes_tokens)), example)


def check(config: Config) -> Sequence[str]:
    """Return a warning where advantages are standardised, which takes the power of the accuracy out again."""
    task, scale = settings(config), config.grpo.advantage_scale
    scaled = [name for name, stage in config.stages.items() if stage.trained_rewards.get("judgement")]
    if not scaled or task.accuracy_power == 0 or scale == "none":
        return ()
    return (
        f"task.accuracy_power = {task.accuracy_power:g} does next to nothing with grpo.advantage_scale = {scale}: it "
        "multiplies all right judgements of a step alike, and dividing by a standard deviation takes that out again; "
        "to let it act: --set grpo.advantage_scale=none",
    )


def variant(task: TaskConfig, text: str) -> TaskConfig:
    """Return the settings for a baseline's `--prompt`: `<N>-tokens` asks for notes of that length, several words are
    the instruction itself. Raises UsageError for another single word."""
    if match := re.fullmatch(r"(\d+)-tokens", text):
        return replace(cast(AbJudgeConfig, task), notes_tokens=int(match[1]))
    return with_instruction(task, text, "128-tokens (or another number)")


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Return the share of a step's judgements that are right, and of those that say A."""
    readings = [(read(rollout.text), group.prompt) for group in groups for rollout in group.rollouts]
    says_a = [reading.letter == "A" for reading, _ in readings if reading.letter]
    accuracy = {"accuracy": fmean(is_right(reading, prompt) for reading, prompt in readings)}
    return accuracy | ({"position/said_a": fmean(says_a)} if says_a else {})


def measurer(splits: Sequence[Split], config: Config) -> Measure:
    """Measure a judgement. `right` (and `passed`), `judged`, `well_formed` and `truncated` are 0 or 1; so is `said_a`,
    None without a judgement; `a_is_original` gives the right letter; `notes_tokens` is None without notes."""
    decode = decoder(config.model.path)

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        reading = read(rollout.text)
        return {
            "tokens": rollout.length,
            "right": float(is_right(reading, prompt)),
            "passed": float(is_right(reading, prompt)),
            "judged": float(reading.letter is not None),
            "well_formed": float(reading.well_formed),
            "said_a": None if reading.letter is None else float(reading.letter == "A"),
            "a_is_original": float(prompt.references[0] == "A"),
            "notes_tokens": notes_tokens(rollout, reading, decode),
            "truncated": float(rollout.truncated),
            "kind": prompt.metadata["kind"],
        }

    return measure


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return accuracy, which counts a missing judgement as wrong, with its exact 95 % interval; `p_chance`, the
    two-sided exact probability that coin tosses give an accuracy as far from 1/2; the share of judgements that say A
    with its p against 1/2; the accuracy where A, and where B, is the original; accuracy by kind of fault."""
    from scipy.stats import binomtest

    n, right = len(rows), sum(row["right"] == 1 for row in rows)
    low, high = exact_interval(right, n)
    said = [row["said_a"] for row in rows if row["said_a"] is not None]
    notes = [row["notes_tokens"] for row in rows if row["notes_tokens"] is not None]
    return {
        **length_table([row["tokens"] for row in rows]),
        "accuracy": mean(rows, "right"),
        "accuracy_low": low,
        "accuracy_high": high,
        "p_chance": float(binomtest(right, n).pvalue),
        "judged": mean(rows, "judged"),
        "well_formed": mean(rows, "well_formed"),
        "truncated": mean(rows, "truncated"),
        "position/said_a": fmean(said) if said else None,
        "position/p": float(binomtest(round(sum(said)), len(said)).pvalue) if said else None,
        "position/accuracy_a": mean([row for row in rows if row["a_is_original"] == 1], "right"),
        "position/accuracy_b": mean([row for row in rows if row["a_is_original"] == 0], "right"),
        "notes/mean": fmean(notes) if notes else None,
        "notes/std": pstdev(notes) if notes else None,
        **{f"kind/{kind}": mean([row for row in rows if row["kind"] == kind], "right") for kind in KINDS},
        **{f"kind_n/{kind}": float(sum(row["kind"] == kind for row in rows)) for kind in KINDS},
    }


ERRORS = (
    ErrorKind("wrong", "took the corrupted sample for the original", lambda row: row["judged"] == 1 > row["right"]),
    ErrorKind("no judgement", "not one A or B in <judgement> tags", lambda row: row["judged"] == 0),
    ErrorKind("form", "other than notes and judgement in their tags", lambda row: not row["well_formed"]),
    ErrorKind("truncated", "cut at sampling.max_new_tokens", lambda row: row["truncated"] == 1),
)

ACCURACY = Metric("accuracy", "accuracy", better="higher", role="quality", column="right")
LOW, HIGH = Metric("accuracy_low", "95 % from"), Metric("accuracy_high", "to")
CHANCE = Metric("p_chance", "p (chance)", ".1g")
SAID_A = Metric("position/said_a", "said A", ".0%")
FORMED = Metric("well_formed", "well formed", ".0%", better="higher", role="constraint", meaning="well-formed answers")
NOTES = Metric("notes/mean", "notes", ".1f")
TABLES = (
    MetricTable("judgements", (ACCURACY, LOW, HIGH, CHANCE, Metric("judged", "judged", ".0%"), FORMED)),
    MetricTable(
        "position",
        (
            SAID_A,
            Metric("position/p", "p (chance)", ".1g"),
            Metric("position/accuracy_a", "right where A is"),
            Metric("position/accuracy_b", "right where B is"),
        ),
    ),
    MetricTable(
        "length in tokens",
        (
            Metric("notes/mean", "notes: mean", ".1f"),
            Metric("notes/std", "std", ".1f"),
            Metric("completions/mean_length", "all: mean", ".1f"),
            *(Metric(f"completions/p{p}_length", f"P{p}", ".0f") for p in PERCENTILES),
            Metric("truncated", "truncated"),
        ),
    ),
    MetricTable("accuracy by fault", tuple(Metric(f"kind/{kind}", kind, ".0%") for kind in KINDS)),
    MetricTable("pairs by fault", tuple(Metric(f"kind_n/{kind}", kind, ".0f") for kind in KINDS)),
)

TASK = Task(
    name="ab-judge",
    settings=AbJudgeConfig,
    prompts=TaskPrompts(
        messages=messages,
        load=load,
        preview=preview,
        preview_note=preview_note,
        variant=variant,
        baselines=("128-tokens",),
    ),
    rewards=TaskRewards(signals=SIGNALS),
    evaluation=TaskEvaluation(
        measurer=measurer,
        quick_measurer=measurer,
        summarise=summarise,
        step_metrics=step_metrics,
        watched={"accuracy": ("accuracy",)},
        headlines=(ACCURACY, LOW, HIGH, CHANCE, SAID_A, FORMED, NOTES),
        tables=TABLES,
        errors=ERRORS,
        score="right",
    ),
    presets=task_presets("ab-judge"),
    check=check,
)
