"""The task: its signals, what it measures of a summary, and how the results are shown."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

from smolsum.config.presets import task_presets
from smolsum.config.sections import Config
from smolsum.rewards import REWARDS
from smolsum.rewards.grounded import supported_share
from smolsum.rewards.meteor import find_lexicon, meteor
from smolsum.rewards.overlap import bleu, rouge_l
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
    TaskTargets,
    mean,
)
from smolsum.tasks.data import Split
from smolsum.tasks.facts import count_facts, vocabulary
from smolsum.tasks.nonwords import KnownWords, known_words
from smolsum.tasks.text_metrics import CLOSE, PERCENTILES, copied_share, novel_ngrams, repeated_trigrams
from smolsum.tasks.tldr.criteria import CRITERIA
from smolsum.tasks.tldr.lengths import (
    LENGTH,
    LENGTHS,
    ON_TARGET,
    TABLES,
    counter,
    length_measure,
    length_summary,
    score_short_sentences,
    score_summary_length,
    step_metrics,
)
from smolsum.tasks.tldr.settings import TldrConfig, baselines, check, messages, targets_of, variant
from smolsum.tasks.word_pairs import SeenPairs, seen_pairs
from smolsum.types import Prompt, Rollout

MEAN_COLUMNS = (
    "rouge", "meteor", "bleu", "supported", "copied", "novel_bigrams", "novel_trigrams", "repeated_trigrams",
    "nonwords", "unseen_pairs", "empty", "truncated",
)  # fmt: skip
"""columns whose means it has under their own names"""
FACT_COUNTS = ("right", "wrong", "missing")
COPIED, REPETITIVE, UNFAITHFUL = 0.5, 0.2, 0.5
"""error thresholds: shares of copied words and of repeated trigrams, upper bounds; the judge's faithfulness, a lower"""


