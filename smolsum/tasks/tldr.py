"""Summaries of a set length: the study's task.

The judge's criteria are the four metrics of the study (Table 3), in our words. The judge sees neither the reference nor
the target length: length is measured, not judged.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any, cast

from smolsum.config.fields import Count, PositiveCount
from smolsum.config.presets import task_presets
from smolsum.config.sections import Config, TaskConfig
from smolsum.rewards import REWARDS
from smolsum.rewards.length import score_length
from smolsum.rewards.meteor import find_lexicon, meteor
from smolsum.rewards.overlap import bleu, rouge_l
from smolsum.rewards.signal import Values
from smolsum.tasks.base import (
    ErrorKind,
    Measure,
    Metric,
    MetricRow,
    MetricTable,
    Summary,
    Task,
    TaskEvaluation,
    TaskPrompts,
    TaskRewards,
    mean,
    with_instruction,
)
from smolsum.tasks.data import Split
from smolsum.tasks.facts import count_facts, vocabulary
from smolsum.tasks.text_metrics import (
    CLOSE,
    PERCENTILES,
    copied_share,
    length_row,
    length_table,
    novel_ngrams,
    repeated_trigrams,
)
from smolsum.types import Criterion, Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class TldrConfig(TaskConfig):
    """What a summary has to be."""

    system_prompt: str = "Summarise the post. Keep the key points and who did what."
    """System message of every prompt. It states no length: length is learnt from the reward."""
    target_tokens: PositiveCount = 64
    """Length of a perfect completion in tokens, without the end-of-sequence token."""
    tolerance_tokens: Count = 5
    """Distance from the target in tokens that still counts as on target. Where nothing sets it, it follows the target:
    5 for 64, in proportion, at least 1."""

    @property
    def needed_tokens(self) -> int:
        """The longest summary that is on target."""
        return self.target_tokens + self.tolerance_tokens

    @property
    def derived(self) -> dict[str, tuple[Any, str]]:
        """The tolerance for the target."""
        tolerance = max(1, round(TldrConfig.tolerance_tokens * self.target_tokens / TldrConfig.target_tokens))
        return {"tolerance_tokens": (tolerance, "derived from task.target_tokens")}


def check(config: Config) -> list[str]:
    """Return a warning where completions end before the target."""
    target, tokens = cast(TldrConfig, config.task).target_tokens, config.sampling.max_new_tokens
    if tokens >= target:
        return []
    return [
        f"no summary can reach task.target_tokens = {target}: sampling.max_new_tokens = {tokens} cuts it before;"
        f" --set sampling.max_new_tokens={2 * target}, or a smaller target"
    ]


def variant(task: TaskConfig, text: str) -> TaskConfig:
    """Return the settings with the system prompt that a baseline's `--prompt` means: `<N>-words` or `<N>-tokens` adds
    that length to the usual prompt, several words are the prompt itself. Raises UsageError for another single word."""
    if match := re.fullmatch(r"([1-9]\d*)-(words|tokens)", text):
        asked = f"{TldrConfig().system_prompt} Use exactly {match[1]} {match[2]}."
        return replace(task, system_prompt=asked)
    return with_instruction(task, text, "50-words, 64-tokens (or another number)")


@cache
def _encoder(model: str) -> Callable[[str], list[int]]:
    from smolsum.policy.load import load_encoder  # takes a second

    return load_encoder(model)


def score_summary_length(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG length rewards, of the tokens that `rewards.length_counts` names."""
    if config.rewards.length_counts == "sampled":
        return score_length(groups, config)
    encode = _encoder(config.model.path)
    return score_length(groups, config, lambda rollout: len(encode(rollout.text)))


