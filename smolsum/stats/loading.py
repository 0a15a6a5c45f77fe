"""What is compared: a side is one evaluation, or several whose mean speaks for them (seeds, a strategy's runs).

Scores files as columns of numbers: one line an example, with an id and numeric fields.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
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
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import SCORES, SUMMARY
from smolsum.stats.paired import LARGEST

ORIGIN = ("split", "data", "judge", "task")
"""what must be the same in everything that is compared; a scores file says it in each line or in its summary. `task` is
the settings of the task, but for the prompt: which prompt is better is a question too."""
PROMPT = "system_prompt"


@dataclass(frozen=True)
class Scores:
    """The scores of one evaluation."""

    name: str
    """what the user calls it: the run, the folder or the file"""
    path: Path
    frame: pl.DataFrame
    """`id` (text) and one column of floats a metric, in the order of the file; null where a value is missing, NaN or
    infinite"""
    origin: Mapping[str, Any]
    """split, data, judge and task as far as the file states them"""
    details: Mapping[str, Any]
    """the rest of the summary: sampler, METEOR's synonyms, …"""

    @property
    def metrics(self) -> list[str]:
        """The names of all numeric fields, in the order of their first appearance."""
        return self.frame.columns[1:]


def load_scores(reference: str) -> Scores:
    """Returns the scores in a JSON Lines file, an evaluation's folder, or of a run (its path, or its name in the runs'
    directory): of a run the evaluation of its last step. UsageError, with the line, for what cannot be read so."""
    path = find_scores(reference)
    if path.parent.parent.name == "eval" and Path(reference).name not in (path.name, path.parent.name):
        console.narrate(f"{reference}: {path.parent.name}, the evaluation of its last step")
    rows = _read_rows(path)
    summary = _read_summary(path)
    return Scores(
        name=_name(path, reference),
        path=path,
        frame=_frame(rows, path),
        origin=_origin([row for _, row in rows], summary, path),
        details={key: value for key, value in summary.items() if key not in (*ORIGIN, "metrics")},
    )


def find_scores(reference: str) -> Path:
    """Returns the scores file that a path or the name of a run stands for; UsageError where there is none."""
    runs_dir = Path(os.environ.get("SMOLSUM_RUNS_DIR") or "runs")
    given = Path(os.path.expanduser(reference))
    path = next((p for p in (given, runs_dir / reference) if reference and p.exists()), None)
    if path is None:
        raise UsageError(
            f"no scores at {reference!r}: neither a file, a folder nor a run in {runs_dir}",
            hint="give a .jsonl file, the folder of an evaluation or a run",
        )
    if not path.is_dir():
        return path
    if (path / SCORES).exists():
        return path / SCORES
    evaluations = path if path.name == "eval" else RunPaths(path).evaluations
    found = {folder.parent: _read_summary(folder) for folder in sorted(evaluations.glob(f"*/{SCORES}"))}
    if not found:
        raise UsageError(f"{path} holds no {SCORES}", hint="smolsum train makes one for each stage of a run")
    last = max(_step(summary) for summary in found.values())
    newest = [folder for folder, summary in found.items() if _step(summary) == last]
    if len(newest) > 1:
        raise UsageError(
            f"{path} holds {len(newest)} evaluations of its last step: {', '.join(f.name for f in newest)}",
            hint=f"name one, e.g. {newest[0]}",
        )
    return newest[0] / SCORES


def _step(summary: Mapping[str, Any]) -> float:
    step = summary.get("step")
    return step if isinstance(step, int | float) else -1


def _name(path: Path, reference: str) -> str:
    """The run's name where it was asked for, the run and the evaluation where that was, else what the user typed."""
    folder = path.parent
    if path.name != SCORES or folder.parent.name != "eval":
        return reference
    run = folder.parent.resolve().parent.name
    return f"{run}/{folder.name}" if Path(reference).name in (folder.name, SCORES) else run


def _read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The lines that hold something, each with its number."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", hint="check the path") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number} is not JSON: {error}", hint="give a JSON object on each line, with an id and numbers"
            ) from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number} is not a JSON object", hint='each line is to look like {"id": …, …}')
        rows.append((number, row))
    if not rows:
        raise UsageError(f"{path} has no lines", hint="was the evaluation stopped before its first example?")
    return rows


