"""Judging which of two samples is the original, the other having been corrupted: notes first, then a letter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from smolsum.config.presets import task_presets
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError
from smolsum.rewards import REWARDS
from smolsum.tasks.ab_judge.corruption import MIN_WORDS
from smolsum.tasks.ab_judge.measures import ERRORS, HEADLINES, PANELS, measurer, summarise
from smolsum.tasks.ab_judge.pairs import NOTES_TOKENS, AbJudgeConfig, make_pairs, rules, settings
from smolsum.tasks.ab_judge.signals import MEANINGS, SIGNALS, is_right, read
from smolsum.tasks.base import Messages, Task
from smolsum.tasks.data import Example, Split, generated_split, load_split
from smolsum.types import RolloutGroup


def load(config: Config, split: str) -> Split:
    """A pair of each text of the split's `data.prompt_column` that can be corrupted, and how many cannot. UsageError
    where none can."""
    texts = load_split(config.data, split, references=False)
    task = settings(config)
    if task.corruptor == "rules":
        corruptor = rules(config, texts)
    else:
        from smolsum.tasks.ab_judge.corruptor_model import by_model  # loads an HTTP client

        corruptor = by_model(task.corruptor, texts.examples)
    pairs = make_pairs(texts.examples, corruptor, seed=task.pairs_seed)
    if not pairs.examples:
        raise _no_pairs(f"none of the {len(texts.examples)} texts of the {split} split can be corrupted", task)
    left_out = (
        f"{pairs.skipped} of {len(texts.examples)} texts of the {split} split cannot be corrupted and were left out"
    )
    return generated_split(split, pairs.examples, left_out if pairs.skipped else "")


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
    """The instruction with the number of tokens in it, and both samples."""
    task = settings(config)
    system = task.system_prompt.replace(NOTES_TOKENS, str(task.notes_tokens))
    return (*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": example.source})


def check(config: Config) -> Sequence[str]:
    """A warning where advantages are standardised, which takes the power of the accuracy out again."""
    task, scale = settings(config), config.grpo.advantage_scale
    scaled = [name for name, stage in config.stages.items() if stage.rewards.get("judgement")]
    if not scaled or task.accuracy_power == 0 or scale == "none":
        return ()
    return (
        f"task.accuracy_power = {task.accuracy_power:g} does next to nothing with grpo.advantage_scale = {scale}: it "
        "multiplies all right judgements of a step alike, and dividing by a standard deviation takes that out again; "
        "to let it act: --set grpo.advantage_scale=none",
    )


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """The share of a step's judgements that are right, and of those that say A."""
    readings = [(read(rollout.text), group.prompt) for group in groups for rollout in group.rollouts]
    said = [reading.letter == "A" for reading, _ in readings if reading.letter]
    accuracy = {"accuracy": fmean(is_right(reading, prompt) for reading, prompt in readings)}
    return accuracy | ({"position/said_a": fmean(said)} if said else {})


def variant(task: TaskConfig, text: str) -> TaskConfig:
    """The settings that a baseline's `--prompt` means: `<N>-tokens` asks for notes of that length, anything of several
    words is the instruction itself. UsageError for another single word."""
    if match := re.fullmatch(r"(\d+)-tokens", text):
        return replace(task, notes_tokens=int(match[1]))  # type: ignore[call-arg]
    if len(text.split()) < 2:
        raise UsageError(f"no prompt {text!r}", hint="give 128-tokens (or another number), or a whole instruction")
    return replace(task, system_prompt=text)


TASK = Task(
    name="ab-judge",
    settings=AbJudgeConfig,
    messages=messages,
    meanings=MEANINGS,
    signals={**SIGNALS, "overlong": REWARDS["overlong"]},
    presets=task_presets("ab-judge"),
    load=load,
    check=check,
    measurer=measurer,
    summarise=summarise,
    step_metrics=step_metrics,
    watched={"accuracy": ("accuracy",)},
    headlines=HEADLINES,
    panels=PANELS,
    errors=ERRORS,
    score="right",
    variant=variant,
    baselines=("128-tokens",),
)
