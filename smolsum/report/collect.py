"""What run directories hold, read once: runs that are whole and of one kind, and the others with why they are left out.

Nothing that is left out reaches a table: not a run that is damaged, not one that has not finished, not one whose task,
test split, measures, judge or base model are not those of the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import tomli

from smolsum.config.study import reward_of, strategy_of
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import read_jsonl
from smolsum.report import records
from smolsum.report.compatibility import KINDS, agreeing, aside, judge_of_most, measured_alike
from smolsum.report.study import Evaluation, LeftOut, Study, Trained
from smolsum.runs.paths import LATEST, RunPaths
from smolsum.runs.records import SCORES, SUMMARY, has_scores, read_object, read_summary
from smolsum.stats.loading import load_scores

SPLIT, SAMPLER = "test", "greedy"
"""of the evaluations that a report is about"""


def gather(references: Sequence[str], runs_dir: Path) -> Study:
    """Reads what each reference names: a run or an evaluation, by its path or its name in `runs_dir`. UsageError where
    one does not exist, or nothing at all can be used."""
    trained: list[Trained] = []
    baselines: list[Evaluation] = []
    left_out: list[LeftOut] = []
    for root in _roots(references, runs_dir):
        try:
            if RunPaths(root).config.exists():
                run = _read_run(RunPaths(root))
                trained.append(run)
            elif has_scores(root):
                evaluation = _read_evaluation(root)
                _ = evaluation.again  # of an evaluation in a run: reads that run
                baselines.append(evaluation)
            else:
                left_out.append(LeftOut(root.name, "holds neither a run nor a finished evaluation"))
        except _Unfinished as unfinished:
            left_out.append(LeftOut(root.name, *unfinished.args))
        except (SmolsumError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = error.message if isinstance(error, SmolsumError) else f"{type(error).__name__}: {error}"
            left_out.append(LeftOut(root.name, f"malformed: {what}"))
    judge = judge_of_most(trained, baselines)
    trained, otherwise = measured_alike([run.judged_by(judge) for run in trained], baselines)
    left_out += otherwise
    for of_run, of_evaluation, what in KINDS:
        kinds = [key for key in [*map(of_run, trained), *map(of_evaluation, baselines)] if key is not None]
        trained, dropped_runs = agreeing(trained, of_run, kinds)
        baselines, dropped = agreeing(baselines, of_evaluation, kinds)
        said = f"mixed: {what} is not that of the other runs"
        left_out += [LeftOut(run.paths.name, said + tie, run=run) for run, tie in dropped_runs]
        left_out += [LeftOut(e.folder.name, said + tie) for e, tie in dropped]
    if not trained and not baselines:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise UsageError(f"nothing to report: {reasons}", hint="smolsum runs lists what there is")
    whole = [_without_gaps(run) for run in trained]
    notices = [notice for _, notice in whole if notice] + aside(trained, baselines)
    return Study(tuple(run for run, _ in whole), tuple(baselines), tuple(left_out), tuple(notices))


def _without_gaps(run: Trained) -> tuple[Trained, str]:
    """The run, without the metrics of its steps if some of them are missing, and what is said of that."""
    ends = [0, *accumulate(run.info["steps"].values())]
    steps = {row["step"] for row in run.metrics if type(row.get("step")) is int}
    first, last = min(steps, default=0), ends[-1]
    # a run that goes on from another's stage begins after it
    if not last or (first - 1 in ends and steps == set(range(first, last + 1))):
        return run, ""
    lost = f"ends at step {max(steps)}" if steps and max(steps) < last else "lacks steps" if steps else "has no steps"
    told = f"{run.paths.metrics.name} of {run.paths.name} {lost} of {last}: the run is in no curve, its cost unknown"
    return replace(run, metrics=()), told


class _Unfinished(Exception):
    """(reason, command) of a run that is not done."""


def _roots(references: Sequence[str], runs_dir: Path) -> list[Path]:
    """The folders meant, each once: `runs/*` has the link `latest` in it too."""
    roots: dict[Path, Path] = {}
    for reference in references:
        found = next(
            (p for p in (Path(reference).expanduser(), runs_dir / reference) if reference and p.is_dir()), None
        )
        if found is None:
            if Path(reference).is_file():  # `runs/*` may have notes beside the runs
                continue
            raise UsageError(f"no run {reference!r}, neither here nor in {runs_dir}", hint="smolsum runs lists them")
        if found.is_symlink() and found.name == LATEST:
            found = found.parent / found.readlink()
        roots.setdefault(found.resolve(), found)
    return sorted(roots.values(), key=lambda path: (path.name, str(path)))


def _read_run(paths: RunPaths) -> Trained:
    status = _read_json(paths.status) if paths.status.exists() else {}
    records.status(status, str(paths.status))
    if (state := status.get("state")) != "finished":
        told = f"is {state} at step {status.get('step')}" if state else "has no status"
        raise _Unfinished(f"half-finished: {told}", paths.resume_command)
    config = tomli.loads(paths.config.read_text(encoding="utf-8"))
    info = _read_json(paths.info)
    records.every(records.every(records.setting))(config, str(paths.config))
    records.config(config, str(paths.config))
    records.info(info, str(paths.info))
    if not config["stages"] or not config["model"]["path"] or list(info["steps"]) != list(config["stages"]):
        raise ValueError(f"{paths.info} tells of other stages than {paths.config}")
    strategy_of(config), reward_of(config)
    folders = [folder for folder in sorted(paths.evaluations.glob("*")) if has_scores(folder)]
    found = [(_is_greedy(folder), _read_evaluation(folder)) for folder in folders if _wanted(folder)]
    found.sort(key=lambda one: (one[1].step or 0, one[1].judge is not None))
    evaluations = [evaluation for greedy, evaluation in found if greedy]
    if any(one.step is None for one in evaluations):
        raise ValueError(f"{paths.evaluations} has an evaluation of no step")
    last = sum(info["steps"].values())
    if not evaluations or evaluations[-1].step != last:
        raise _Unfinished(f"half-finished: no evaluation of its last step, {last}", paths.evaluate_command)
    origin = evaluations[-1].scores.origin
    sampled = [one for greedy, one in found if not greedy and one.step is not None and one.scores.origin == origin]
    return Trained(paths, config, info, _finite(read_jsonl(paths.metrics)), tuple(evaluations), tuple(sampled))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def _finite(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows without what is no number to draw: a training that diverged has such losses."""
    return [{k: v for k, v in row.items() if not isinstance(v, float) or math.isfinite(v)} for row in rows]


def _wanted(folder: Path) -> bool:
    """Whether an evaluation is of the test split."""
    return bool((read_summary(folder).split or folder.name.rpartition("-")[2]) == SPLIT)


def _is_greedy(folder: Path) -> bool:
    return bool(read_summary(folder).sampler == SAMPLER)


def _read_evaluation(folder: Path) -> Evaluation:
    summary = read_object(folder / SUMMARY)
    records.summary(summary, str(folder / SUMMARY))
    records.scores(read_jsonl(folder / SCORES), str(folder / SCORES))
    scores = load_scores(str(folder))
    if summary["n"] != scores.frame.height:
        raise ValueError(f"{folder / SUMMARY} is not of the {scores.frame.height} lines of {SCORES}")
    if summary.get("judge") and not all(isinstance(summary["judging"][key], dict) for key in ("prompts", "thresholds")):
        raise ValueError(f"{folder / SUMMARY} does not say what was judged")
    return Evaluation(folder, summary, replace(scores, name=folder.name))
