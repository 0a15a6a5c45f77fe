"""What is measured on judgements: accuracy against chance, bias to a position, notes, and accuracy by kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any

from smolsum.config.sections import Config
from smolsum.tasks.ab_judge.corruption import BY_MODEL, FAULTS
from smolsum.tasks.ab_judge.signals import decoder, is_right, notes_tokens, read
from smolsum.tasks.base import ErrorKind, Headline, MetricTable, Row
from smolsum.tasks.data import Split
from smolsum.tasks.text_metrics import PERCENTILES, length_table
from smolsum.types import Prompt, Rollout

KINDS = (*FAULTS, BY_MODEL)


def measurer(splits: Sequence[Split], config: Config) -> Callable[[Prompt, Rollout], dict[str, Any]]:
    """Metrics of one judgement. `right` (and `passed`), `judged`, `well_formed` and `truncated` are 0 or 1; `said_a`
    too, None without a judgement; `a_is_original` says which letter is right; `notes_tokens` is None without notes."""
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


def summarise(rows: Sequence[Row]) -> dict[str, float | None]:
    """Accuracy counts what has no judgement as wrong. `accuracy_low` and `accuracy_high` are its 95 % interval
    (Wilson's), `p_chance` the two-sided exact probability of an accuracy as far from 1/2 by tossing a coin. Position:
    the share of judgements that say A, its p against 1/2, and the accuracy where A, and where B, is the original."""
    from scipy.stats import binomtest

    n, right = len(rows), sum(row["right"] == 1 for row in rows)
    said = [row["said_a"] for row in rows if row["said_a"] is not None]
    notes = [row["notes_tokens"] for row in rows if row["notes_tokens"] is not None]
    test = binomtest(right, n) if n else None
    interval = test.proportion_ci(method="wilson") if test else None
    return {
        **length_table([row["tokens"] for row in rows]),
        "accuracy": _mean(rows, "right"),
        "accuracy_low": float(interval.low) if interval else None,
        "accuracy_high": float(interval.high) if interval else None,
        "p_chance": float(test.pvalue) if test else None,
        "judged": _mean(rows, "judged"),
        "well_formed": _mean(rows, "well_formed"),
        "truncated": _mean(rows, "truncated"),
        "position/said_a": fmean(said) if said else None,
        "position/p": float(binomtest(round(sum(said)), len(said)).pvalue) if said else None,
        "position/accuracy_a": _mean([row for row in rows if row["a_is_original"] == 1], "right"),
        "position/accuracy_b": _mean([row for row in rows if row["a_is_original"] == 0], "right"),
        "notes/mean": fmean(notes) if notes else None,
        "notes/std": pstdev(notes) if notes else None,
        **{f"kind/{kind}": _mean([row for row in rows if row["kind"] == kind], "right") for kind in KINDS},
        **{f"kind_n/{kind}": float(sum(row["kind"] == kind for row in rows)) for kind in KINDS},
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    return fmean(row[key] for row in rows) if rows else None


ERRORS = (
    ErrorKind("wrong", "took the corrupted sample for the original", lambda row: row["judged"] == 1 > row["right"]),
    ErrorKind("no judgement", "not one A or B in <judgement> tags", lambda row: row["judged"] == 0),
    ErrorKind("form", "other than notes and judgement in their tags", lambda row: not row["well_formed"]),
    ErrorKind("truncated", "cut at sampling.max_new_tokens", lambda row: row["truncated"] == 1),
)

ACCURACY = Headline("accuracy", "accuracy", "{:.1%}".format)
LOW, HIGH = Headline("accuracy_low", "95 % from", "{:.1%}".format), Headline("accuracy_high", "to", "{:.1%}".format)
CHANCE = Headline("p_chance", "p (chance)", "{:.1g}".format)
SAID_A = Headline("position/said_a", "said A", "{:.0%}".format)
FORMED = Headline("well_formed", "well formed", "{:.0%}".format)
NOTES = Headline("notes/mean", "notes", "{:.1f}".format)
HEADLINES = (ACCURACY, LOW, HIGH, CHANCE, SAID_A, FORMED, NOTES)
PANELS = (
    MetricTable("judgements", (ACCURACY, LOW, HIGH, CHANCE, Headline("judged", "judged", "{:.0%}".format), FORMED)),
    MetricTable(
        "position",
        (
            SAID_A,
            Headline("position/p", "p (chance)", "{:.1g}".format),
            Headline("position/accuracy_a", "right where A is", "{:.1%}".format),
            Headline("position/accuracy_b", "right where B is", "{:.1%}".format),
        ),
    ),
    MetricTable(
        "length in tokens",
        (
            Headline("notes/mean", "notes: mean", "{:.1f}".format),
            Headline("notes/std", "std", "{:.1f}".format),
            Headline("completions/mean_length", "all: mean", "{:.1f}".format),
            *(Headline(f"completions/p{p}_length", f"P{p}", "{:.0f}".format) for p in PERCENTILES),
            Headline("truncated", "truncated", "{:.1%}".format),
        ),
    ),
    MetricTable("accuracy by fault", tuple(Headline(f"kind/{kind}", kind, "{:.0%}".format) for kind in KINDS)),
    MetricTable("pairs by fault", tuple(Headline(f"kind_n/{kind}", kind, "{:.0f}".format) for kind in KINDS)),
)