def measurer(splits: Sequence[Split], config: Config) -> Measure:
    """Measure a summary: its length, names and numbers, copying, repetition, non-words and unseen pairs of words, and,
    where the data have them, its overlap with the reference and its facts."""
    facts = [
        example.metadata["facts"] for split in splits for example in split.examples if example.metadata.get("facts")
    ]
    # the split that every run and evaluation of these data has, so that all know the same words
    examples = next((split for split in splits if split.name == "train"), *splits[:1]).examples if splits else ()
    length = length_measure(config)
    known = vocabulary(facts) if facts else None

    def found_meteor(text: str, references: Sequence[str]) -> float:
        return meteor(text, references, matcher=find_lexicon())  # not before: a dry run measures nothing

    def texts() -> Iterator[str]:
        return (text for one in examples for text in (one.source, *one.references))

    @cache
    def words() -> KnownWords | None:
        return known_words(texts(), find_lexicon())

    @cache
    def seen() -> SeenPairs:
        return seen_pairs(texts())

    def nonwords(text: str, source: str) -> float | None:
        return own.unknown_share(text, source) if text and (own := words()) else None

    overlap = (("rouge", rouge_l), ("meteor", found_meteor), ("bleu", bleu))

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        row: dict[str, Any] = {
            **length(prompt, rollout),
            "truncated": float(rollout.truncated),
            "empty": float(not rollout.text.strip()),
            **{name: score(rollout.text, prompt.references) if prompt.references else None for name, score in overlap},
            "supported": supported_share(rollout.text, prompt.source),
            "copied": copied_share(rollout.text, prompt.source),
            "novel_bigrams": novel_ngrams(rollout.text, prompt.source, 2),
            "novel_trigrams": novel_ngrams(rollout.text, prompt.source, 3),
            "repeated_trigrams": repeated_trigrams(rollout.text),
            "nonwords": nonwords(rollout.text, prompt.source),
            "unseen_pairs": seen().unseen_share(rollout.text, prompt.source) if rollout.text else None,
            # a constraint on them bounds nothing where a post has none
            **dict.fromkeys((f"facts_{key}" for key in FACT_COUNTS), None),
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
    summary: Summary = {**length_summary(rows), **{key: mean(rows, key) for key in MEAN_COLUMNS}}
    if stated := [row for row in rows if row.get("facts_right") is not None]:
        right, wrong, missing = (sum(row[f"facts_{key}"] for row in stated) for key in FACT_COUNTS)
        summary |= {f"facts/{key}": mean(stated, f"facts_{key}") for key in FACT_COUNTS}
        summary["facts/posts_without"] = len(rows) - len(stated)
        summary["facts/wrong_share"] = wrong / (right + wrong) if right + wrong else None
        summary["facts/covered_share"] = right / (right + missing) if right + missing else None
    return summary


def _beyond(column: str, limit: float) -> Callable[[MetricRow], bool | None]:
    """Return a test of whether a metric is over a limit."""
    return lambda row: None if row.get(column) is None else row[column] > limit


def _unfaithful(row: MetricRow) -> bool | None:
    return None if row.get("faithfulness") is None else row["faithfulness"] < UNFAITHFUL


def _unsupported(row: MetricRow) -> bool | None:
    return None if row.get("supported") is None else row["supported"] < 1


ERRORS = (
    ErrorKind("too long", "above the tolerance", lambda row: not row["within_tol"] and row["over_budget"] > 0),
    ErrorKind("too short", "below the tolerance", lambda row: not row["within_tol"] and row["over_budget"] == 0),
    ErrorKind("copied", f"over {COPIED:.0%} of the words in runs of the post", _beyond("copied", COPIED)),
    ErrorKind(
        "repetitive", f"over {REPETITIVE:.0%} of the trigrams said before", _beyond("repeated_trigrams", REPETITIVE)
    ),
    ErrorKind("non-words", "has a word that the post, the training split and WordNet lack", _beyond("nonwords", 0)),
    ErrorKind("empty", "no text at all", _beyond("empty", 0)),
    ErrorKind("unsupported", "has a name or number that the post does not", _unsupported),
    ErrorKind("wrong facts", "states a fact that the post does not", _beyond("facts_wrong", 0)),
    ErrorKind("unfaithful", f"judged below {UNFAITHFUL} in faithfulness", _unfaithful),
)


OVERLAP = (
    Metric("rouge", "ROUGE-L", ".3f", better="higher"),
    Metric("meteor", "METEOR", ".3f", better="higher", role="quality"),
    Metric("bleu", "BLEU", ".3f", better="higher"),
)
WRONG = Metric("facts/wrong_share", "wrong facts", better="lower", column="facts_wrong")
SUPPORTED = Metric("supported", "supported", better="higher")
REPEATED = Metric("repeated_trigrams", "repeated", better="lower")

TASK = Task(
    name="tldr",
    settings=TldrConfig,
    prompts=TaskPrompts(
        messages=messages,
        variant=variant,
        baselines_of=baselines,
        prompt_settings=("system_prompt", "length_request", "target_curriculum"),
    ),
    targets=TaskTargets(of=targets_of, length=lambda config: counter(cast(TldrConfig, config.task)), measures=LENGTHS),
    rewards=TaskRewards(signals={**REWARDS, "length": score_summary_length, "short_sentences": score_short_sentences}),
    evaluation=TaskEvaluation(
        measurer=measurer,
        quick_measurer=measurer,
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
            *TABLES,
            MetricTable("overlap with the reference", OVERLAP, needs="references"),
            MetricTable(
                "without a judge",
                (
                    SUPPORTED,
                    Metric("copied", "copied", better="lower"),
                    Metric("novel_bigrams", "new bigrams"),
                    Metric("novel_trigrams", "new trigrams"),
                    REPEATED,
                    Metric("nonwords", "non-words", better="lower"),
                    Metric("unseen_pairs", "unseen pairs", better="lower"),
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
