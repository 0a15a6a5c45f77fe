"""Document QA: a summary within a word limit that answers questions about its document; the policy never sees them.

A summary is rewarded for the questions that it answers, or for its rank in its group, and for keeping to the limit.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from smolsum.config.presets import task_presets
from smolsum.config.sections import Config
from smolsum.rewards import REWARDS
from smolsum.rewards.signal import Values, described
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
    own_instruction,
)
from smolsum.tasks.data import Example, Split
from smolsum.tasks.doc_qa.documents import load
from smolsum.tasks.doc_qa.reader import answered, check_reader, metric_settings, ranked, reading, share
from smolsum.tasks.doc_qa.settings import RULES, DocQaConfig, settings
from smolsum.tasks.text_metrics import copied_share, count_words, first_words, repeated_trigrams, word_limit_reward
from smolsum.types import Prompt, Rollout, RolloutGroup


@described("[0, 1]", "share of the questions that a reader answers rightly from the summary alone")
def score_answered(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG shares of the document's questions that the reader answers rightly from the summary alone, in [0, 1];
    None where the reader failed."""
    readings = [reading(r.text, g.prompt) for g in groups for r in g.rollouts]
    shares = iter([share(verdicts) for verdicts in answered(readings, config)])
    return [[next(shares) for _ in group.rollouts] for group in groups]


@described("[-1, 0]", "words over the limit, in limits, negative", by_length=True, by_end=True)
def score_word_limit(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG rewards in [-1, 0], those of `word_limit_reward`."""
    limit = settings(config).max_words
    return [[word_limit_reward(count_words(r.text), limit) for r in group.rollouts] for group in groups]


@described("[0, 1]", "the reader's score of a summary, compared with the others of its group")
def score_ranking(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG scores in [0, 1] from comparing the summaries of a group with each other, as ART's RULER does; None
    for a whole group that the reader did not rank. They compare within a group only, as an advantage does."""
    found = ranked([[reading(r.text, g.prompt) for r in g.rollouts] for g in groups], config)
    return [list(f) if f is not None else [None] * len(g.rollouts) for f, g in zip(found, groups, strict=True)]


MEANS = (
    "answered_within", "answered", "ceiling", "words", "over_limit",
    "copied", "repeated_trigrams", "empty", "truncated", "passed",
)  # fmt: skip


def messages(example: Example, config: Config) -> Messages:
    """Return the system prompt with the limit, and the document as the user's turn."""
    task = settings(config)
    return chat(task.system_prompt.replace("{max_words}", str(task.max_words)), example)


def measurer(splits: Sequence[Split], config: Config) -> Measure:
    """Measure a summary: the shares of questions answered from it, from its first `max_words` words, and from the whole
    document; its words; what it copies and repeats. Raises UsageError for a reader that cannot read these data."""
    limit = settings(config).max_words
    check_reader(splits[0].examples[0].metadata, settings(config))

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        found = answered([reading(text, prompt) for text in texts(prompt, rollout, limit)], config)
        whole, within, ceiling = map(share, found)
        words = count_words(rollout.text)
        return {
            "answered_within": within,
            "answered": whole,
            "ceiling": ceiling,
            "passed": None if within is None else float(within == 1.0),
            "tokens": rollout.length,
            "words": words,
            "over_limit": float(words > limit),
            "copied": copied_share(rollout.text, prompt.source),
            "repeated_trigrams": repeated_trigrams(rollout.text),
            "empty": float(not rollout.text.strip()),
            "truncated": float(rollout.truncated),
        }

    return measure


def ask_ahead(completions: Sequence[tuple[Prompt, Rollout]], config: Config) -> None:
    """Ask a model about all completions at once; the answers are kept for the measures. Rules need no request."""
    limit = settings(config).max_words
    if settings(config).reader != RULES:
        answered([reading(t, p) for p, r in completions for t in texts(p, r, limit)], config)


def texts(prompt: Prompt, rollout: Rollout, limit: int) -> tuple[str, str, str]:
    """Return the texts that are read: the completion, what the limit leaves of it, and the document."""
    return rollout.text, first_words(rollout.text, limit), prompt.source


def summarise(rows: Sequence[MetricRow]) -> Summary:
    """Return means over the examples that have a value, and the number of examples without a score."""
    summary: Summary = {key: mean(rows, key) for key in MEANS}
    summary["completions/mean_length"] = mean(rows, "tokens")
    return summary | {"unread": float(sum(row["answered_within"] is None for row in rows))}


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Return the mean number of words of a step's completions, and the share of those over the limit."""
    limit = settings(config).max_words
    counts = [count_words(rollout.text) for group in groups for rollout in group.rollouts]
    return {"words/mean": fmean(counts), "words/over_limit": fmean(count > limit for count in counts)}


WITHIN = Metric("answered_within", "answered within the limit", better="higher", role="quality")
WHOLE = Metric("answered", "answered", better="higher")
CEILING = Metric("ceiling", "from the document")
WORDS = Metric("words", "words", ".1f")
OVER = Metric("over_limit", "over the limit", ".0%", better="lower", role="constraint")
REPEATED = Metric("repeated_trigrams", "repeated", better="lower")

TASK = Task(
    name="doc-qa",
    settings=DocQaConfig,
    prompts=TaskPrompts(
        messages=messages, load=load, variant=partial(own_instruction, own="limit"), baselines=("limit",)
    ),
    rewards=TaskRewards(
        signals={
            "answered": score_answered,
            "ranking": score_ranking,
            "word_limit": score_word_limit,
            "overlong": REWARDS["overlong"],
        }
    ),
    evaluation=TaskEvaluation(
        measurer=measurer,
        measures=metric_settings,
        ask_ahead=ask_ahead,
        summarise=summarise,
        step_metrics=step_metrics,
        watched={"answered": ("rewards/answered/mean", "answered")},
        headlines=(WITHIN, WHOLE, CEILING, WORDS, OVER, REPEATED),
        missing=Metric("unread", "not read", ".0f"),
        tables=(
            MetricTable("questions answered", (WITHIN, WHOLE, CEILING, Metric("passed", "all of them", ".0%"))),
            MetricTable("words", (WORDS, OVER, Metric("completions/mean_length", "tokens", ".1f"))),
            MetricTable("the text", (Metric("copied", "copied"), REPEATED, Metric("empty", "empty"))),
        ),
        errors=(
            ErrorKind("over_limit", "more words than the limit", lambda row: row["over_limit"] == 1.0),
            ErrorKind("empty", "no text", lambda row: row["empty"] == 1.0),
            ErrorKind(
                "nothing", "answers no question", lambda row: None if (v := row["answered_within"]) is None else v == 0
            ),
            ErrorKind("repetition", "a fifth of its trigrams stood before", lambda row: row["repeated_trigrams"] > 0.2),
        ),
        score="answered_within",
    ),
    presets=task_presets("doc-qa"),
)