def _read_summary(path: Path) -> dict[str, Any]:
    """The summary beside a scores file; empty for any other file."""
    summary = path.with_name(SUMMARY)
    if path.name != SCORES or not summary.exists():
        return {}
    try:
        content = json.loads(summary.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {summary}: {error}", hint="restore it, or evaluate again") from error
    if not isinstance(content, dict):
        raise UsageError(f"{summary} is not a JSON object", hint="restore it, or evaluate again")
    return content


def _frame(rows: Sequence[tuple[int, dict[str, Any]]], path: Path) -> pl.DataFrame:
    lines: dict[str, int] = {}
    for number, row in rows:
        key = row.get("id")
        if not isinstance(key, str | int) or isinstance(key, bool):
            what = "has no id" if key is None else f"has an id that is neither text nor a whole number: {key!r}"
            raise UsageError(f"{path}:{number} {what}", hint="give each line its own id, the same in all files")
        if str(key) in lines:
            raise UsageError(
                f"{path}:{number} has the id {str(key)!r} again, first seen in line {lines[str(key)]}",
                hint="keep one line for each example",
            )
        lines[str(key)] = number
    names = dict.fromkeys(key for _, row in rows for key, value in row.items() if isinstance(value, int | float))
    names.pop("id", None)
    if not names:
        raise UsageError(f"{path} has no numeric field beside the id", hint="give each line numbers to compare")
    columns = {name: [_number(row.get(name), name, number, path) for number, row in rows] for name in names}
    return pl.DataFrame({"id": list(lines), **columns}, schema={"id": pl.String, **dict.fromkeys(columns, pl.Float64)})


def _number(value: object, name: str, line: int, path: Path) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise UsageError(
            f"{path}:{line} has {json.dumps(value, ensure_ascii=False)[:40]} in {name!r}, which is a number elsewhere",
            hint="write null for a value that is missing",
        )
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if abs(value) > LARGEST:
        raise UsageError(
            f"{path}:{line} has a number in {name!r} that is too large to compute with",
            hint=f"write null for a value that is missing; {LARGEST:g} is the most",
        )
    return float(value)


def _origin(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], path: Path) -> dict[str, Any]:
    origin = {key: summary[key] for key in ORIGIN if summary.get(key) is not None}
    for key in ORIGIN:
        stated = sorted({row[key] for row in rows if isinstance(row.get(key), str)})
        if len(stated) > 1:
            raise UsageError(
                f"{path} mixes scores of {len(stated)} kinds of {key}: {', '.join(stated[:3])}",
                hint=f"give a file for each {key}",
            )
        if stated:
            origin[key] = stated[0]
    if isinstance(task := origin.get("task"), dict):
        prompting = summary.get("prompting", [PROMPT])
        origin["task"] = {key: value for key, value in task.items() if key not in prompting}
    data = origin.get("data")
    # a run's summary has the fingerprints of all splits, and its folder is called <what>-<split>
    split = origin.get("split", path.parent.name.rpartition("-")[2])
    if isinstance(data, dict) and isinstance(data.get(split), dict):
        origin |= {"split": split, "data": data[split].get("fingerprint")}
    return origin


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
class Arm:
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


def load_side(argument: str) -> Arm:
    """Returns what `[NAME=]SCORES[,SCORES…]` means; each SCORES as `load_scores` takes it. UsageError as there, and
    for an evaluation that is listed twice."""
    if Path(argument).exists():
        scores = load_scores(argument)
        return Arm(scores.name, (scores,))
    named = _NAMED.fullmatch(argument)
    members = tuple(load_scores(part) for part in (named["members"] if named else argument).split(","))
    paths = [member.path.resolve() for member in members]
    if len(set(paths)) < len(paths):
        raise UsageError(f"{argument!r} has the same scores twice", hint="give each run once")
    return Arm(named["name"] if named else "+".join(member.name for member in members), members)


def distinct(sides: Sequence[Arm], *, but: Arm | None = None) -> list[Arm]:
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


def _files(side: Arm) -> frozenset[Path]:
    return frozenset(member.path.resolve() for member in side.members)


def combine_seeds(sides: Sequence[Arm]) -> list[Arm]:
    """Returns the sides, with runs whose settings differ in nothing but name and seed made one side.

    Runs with the same seed stay apart, since the second says nothing new. What was combined is said on stderr.
    """
    groups: dict[str, list[Arm]] = {}
    for number, side in enumerate(sides):
        groups.setdefault(_configuration(side) or f"alone {number}", []).append(side)
    combined = []
    for group in groups.values():
        seeds = {_seed(side) for side in group}
        if len(group) == 1 or len(seeds) < len(group):
            combined += group
            continue
        together = Arm(f"{group[0].name} x{len(group)}", tuple(side.members[0] for side in group))
        console.narrate(f"{together.name}: seeds of one configuration: {', '.join(side.name for side in group)}")
        combined.append(together)
    return combined


def check_comparable(sides: Sequence[Arm]) -> None:
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


def shared_metrics(sides: Sequence[Arm], wanted: Sequence[str]) -> list[str]:
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


def _run(side: Arm) -> RunPaths | None:
    """The run that a side's only evaluation lies in."""
    evaluations = side.members[0].path.resolve().parent.parent
    run = RunPaths(evaluations.parent)
    return run if len(side.members) == 1 and run.evaluations == evaluations and run.config.exists() else None


def _settings(run: RunPaths) -> dict[str, Any]:
    try:
        return tomli.loads(run.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {run.config}: {error}", hint="restore it from a copy") from error


def _configuration(side: Arm) -> str | None:
    """Settings without name and seed, and the evaluation; equal for seeds of one configuration."""
    run = _run(side)
    if run is None:
        return None
    settings = {key: value for key, value in _settings(run).items() if key != "run"}
    settings["train"] = {key: value for key, value in settings.get("train", {}).items() if key != "seed"}
    return f"{side.members[0].path.parent.name} {settings}"


def _seed(side: Arm) -> Any:
    run = _run(side)
    return _settings(run).get("train", {}).get("seed") if run else None
