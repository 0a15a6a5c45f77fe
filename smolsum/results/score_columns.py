"""The scores that are compared: files and evaluations as columns of numbers, and arms of one evaluation or several."""

import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from smolsum import console
from smolsum.config.differences import group_seeds
from smolsum.errors import SmolsumError, UsageError, nearest
from smolsum.files import json_lines
from smolsum.runs.checkpoints import run_and_step
from smolsum.runs.evaluation_records import SCORES, Score, Summary
from smolsum.runs.main_evaluation import RunOrigin, representatives, split_of
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores, parse, read_object, read_summary
from smolsum.stats.paired import MAX_SIZE

T = TypeVar("T")
ORIGIN = ("split", "data", "judge", "task")
"""what must be the same in all that is compared; a scores file states it in each line or in its summary. `task` is the
settings of the task without those of the prompt: which prompt is better is a fair question."""
PROMPT = "system_prompt"
_MAY_DIFFER = {
    "tokenizer": "count lengths in the tokens of different tokenizers",
    "max_new_tokens": "cut completions at different lengths",
    "sampler": "drew completions differently",
    "meteor": "matched METEOR's synonyms by different means",
}
"""what may differ between compared evaluations, with what it means if it does"""
_MAX_IDS = 5
_NAMED_ARM = re.compile(r"(?P<name>[^=/\\,]+)=(?P<members>.+)")


@dataclass(frozen=True)
class Scores:
    """The scores of one evaluation."""

    name: str
    """what the user calls it: the run, the folder or the file"""
    path: Path
    frame: pl.DataFrame
    """`id` (text) and one column of floats a metric, in the order of the file; null where a value is missing, NaN or
    infinite"""
    lines: Mapping[str, Score]
    """the lines of the file by id"""
    origin: Mapping[str, Any]
    """split, data, judge and task, as far as the file states them"""
    summary: Summary | None
    """of an evaluation; None for any other file"""

    @property
    def texts(self) -> dict[str, str]:
        """Completions by id, of the lines that have one."""
        return {id: line.text for id, line in self.lines.items() if line.text is not None}

    @property
    def metrics(self) -> list[str]:
        """The names of all numeric fields, in the order of their first appearance."""
        return self.frame.columns[1:]


@dataclass(frozen=True)
class Arm:
    """One evaluation, or several of the same examples whose mean is compared (seeds, the runs of a strategy)."""

    name: str
    members: tuple[Scores, ...]

    @property
    def ids(self) -> pl.DataFrame:
        """The ids of its examples, in the order of the first file."""
        return self.members[0].frame.select("id")

    def values(self, metric: str, ids: pl.DataFrame) -> NDArray[np.float64]:
        """Return a metric of each member (rows) for each of the `ids` (columns); NaN where it is missing."""
        columns = [
            ids.join(member.frame.select("id", metric), on="id", how="left", maintain_order="left")[metric]
            for member in self.members
        ]
        return np.array([column.fill_null(float("nan")).to_numpy() for column in columns], dtype=np.float64)

    def clusters(self, field: str | None) -> list[object] | None:
        """Return what each example belongs to, in the order of `ids`: a field of the lines of the first file that has
        it in all of them; None without a field. Raises UsageError where no file has it."""
        if field is None:
            return None
        for member in self.members:
            found = [member.lines[key].metrics.get(field) for key in self.ids["id"]] if member.lines else []
            if all(value is not None for value in found):
                return found
        lacking = self.members[0]
        raise UsageError(
            f"{lacking.path} does not have {field!r} in each of its lines, so its examples have no cluster",
            hint="name a field such as a document's id, which every line of scores has",
        )

    def rounds(self, metric: str, ids: pl.DataFrame) -> NDArray[np.float64]:
        """Return a metric of each member, example and round of the judge (members x ids x rounds); one round where
        the lines have no values of rounds. NaN where a value is missing."""
        counts = {len(line.rounds.get(metric, ())) for member in self.members for line in member.lines.values()}
        if counts - {0} and len(counts) == 1:
            rows = [[member.lines[key].rounds[metric] for key in ids["id"]] for member in self.members]
            return np.array(rows, dtype=np.float64)
        return self.values(metric, ids)[..., None]