FAITHFULNESS = Criterion(
    "faithfulness",
    (
        "Break the Actual Output into its single claims: who did what, when, where, why, how much.",
        "Look each claim up in the Input. It must be said there or follow directly from it.",
        "Lower the score for each claim that the Input does not support, and more for one that it contradicts, such as "
        "a deed given to another person or a changed number.",
        "Give the highest score only if every claim is supported, and the lowest if the main claims are made up or "
        "contradicted.",
    ),
)
COVERAGE = Criterion(
    "coverage",
    (
        "List the key points of the Input: what it is about, what happened, and what the writer wants or asks.",
        "For each key point decide whether the Actual Output conveys it, in whatever words.",
        "Lower the score for each key point that is left out where a reader would then misunderstand the Input.",
        "Do not lower the score for small details that are left out.",
        "Give the highest score if every key point is conveyed, and the lowest if none is.",
    ),
)
CONCISENESS = Criterion(
    "conciseness",
    (
        "Compare the lengths: the Actual Output should be much shorter than the Input.",
        "Lower the score for anything that is said twice, in the same or in other words.",
        "Lower the score for filler, padding, roundabout phrases and details that a summary does not need.",
        "Give the highest score if no word could be spared, and the lowest if it is as long as the Input or mostly "
        "repetition.",
    ),
)
CLARITY = Criterion(
    "clarity",
    (
        "Judge whether the Actual Output says what it means in plain, direct language.",
        "Check grammar, punctuation and sentences; lower the score for fragments, garbled words and a text that is cut "
        "off.",
        "Lower the score for jargon that is not explained, and for a pronoun that could mean more than one person or "
        "thing.",
        "Judge whether somebody who sees nothing but the Actual Output can follow it.",
        "Give the highest score if it reads easily from the first word to the last, and the lowest if it cannot be "
        "understood.",
    ),
    sees=("completion",),
)
CRITERIA = (FAITHFULNESS, COVERAGE, CONCISENESS, CLARITY)


LENGTHS = ("within_tol", *(f"within_{n}" for n in CLOSE), "over_budget", "off_target")
"""columns whose means the summary has below `length/`"""
TEXT = (
    "rouge", "meteor", "bleu", "copied", "novel_bigrams", "novel_trigrams", "repeated_trigrams", "empty", "truncated",
)  # fmt: skip
"""columns whose means it has under their own names"""
FACTS = ("right", "wrong", "missing")
COPIED, REPETITIVE, UNFAITHFUL = 0.5, 0.2, 0.5
"""error thresholds: shares of copied words and of repeated trigrams, upper bounds; the judge's faithfulness, a lower"""


def measurer(splits: Sequence[Split], config: Config) -> Measure:
    """Measure a summary: its length, copying and repetition, and, where the data have them, its overlap with the
    reference and its facts."""
    facts = [
        example.metadata["facts"] for split in splits for example in split.examples if example.metadata.get("facts")
    ]
    task = cast(TldrConfig, config.task)
    known = vocabulary(facts) if facts else None

    def found_meteor(text: str, references: Sequence[str]) -> float:
        return meteor(text, references, matcher=find_lexicon())  # not before: a dry run measures nothing

    overlap = (("rouge", rouge_l), ("meteor", found_meteor), ("bleu", bleu))

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        row: dict[str, Any] = {
            **length_row(rollout.length, task.target_tokens, task.tolerance_tokens),
            "truncated": float(rollout.truncated),
            "empty": float(not rollout.text.strip()),
            **{name: score(rollout.text, prompt.references) if prompt.references else None for name, score in overlap},
            "copied": copied_share(rollout.text, prompt.source),
            "novel_bigrams": novel_ngrams(rollout.text, prompt.source, 2),
            "novel_trigrams": novel_ngrams(rollout.text, prompt.source, 3),
            "repeated_trigrams": repeated_trigrams(rollout.text),
        }
        if known and prompt.metadata.get("facts"):
            count = count_facts(rollout.text, prompt.metadata["facts"], known)
            row |= {"facts_right": count.right, "facts_wrong": count.wrong, "facts_missing": count.missing}
        return row

    return measure


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return lengths, and means over the examples that have a value. `facts/wrong_share` is the split's wrongly stated
    facts over all stated ones, `facts/covered_share` the rightly stated ones over all that the posts have. Posts
    without facts count in neither; `facts/posts_without` is their number."""
    summary: Summary = {
        **length_table([row["tokens"] for row in rows]),
        **{f"length/{key}": mean(rows, key) for key in LENGTHS},
        **{key: mean(rows, key) for key in TEXT},
    }
    if stated := [row for row in rows if row.get("facts_right") is not None]:
        right, wrong, missing = (sum(row[f"facts_{key}"] for row in stated) for key in FACTS)
        summary |= {f"facts/{key}": mean(stated, f"facts_{key}") for key in FACTS}
        summary["facts/posts_without"] = len(rows) - len(stated)
        summary["facts/wrong_share"] = wrong / (right + wrong) if right + wrong else None
        summary["facts/covered_share"] = right / (right + missing) if right + missing else None
    return summary


def _beyond(column: str, limit: float) -> Callable[[MetricRow], bool | None]:
    """Return a test of whether a metric is over a limit."""
    return lambda row: None if row.get(column) is None else row[column] > limit


def _unfaithful(row: MetricRow) -> bool | None:
    return None if row.get("faithfulness") is None else row["faithfulness"] < UNFAITHFUL


ERRORS = (
    ErrorKind("too long", "above the tolerance", lambda row: not row["within_tol"] and row["over_budget"] > 0),
    ErrorKind("too short", "below the tolerance", lambda row: not row["within_tol"] and row["over_budget"] == 0),
    ErrorKind("copied", f"over {COPIED:.0%} of the words in runs of the post", _beyond("copied", COPIED)),
    ErrorKind(
        "repetitive", f"over {REPETITIVE:.0%} of the trigrams said before", _beyond("repeated_trigrams", REPETITIVE)
    ),
    ErrorKind("empty", "no text at all", _beyond("empty", 0)),
    ErrorKind("wrong facts", "states a fact that the post does not", _beyond("facts_wrong", 0)),
    ErrorKind("unfaithful", f"judged below {UNFAITHFUL} in faithfulness", _unfaithful),
)


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Return the shares of a step's completions that are of the wanted length: within the tolerance, within 1 and 2."""
    task = cast(TldrConfig, config.task)
    misses = [abs(rollout.length - task.target_tokens) for group in groups for rollout in group.rollouts]
    limits = {"within_tol": task.tolerance_tokens, **{f"within_{n}": n for n in CLOSE}}
    return {f"length/{name}": fmean(miss <= limit for miss in misses) for name, limit in limits.items()}


