"""The length of a summary against what its prompt asks for: the reward, the measures, and the metrics of a step."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from statistics import StatisticsError, correlation, fmean
from typing import Any, cast

from smolsum.config.sections import Config
from smolsum.config.targets import GOT, TARGET, TOKENS, target_of, tolerance_of
from smolsum.rewards.length import score_length
from smolsum.rewards.signal import Values, described, facts_of
from smolsum.tasks.base import Metric, MetricRow, MetricTable, Summary, mean
from smolsum.tasks.text_metrics import CLOSE, count_sentences, count_words, length_row, length_table, sentences
from smolsum.tasks.tldr.settings import TldrConfig, targets_of
from smolsum.types import Prompt, Rollout, RolloutGroup

LENGTHS = ("within_tol", *(f"within_{n}" for n in CLOSE), "over_budget", "off_target")
"""columns whose means the summary has below `length/`"""
UNSEEN = "unseen"
"""the column with 1 where training never asks for the prompt's target, else 0"""
CORRELATION = "length/correlation"
PARTS = {"unseen": 1.0, "seen": 0.0}
"""of the targets, by the value of their column"""


@cache
def _encoder(model: str) -> Callable[[str], list[int]]:
    from smolsum.policy.load import load_encoder  # takes a second

    return load_encoder(model)


def counter(task: TldrConfig) -> Callable[[Rollout], int]:
    """Return the function that counts a completion in `task.unit`: sampled tokens without the end-of-sequence token,
    or words or sentences of the text."""
    if task.unit == TOKENS:
        return lambda rollout: rollout.length
    count = count_words if task.unit == "words" else count_sentences
    return lambda rollout: count(rollout.text)


@described(**vars(facts_of(score_length)))
def score_summary_length(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG length rewards in `task.unit`, of the tokens that `rewards.length_counts` names."""
    task = cast(TldrConfig, config.task)
    if config.rewards.length_counts == "sampled":
        return score_length(groups, config, counter(task))
    encode = _encoder(config.model.path)
    return score_length(groups, config, lambda rollout: len(encode(rollout.text)))


@described("[-1, 0]", "share of the length that sentences as short as the tolerance is wide would leave over")
def score_short_sentences(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG rewards of short sentences, so that one can end within the tolerance whatever the sentences before: 0
    where the mean sentence has, in `task.unit`, at most the width of the tolerance, w = 2 tolerance + 1; else, of n
    sentences in a length l, n w / l - 1. Filler counts in the length alone: a sentence that is said again, that the
    step says of another prompt too, or that has no letter, such as the number of a list."""
    task = cast(TldrConfig, config.task)
    count = counter(task)
    said = [[{s for s in sentences(r.text) if any(map(str.isalpha, s))} for r in group.rollouts] for group in groups]
    prompts = Counter(sentence for own in said for sentence in set().union(*own))
    found: Values = []
    for group, texts in zip(groups, said, strict=True):
        width = 2 * tolerance_of(target_of(group.prompt.metadata, task), task) + 1
        filled = [width * sum(prompts[sentence] == 1 for sentence in own) for own in texts]
        lengths = [max(1, count(rollout)) for rollout in group.rollouts]
        found.append([min(0.0, own / length - 1) for own, length in zip(filled, lengths, strict=True)])
    return found


def length_measure(config: Config) -> Callable[[Prompt, Rollout], dict[str, Any]]:
    """Return the function that measures a completion's length: the columns of `length_row`, whose `tokens` are tokens
    whatever the unit; where prompts have targets of their own, also what was asked for and reached."""
    task, targets = cast(TldrConfig, config.task), targets_of(config)
    count, unseen = counter(task), frozenset(targets.unseen if targets else ())

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        target, got = target_of(prompt.metadata, task), count(rollout)
        row: dict[str, Any] = length_row(got, target, tolerance_of(target, task)) | {"tokens": rollout.length}
        if targets is not None:
            row |= {TARGET: target, GOT: got, UNSEEN: float(target in unseen)}
        return row

    return measure


def length_summary(rows: Sequence[MetricRow]) -> Summary:
    """Return the lengths of a split in tokens, and the means of their distances from the targets. Where prompts have
    targets of their own, also Pearson's correlation of asked and got, and the same of the targets that training asks
    for (`length/seen/`) and of those that it never does (`length/unseen/`), with their number `n`."""
    summary: Summary = {
        **length_table([row["tokens"] for row in rows]),
        **{f"length/{key}": mean(rows, key) for key in LENGTHS},
    }
    own = [row for row in rows if row.get(TARGET) is not None]
    if not own:
        return summary
    summary[CORRELATION] = _correlation(own)
    for part, value in PARTS.items():
        some = [row for row in own if row[UNSEEN] == value]
        if some and len(some) < len(own):
            summary |= {f"length/{part}/{key}": mean(some, key) for key in LENGTHS}
            summary |= {f"length/{part}/correlation": _correlation(some), f"length/{part}/n": float(len(some))}
    return summary


def _correlation(rows: Sequence[MetricRow]) -> float | None:
    """Return Pearson's correlation of asked and got; None for fewer than two rows, or where one does not vary."""
    try:
        return correlation([row[TARGET] for row in rows], [row[GOT] for row in rows])
    except StatisticsError:
        return None


def step_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Return the shares of a step's completions that are of the wanted length: within the tolerance, within 1 and 2;
    where prompts have targets of their own, also the mean distance, and the mean and extreme targets."""
    task = cast(TldrConfig, config.task)
    count, misses, tolerances = counter(task), list[int](), list[int]()
    for group in groups:
        target = target_of(group.prompt.metadata, task)
        misses += [abs(count(rollout) - target) for rollout in group.rollouts]
        tolerances += [tolerance_of(target, task)] * len(group.rollouts)
    within = fmean(miss <= tolerance for miss, tolerance in zip(misses, tolerances, strict=True))
    found = {"length/within_tol": within} | {f"length/within_{n}": fmean(miss <= n for miss in misses) for n in CLOSE}
    if task.targets:
        asked = [target_of(group.prompt.metadata, task) for group in groups]
        found |= {"length/off_target": fmean(misses), "length/mean_target": fmean(asked)}
        found |= {"length/min_target": float(min(asked)), "length/max_target": float(max(asked))}
    return found


LENGTH = Metric("completions/mean_length", "tokens", ".1f")
ON_TARGET = Metric("length/within_tol", "on target", ".0%", better="higher", role="constraint", column="within_tol")
TABLES = (
    MetricTable(
        "asked and got",
        (
            Metric("length/off_target", "mean error", ".2f", better="lower", column="off_target"),
            Metric("length/within_2", "within 2", ".0%", better="higher"),
            Metric(CORRELATION, "correlation", ".3f", better="higher"),
            *(
                metric
                for part in PARTS
                for metric in (
                    Metric(f"length/{part}/off_target", f"{part}: mean error", ".2f", better="lower"),
                    Metric(f"length/{part}/within_2", f"{part}: within 2", ".0%", better="higher"),
                    Metric(f"length/{part}/within_tol", f"{part}: on target", ".0%", better="higher"),
                    Metric(f"length/{part}/correlation", f"{part}: correlation", ".3f", better="higher"),
                )
            ),
        ),
        subject=CORRELATION,  # where all prompts ask for one length, the table of lengths says it all
    ),
)