def load_scores(reference: str, *, finite: bool = False) -> Scores:
    """Return the scores of a JSON Lines file, of an evaluation's folder, or of a run (its path, or its name in the
    runs folder): the run's own evaluation of its last step, or of a checkpoint's step. Raises UsageError, with the
    line, if a file is damaged; with `finite`, also for NaN and infinities, which are missing values otherwise."""
    path, said = _find_scores(reference)
    if said:
        console.narrate(f"{reference}: {said}")
    try:
        rows = [
            (number, parse(row, Score, f"{path}:{number}", hint="give each line its own id, the same in all files"))
            for number, row in json_lines(path, growing=False, hint='each line should look like {"id": …, …}')
        ]
        summary = read_summary(path.parent) if path.name == SCORES and has_scores(path.parent) else None
    except SmolsumError as error:
        if path.suffix != Path(SCORES).suffix:
            raise UsageError(
                f"{path} does not have the scores of an example on each of its lines ({error.message})",
                hint='a line is {"id": "post-1", "meteor": 0.31}, as `smolsum eval` writes it to scores.jsonl',
            ) from error
        raise UsageError(error.message, hint=error.hint) from error
    if summary is not None and summary.so_far:
        raise UsageError(
            f"{path} has {summary.so_far} examples yet: the others follow once the run is trained",
            hint="wait for the end of the run, or resume it: smolsum train --resume RUN",
        )
    if not rows:
        raise UsageError(f"{path} has no lines", hint="was the evaluation stopped before its first example?")
    found = {str(row.id): row for _, row in rows}
    return Scores(
        _name(path, reference), path, _frame(rows, path, finite), found, _origin(rows, summary, path), summary
    )


def load_arm(argument: str) -> Arm:
    """Return what `[NAME=]SCORES[,SCORES…]` means; each SCORES as for `load_scores`. Raises UsageError as there, and if
    an evaluation is listed twice."""
    if Path(argument).exists():
        scores = load_scores(argument)
        return Arm(scores.name, (scores,))
    named = _NAMED_ARM.fullmatch(argument)
    members = tuple(load_scores(part) for part in (named["members"] if named else argument).split(","))
    paths = [member.path.resolve() for member in members]
    if len(set(paths)) < len(paths):
        raise UsageError(f"{argument!r} has the same scores twice", hint="give each run once")
    return Arm(named["name"] if named else "+".join(member.name for member in members), members)


def distinct(arms: Sequence[Arm], *, baseline: Arm | None = None) -> list[Arm]:
    """Return the arms without those that repeat another or the baseline: `runs/*` contains `latest` and the baseline
    too. What is left out is said on stderr. Raises UsageError if nothing remains."""
    seen = {_files(baseline): baseline.name} if baseline else {}
    kept = []
    for arm in arms:
        if _files(arm) in seen:
            console.narrate(f"{arm.name}: left out, as it is {seen[_files(arm)]}")
            continue
        seen[_files(arm)] = arm.name
        kept.append(arm)
    if not kept:
        raise UsageError("there is nothing to compare with the baseline but itself", hint="name other runs")
    return kept


