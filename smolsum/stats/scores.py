"""Scores files as columns of numbers: one line an example, with an id and numeric fields."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from smolsum import console
from smolsum.errors import UsageError
from smolsum.evaluate.scores import SCORES, SUMMARY
from smolsum.runs import RunPaths
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