LENGTH = Metric("completions/mean_length", "tokens", ".1f")
ON_TARGET = Metric("length/within_tol", "on target", ".0%", better="higher", role="constraint", column="within_tol")
OVERLAP = (
    Metric("rouge", "ROUGE-L", ".3f", better="higher"),
    Metric("meteor", "METEOR", ".3f", better="higher", role="quality"),
    Metric("bleu", "BLEU", ".3f", better="higher"),
)
WRONG = Metric("facts/wrong_share", "wrong facts", better="lower", column="facts_wrong")
REPEATED = Metric("repeated_trigrams", "repeated", better="lower")

TASK = Task(
    name="tldr",
    settings=TldrConfig,
    prompts=TaskPrompts(variant=variant, baselines=("50-words", "64-tokens")),
    rewards=TaskRewards(signals={**REWARDS, "length": score_summary_length}),
    evaluation=TaskEvaluation(
        measurer=measurer,
        needs_all_splits=True,
        summarise=summarise,
        step_metrics=step_metrics,
        watched={"within_tol": ("length/within_tol",)},
        headlines=(LENGTH, ON_TARGET, *OVERLAP, WRONG, REPEATED),
        tables=(
            MetricTable(
                "length in tokens",
                (
                    Metric("completions/mean_length", "mean", ".1f"),
                    Metric("completions/std_length", "std", ".1f"),
                    Metric("completions/min_length", "min", ".0f"),
                    *(Metric(f"completions/p{p}_length", f"P{p}", ".0f") for p in PERCENTILES),
                    Metric("completions/max_length", "max", ".0f"),
                    ON_TARGET,
                    *(Metric(f"length/within_{n}", f"within {n}", ".0%") for n in CLOSE),
                    Metric("length/over_budget", "over budget", ".0%"),
                    Metric("length/off_target", "mean error", ".1f"),
                ),
            ),
            MetricTable("overlap with the reference", OVERLAP, needs="references"),
            MetricTable(
                "without a judge",
                (
                    Metric("copied", "copied"),
                    Metric("novel_bigrams", "new bigrams"),
                    Metric("novel_trigrams", "new trigrams"),
                    REPEATED,
                    Metric("empty", "empty"),
                    Metric("truncated", "truncated"),
                ),
            ),
            MetricTable(
                "facts a summary",
                (
                    Metric("facts/right", "right", ".2f"),
                    Metric("facts/wrong", "wrong", ".2f"),
                    Metric("facts/missing", "not stated", ".2f"),
                    WRONG,
                    Metric("facts/covered_share", "covered"),
                    Metric("facts/posts_without", "posts without facts", ".0f"),
                ),
                needs="facts",
            ),
        ),
        errors=ERRORS,
        criteria=CRITERIA,
    ),
    presets=task_presets("tldr"),
    check=check,
)
