"""What run directories hold, read once: runs that are whole and of one kind, and the others with why they are left out.

Nothing that is left out reaches a table: not a run that is damaged, not one that has not finished, not one whose task,
test split, target, judge or base model is not that of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli

from smolsum.configurations import model_name, reward_of, strategy_of
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.scores import SCORES, SUMMARY, has_scores, read_summary
from smolsum.lines import read_jsonl
from smolsum.report.kinds import KINDS, agreeing
from smolsum.report.study import Evaluation, LeftOut, Study, Trained
from smolsum.runs import LATEST, RunPaths
from smolsum.stats.scores import load_scores

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
                for of_run, _, _ in KINDS:
                    of_run(run)
                trained.append(run)
            elif has_scores(root):
                evaluation = _read_evaluation(root)
                for _, of_evaluation, _ in KINDS:
                    of_evaluation(evaluation)
                baselines.append(evaluation)
            else:
                left_out.append(LeftOut(root.name, "holds neither a run nor a finished evaluation"))
        except _Unfinished as unfinished:
            left_out.append(LeftOut(root.name, *unfinished.args))
        except (SmolsumError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = error.message if isinstance(error, SmolsumError) else f"{type(error).__name__}: {error}"
            left_out.append(LeftOut(root.name, f"malformed: {what}"))
    for of_run, of_evaluation, what in KINDS:
        kinds = [key for key in [*map(of_run, trained), *map(of_evaluation, baselines)] if key is not None]
        trained, dropped_runs = agreeing(trained, of_run, kinds)
        baselines, dropped = agreeing(baselines, of_evaluation, kinds)
        left_out += [
            LeftOut(run.paths.name, f"mixed: {what} is not that of the other runs", run=run) for run in dropped_runs
        ]
        left_out += [LeftOut(e.folder.name, f"mixed: {what} is not that of the other runs") for e in dropped]
    if not trained and not baselines:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise UsageError(f"nothing to report: {reasons}", hint="smolsum runs lists what there is")
    return Study(tuple(trained), tuple(baselines), tuple(left_out))


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
    if (state := status.get("state")) != "finished":
        told = f"is {state} at step {status.get('step')}" if state else "has no status"
        raise _Unfinished(f"half-finished: {told}", paths.resume_command)
    config = tomli.loads(paths.config.read_text(encoding="utf-8"))
    info = _read_json(paths.info)
    if not config["stages"] or not config["model"]["path"] or list(info["steps"]) != list(config["stages"]):
        raise ValueError(f"{paths.info} tells of other stages than {paths.config}")
    strategy_of(config), reward_of(config)
    folders = [folder for folder in sorted(paths.evaluations.glob("*")) if has_scores(folder) and _wanted(folder)]
    evaluations = sorted(map(_read_evaluation, folders), key=lambda e: (e.step or 0, e.judge is not None))
    last = sum(info["steps"].values())
    if not evaluations or evaluations[-1].step != last:
        raise _Unfinished(f"half-finished: no evaluation of its last step, {last}", paths.evaluate_command)
    return Trained(paths, config, info, read_jsonl(paths.metrics), tuple(evaluations))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON object: {error}") from error


def _wanted(folder: Path) -> bool:
    """Whether an evaluation is greedy and of the test split."""
    summary = read_summary(folder)
    return (summary.get("split") or folder.name.rpartition("-")[2], summary.get("sampler")) == (SPLIT, SAMPLER)


def _read_evaluation(folder: Path) -> Evaluation:
    summary, scores = read_summary(folder), load_scores(str(folder))
    if not isinstance(summary["metrics"], dict) or summary["n"] != scores.frame.height:
        raise ValueError(f"{folder / SUMMARY} is not of the {scores.frame.height} lines of {SCORES}")
    if not all(value is None or isinstance(value, int | float) for value in summary["metrics"].values()):
        raise ValueError(f"{folder / SUMMARY} has a metric that is no number")
    if summary.get("judge") and not all(isinstance(summary["judging"][key], dict) for key in ("prompts", "thresholds")):
        raise ValueError(f"{folder / SUMMARY} does not say what was judged")
    model_name(summary["model"]["path"])
    return Evaluation(folder, summary, replace(scores, name=folder.name))