def combine_seeds(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms, with runs whose settings differ only in name and seed made one arm.

    Runs with the same seed stay apart, since the second adds nothing. What was combined is said on stderr.
    """
    combined = []
    for alike in group_seeds([(arm, _config_of(arm)) for arm in arms]):
        if len(alike) == 1:
            combined += alike
            continue
        together = Arm(f"{alike[0].name} x{len(alike)}", tuple(arm.members[0] for arm in alike))
        console.narrate(f"{together.name}: seeds of one configuration: {', '.join(arm.name for arm in alike)}")
        combined.append(together)
    return combined


def check_comparable(arms: Sequence[Arm]) -> None:
    """Check that all evaluations are of the same examples, split, data, judge and task. Warns about what only some of
    them state, and about other differences. Raises UsageError with every difference."""
    first, *others = [member for arm in arms for member in arm.members]
    differences = []
    for other in others:
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
        for key, meaning in _MAY_DIFFER.items():
            ours, theirs = getattr(first.summary, key, None), getattr(other.summary, key, None)
            if first.summary and other.summary and ours != theirs:
                console.warn(f"{first.path} and {other.path} {meaning}: {ours or None} against {theirs or None}")
    if differences:
        raise UsageError(
            "not scores of the same examples and task by the same judge\n  " + "\n  ".join(differences),
            hint="evaluate all of them on the same split with the same judge and settings of the task",
        )


def shared_metrics(arms: Sequence[Arm], wanted: Sequence[str]) -> list[str]:
    """Return the metrics that every evaluation has, or those `wanted`. Warns about metrics that only some have.
    Raises UsageError if one is missing."""
    members = [member for arm in arms for member in arm.members]
    for metric in wanted:
        for member in members:
            if metric not in member.metrics:
                raise UsageError(f"{member.path} has no metric {metric!r}", hint=nearest(metric, member.metrics))
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


def _find_scores(reference: str) -> tuple[Path, str]:
    """The scores file that a path or the name of a run means, and which evaluation of the run that is, in words.
    Raises UsageError if it does not exist."""
    runs_dir = Path(os.environ.get("SMOLSUM_RUNS_DIR") or "runs")
    given = Path(os.path.expanduser(reference))
    path = next((p for p in (given, runs_dir / reference) if reference and p.exists()), None)
    if path is None:
        raise UsageError(
            f"no scores at {reference!r}: neither a file, a folder nor a run in {runs_dir}",
            hint="give a .jsonl file, the folder of an evaluation or a run",
        )
    if not path.is_dir():
        return path, ""
    if (path / SCORES).exists():
        return path / SCORES, ""
    checkpoint = run_and_step(path)
    run, step = checkpoint or (RunPaths(path.parent if path.name == "eval" else path), None)
    summaries = {found.parent: _summary(found.parent) for found in sorted(run.evaluations.glob(f"*/{SCORES}"))}
    if checkpoint:
        summaries = {folder: summary for folder, summary in summaries.items() if summary.step == step}
        if not summaries:
            raise UsageError(f"{path} has not been evaluated", hint=f"smolsum eval {shlex.quote(str(path))}")
    if not summaries:
        raise UsageError(f"{path} holds no {SCORES}", hint="smolsum train makes one for each stage of a run")
    origin, of = RunOrigin.read(run), f"step {step}" if checkpoint else "its last step"
    chosen, *equal = representatives(summaries, origin)
    if equal:
        names = ", ".join(folder.name for folder in (chosen, *equal))
        raise UsageError(f"{path} holds {1 + len(equal)} evaluations of {of}: {names}", hint=f"name one, e.g. {chosen}")
    said = f"{chosen.name}, the evaluation of {of}"
    if differences := origin.differences(chosen, summaries[chosen]):
        said += f" ({', '.join(differences)})"
    same = [f for f, one in summaries.items() if f != chosen and one.step == summaries[chosen].step]
    if others := [f"{f.name} ({', '.join(origin.differences(f, summaries[f])) or 'the same'})" for f in same]:
        said += f"; not taken: {', '.join(others)}"
    return chosen / SCORES, said


def _summary(folder: Path) -> Summary:
    """The summary of an evaluation; an empty one if it has none yet."""
    try:
        return read_summary(folder) if has_scores(folder) else Summary()
    except SmolsumError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _name(path: Path, reference: str) -> str:
    """The run's name if the run was named, run and evaluation if that or a checkpoint was, else what the user typed."""
    folder = path.parent
    if path.name != SCORES or folder.parent.name != "eval":
        return reference
    run = folder.parent.resolve().parent.name
    named = Path(reference).name in (folder.name, SCORES) or run_and_step(Path(os.path.expanduser(reference)))
    return f"{run}/{folder.name}" if named else run


def _frame(rows: Sequence[tuple[int, Score]], path: Path, finite: bool) -> pl.DataFrame:
    lines: dict[str, int] = {}
    for number, row in rows:
        if (first := lines.setdefault(str(row.id), number)) != number:
            message = f"{path}:{number} has the id {str(row.id)!r} again, first seen in line {first}"
            raise UsageError(message, hint="keep one line for each example")
    names = dict.fromkeys(
        key for _, row in rows for key, value in row.metrics.items() if isinstance(value, int | float)
    )
    if not names:
        raise UsageError(f"{path} has no numeric field besides the id", hint="give each line numbers to compare")
    columns = {
        name: [_number(row.metrics.get(name), f"{path}:{number}", name, finite) for number, row in rows]
        for name in names
    }
    return pl.DataFrame({"id": list(lines), **columns}, schema={"id": pl.String, **dict.fromkeys(columns, pl.Float64)})


def _number(value: object, where: str, name: str, finite: bool) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        problem = f"has {json.dumps(value, ensure_ascii=False)[:40]} in {name!r}, which is a number elsewhere"
    elif isinstance(value, float) and not math.isfinite(value):
        if not finite:
            return None
        problem = f"has {value} in {name!r}, which is not a finite number"
    elif abs(value) > MAX_SIZE:
        problem = f"has a number in {name!r} that is too large to compute with (at most {MAX_SIZE:g})"
    else:
        return float(value)
    raise UsageError(f"{where} {problem}", hint="write null for a value that is missing")


def _origin(rows: Sequence[tuple[int, Score]], summary: Summary | None, path: Path) -> dict[str, Any]:
    """Split, data, judge and task: as the lines state them, else the summary."""
    stated: dict[str, Any] = {}
    for key in ORIGIN:
        values = sorted({value for _, row in rows if (value := getattr(row, key)) is not None})
        if len(values) > 1:
            raise UsageError(
                f"{path} mixes scores of {len(values)} kinds of {key}: {', '.join(values[:3])}",
                hint=f"give a file for each {key}",
            )
        if values:
            stated[key] = values[0]
    if summary is None:
        return stated
    origin = {key: value for key in ("split", "judge") if (value := getattr(summary, key)) is not None}
    if summary.task is not None:
        prompting = [PROMPT] if summary.prompting is None else summary.prompting
        origin["task"] = {key: value for key, value in summary.task.items() if key not in prompting}
    # a summary has the fingerprints of all splits of its run
    split = stated.get("split") or split_of(path.parent, summary)
    if split in summary.data:
        origin |= {"split": split, "data": summary.data[split].fingerprint}
    return origin | stated


def _id_differences(first: Scores, other: Scores) -> list[str]:
    found = []
    for lack, one, two in (("the second lacks", first, other), ("the first lacks", other, first)):
        if ids := one.frame.join(two.frame, on="id", how="anti", maintain_order="left")["id"].to_list():
            found.append(f"{lack} {len(ids)} ids: {', '.join(ids[:_MAX_IDS])}{', …' if len(ids) > _MAX_IDS else ''}")
    return found


def _show(value: Any, other: Any) -> str:
    """A value; of a table only what differs."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if other.get(key) != part) or "{}"
    return str(value)


def _files(arm: Arm) -> frozenset[Path]:
    return frozenset(member.path.resolve() for member in arm.members)


def _config_of(arm: Arm) -> Mapping[str, Any] | None:
    """The configuration of a run with the name of its evaluation; None if the arm is not one evaluation of a run."""
    evaluations = arm.members[0].path.resolve().parent.parent
    run = RunPaths(evaluations.parent)
    if len(arm.members) > 1 or run.evaluations != evaluations or not run.config.exists():
        return None
    try:
        return read_object(run.config) | {"evaluation": arm.members[0].path.parent.name}
    except SmolsumError as error:
        raise UsageError(error.message, hint=error.hint) from error
