"""What is compared: a side is one evaluation, or several whose mean speaks for them (seeds, a strategy's runs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli
from numpy.typing import NDArray

from smolsum import console
from smolsum.errors import UsageError
from smolsum.runs import RunPaths
from smolsum.stats.scores import ORIGIN, Scores, load_scores

ASIDE = {
    "tokenizer": "count lengths in the tokens of different tokenizers",
    "max_new_tokens": "cut completions at different lengths",
    "sampler": "drew completions differently",
    "meteor": "matched METEOR's synonyms by different means",
}
"""what may differ in what is compared, and what it means if it does"""
_LISTED = 5
_NAMED = re.compile(r"(?P<name>[^=/\\,]+)=(?P<members>.+)")


@dataclass(frozen=True)
class Side:
    """One evaluation, or several of the same examples."""

    name: str
    members: tuple[Scores, ...]

    @property
    def ids(self) -> pl.DataFrame:
        """The ids of its examples, in the order of the first file."""
        return self.members[0].frame.select("id")

    def values(self, metric: str, ids: pl.DataFrame) -> NDArray[np.float64]:
        """Returns a metric of each member (rows) for each of the `ids` (columns); NaN where it is missing."""
        columns = [
            ids.join(member.frame.select("id", metric), on="id", how="left", maintain_order="left")[metric]
            for member in self.members
        ]
        return np.array([column.fill_null(float("nan")).to_numpy() for column in columns], dtype=np.float64)


def load_side(argument: str) -> Side:
    """Returns what `[NAME=]SCORES[,SCORES…]` means; each SCORES as `load_scores` takes it. UsageError as there, and
    for an evaluation that is listed twice."""
    if Path(argument).exists():
        scores = load_scores(argument)
        return Side(scores.name, (scores,))
    named = _NAMED.fullmatch(argument)
    members = tuple(load_scores(part) for part in (named["members"] if named else argument).split(","))
    paths = [member.path.resolve() for member in members]
    if len(set(paths)) < len(paths):
        raise UsageError(f"{argument!r} has the same scores twice", hint="give each run once")
    return Side(named["name"] if named else "+".join(member.name for member in members), members)


def distinct(sides: Sequence[Side], *, but: Side | None = None) -> list[Side]:
    """Returns the sides without those that repeat another, or `but`: `runs/*` has `latest` and the baseline in it too.

    What is left out is said on stderr. UsageError if nothing remains.
    """
    seen = {_files(but): but.name} if but else {}
    kept = []
    for side in sides:
        if _files(side) in seen:
            console.narrate(f"{side.name}: left out, as it is {seen[_files(side)]}")
            continue
        seen[_files(side)] = side.name
        kept.append(side)
    if not kept:
        raise UsageError("there is nothing to compare with the baseline but itself", hint="name other runs")
    return kept


def _files(side: Side) -> frozenset[Path]:
    return frozenset(member.path.resolve() for member in side.members)


def combine_seeds(sides: Sequence[Side]) -> list[Side]:
    """Returns the sides, with runs whose settings differ in nothing but name and seed made one side.

    Runs with the same seed stay apart, since the second says nothing new. What was combined is said on stderr.
    """
    groups: dict[str, list[Side]] = {}
    for number, side in enumerate(sides):
        groups.setdefault(_configuration(side) or f"alone {number}", []).append(side)
    combined = []
    for group in groups.values():
        seeds = {_seed(side) for side in group}
        if len(group) == 1 or len(seeds) < len(group):
            combined += group
            continue
        together = Side(f"{group[0].name} x{len(group)}", tuple(side.members[0] for side in group))
        console.narrate(f"{together.name}: seeds of one configuration: {', '.join(side.name for side in group)}")
        combined.append(together)
    return combined


def check_comparable(sides: Sequence[Side]) -> None:
    """UsageError with every difference unless all evaluations are of the same examples, split, data, judge and task.

    What only some of them state cannot be checked; a warning says so, and another one what else was not the same.
    """
    members = [member for side in sides for member in side.members]
    first = members[0]
    differences = []
    for other in members[1:]:
        found = _id_differences(first, other)
        for key in ORIGIN:
            one, two = first.origin.get(key), other.origin.get(key)
            if one is not None and two is not None and one != two:
                found.append(f"{key} {_show(one, two)} against {_show(two, one)}")
            elif (one is None) != (two is None) and key != "judge":
                silent = first if one is None else other
                console.warn(f"{silent.path} does not state its {key}, so that could not be compared")
        if found:
            differences.append(f"{first.path} and {other.path}: {'; '.join(found)}")
        for key, meaning in ASIDE.items():
            ours, theirs = first.details.get(key), other.details.get(key)
            if first.details and other.details and ours != theirs:
                console.warn(f"{first.path} and {other.path} {meaning}: {ours} against {theirs}")
    if differences:
        raise UsageError(
            "not scores of the same examples and task by the same judge\n  " + "\n  ".join(differences),
            hint="evaluate all of them on the same split with the same judge and settings of the task",
        )


def shared_metrics(sides: Sequence[Side], wanted: Sequence[str]) -> list[str]:
    """Returns the metrics that every evaluation has, or those `wanted`; UsageError where one is lacking.

    A warning names metrics that only some have.
    """
    members = [member for side in sides for member in side.members]
    for metric in wanted:
        for member in members:
            if metric not in member.metrics:
                close = get_close_matches(metric, member.metrics, n=1)
                known = ", ".join(member.metrics)
                raise UsageError(
                    f"{member.path} has no metric {metric!r}",
                    hint=f"did you mean {close[0]}?" if close else f"choose from {known}",
                )
    if wanted:
        return list(dict.fromkeys(wanted))
    every = dict.fromkeys(metric for member in members for metric in member.metrics)
    shared = [metric for metric in every if all(metric in member.metrics for member in members)]
    if not shared:
        raise UsageError(
            "no metric is in all files: " + "; ".join(f"{m.path} has {', '.join(m.metrics)}" for m in members),
            hint="compare files that were made by the same evaluation",
        )
    if partial := [metric for metric in every if metric not in shared]:
        console.warn(f"not in every file, so not compared: {', '.join(partial)}")
    return shared


def _id_differences(first: Scores, other: Scores) -> list[str]:
    lacking = [
        (lack, one.frame.join(two.frame, on="id", how="anti", maintain_order="left")["id"].to_list())
        for lack, one, two in (("the second lacks", first, other), ("the first lacks", other, first))
    ]
    return [
        f"{lack} {len(ids)} ids: {', '.join(ids[:_LISTED])}{', …' if len(ids) > _LISTED else ''}"
        for lack, ids in lacking
        if ids
    ]


def _show(value: Any, other: Any) -> str:
    """A fact; of a table only what differs."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if other.get(key) != part) or "{}"
    return str(value)


def _run(side: Side) -> RunPaths | None:
    """The run that a side's only evaluation lies in."""
    evaluations = side.members[0].path.resolve().parent.parent
    run = RunPaths(evaluations.parent)
    return run if len(side.members) == 1 and run.evaluations == evaluations and run.config.exists() else None


def _settings(run: RunPaths) -> dict[str, Any]:
    try:
        return tomli.loads(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {run.config}: {error}", hint="restore it from a copy") from error


def _configuration(side: Side) -> str | None:
    """Settings without name and seed, and the evaluation; equal for seeds of one configuration."""
    run = _run(side)
    if run is None:
        return None
    settings = {key: value for key, value in _settings(run).items() if key != "run"}
    settings["train"] = {key: value for key, value in settings.get("train", {}).items() if key != "seed"}
    return f"{side.members[0].path.parent.name} {settings}"


def _seed(side: Side) -> Any:
    run = _run(side)
    return _settings(run).get("train", {}).get("seed") if run else None
