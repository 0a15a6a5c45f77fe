"""Summaries of a set length: the study's task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

from smolsum.config import Config
from smolsum.data import Example, Split
from smolsum.rewards.bleu import bleu
from smolsum.rewards.meteor import meteor
from smolsum.rewards.rouge import rouge_l
from smolsum.rewards.wordnet import find_lexicon
from smolsum.rollout.records import Prompt, Rollout
from smolsum.tasks.facts import count_facts, vocabulary
from smolsum.tasks.proxies import repeated_trigrams
from smolsum.tasks.task import Headline, Messages, Row, Task


def messages(example: Example, config: Config) -> Messages:
    """The system prompt, which states no length, and the post as the user's turn."""
    system = ({"role": "system", "content": config.task.system_prompt},) if config.task.system_prompt else ()
    return (*system, {"role": "user", "content": example.source})


def measurer(splits: Sequence[Split], config: Config) -> Callable[[Prompt, Rollout], dict[str, Any]]:
    """Metrics of one summary: tokens, on target or not, overlap with the reference, repetition, and facts where the
    data has them."""
    facts = [
        example.metadata["facts"] for split in splits for example in split.examples if example.metadata.get("facts")
    ]
    known, matcher = vocabulary(facts) if facts else None, find_lexicon()

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        row: dict[str, Any] = {
            "tokens": rollout.length,
            "within_tol": float(abs(rollout.length - config.task.target_tokens) <= config.task.tolerance_tokens),
            "truncated": float(rollout.truncated),
            "rouge": rouge_l(rollout.text, prompt.references),
            "meteor": meteor(rollout.text, prompt.references, matcher=matcher),
            "bleu": bleu(rollout.text, prompt.references),
            "repeated_trigrams": repeated_trigrams(rollout.text),
        }
        if known and prompt.metadata.get("facts"):
            count = count_facts(rollout.text, prompt.metadata["facts"], known)
            row |= {"facts_right": count.right, "facts_wrong": count.wrong, "facts_missing": count.missing}
        return row

    return measure


def summarise(rows: Sequence[Row]) -> dict[str, float | None]:
    """Means over the split; `facts/wrong_share` is wrongly stated facts over all stated facts of the split."""
    means = {
        key: fmean(row[key] for row in rows) for key in ("rouge", "meteor", "bleu", "repeated_trigrams", "truncated")
    }
    summary: dict[str, float | None] = {
        "completions/mean_length": fmean(row["tokens"] for row in rows),
        "completions/std_length": pstdev(row["tokens"] for row in rows),
        "length/within_tol": fmean(row["within_tol"] for row in rows),
        **means,
    }
    if all("facts_right" in row for row in rows):
        right, wrong, missing = (sum(row[f"facts_{key}"] for row in rows) for key in ("right", "wrong", "missing"))
        summary["facts/wrong_share"] = wrong / (right + wrong) if right + wrong else None
        summary["facts/covered_share"] = right / (right + missing) if right + missing else None
    return summary


TASK = Task(
    name="tldr",
    messages=messages,
    measurer=measurer,
    summarise=summarise,
    headlines=(
        Headline("completions/mean_length", "tokens", "{:.1f}".format),
        Headline("length/within_tol", "on target", "{:.0%}".format),
        Headline("rouge", "ROUGE-L", "{:.3f}".format),
        Headline("meteor", "METEOR", "{:.3f}".format),
        Headline("bleu", "BLEU", "{:.3f}".format),
        Headline("facts/wrong_share", "wrong facts", "{:.1%}".format),
        Headline("repeated_trigrams", "repeated", "{:.1%}".format),
    ),
)
