"""What lies in a runs directory: each run with its state and its newest evaluation, each evaluation beside the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from smolsum.errors import SmolsumError
from smolsum.runs import reader
from smolsum.runs.paths import LATEST, RunPaths, list_runs
from smolsum.runs.reader import Run, process_lives
from smolsum.runs.records import has_scores, read_summary
from smolsum.runs.status import run_state

SHOWN = ("length/within_tol", "rouge", "meteor", "bleu", "composite")
"""metrics of a summary's evaluation that a list has room for; of an evaluation of something else its headlines"""


@dataclass(frozen=True)
class Listed:
    """A run, or an evaluation outside of runs."""

    name: str
    path: str
    kind: str
    """run or evaluation"""
    state: str
    step: int | None
    steps: int | None
    task: str
    """empty where it is not known"""
    model: str
    rewards: str
    """of stages that differ in them: `length > meteor`"""
    started: str
    """ISO 8601, as the run has it; empty where it is not known"""
    hint: str
    """the command that goes on where something is wrong"""
    metrics: dict[str, float | None]
    """those of `SHOWN` that its newest evaluation has, or its headlines"""
    titles: dict[str, str]
    """of those metrics, for people"""


def inventory(folder: Path, lives: Callable[[object], bool] = process_lives) -> list[Listed]:
    """Returns all runs in `folder`, the newest last, then the evaluations of baselines and models by name. What cannot
    be read is `damaged`. UsageError for a folder that cannot be read."""
    found = [_run(paths, lives) for paths in list_runs(folder)]
    if not folder.is_dir():
        return found
    beside = (path for path in sorted(folder.iterdir()) if path.name != LATEST and path.is_dir())
    return found + [_evaluation(path) for path in beside if not RunPaths(path).config.exists() and has_scores(path)]


def _run(paths: RunPaths, lives: Callable[[object], bool]) -> Listed:
    run = Run(paths)
    try:
        run.poll()
        stands = run_state(run, datetime.now(UTC), lives)
        state, hint = stands.state, stands.hint
    except SmolsumError as error:
        state, hint = "damaged", error.hint or ""
    rewards = [_signals(reader.table(stage)) for stage in reader.table(run.config.get("stages")).values()]
    return Listed(
        paths.name,
        str(paths.root),
        "run",
        state,
        run.step,
        run.total or None,
        reader.text(run.setting("task", "name")),
        reader.text(run.setting("model", "path")),
        " > ".join(dict.fromkeys(rewards)),
        reader.text(run.info.value.get("created")),
        hint,
        *_metrics(_newest(paths)),
    )


def _signals(stage: Mapping[str, object]) -> str:
    return "+".join(reader.table(stage.get("rewards"))) or "?"


def _newest(paths: RunPaths) -> dict[str, Any]:
    """The summary of the last step's evaluation; of several the one that most was measured in."""
    summaries = [_summary(folder) for folder in sorted(paths.evaluations.glob("*")) if has_scores(folder)]
    return max(summaries, key=lambda s: (_step(s), len(s.get("metrics") or {})), default={})


def _step(summary: dict[str, Any]) -> int:
    step = summary.get("step")
    return step if isinstance(step, int) else -1


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return read_summary(folder)
    except SmolsumError:
        return {}


def _metrics(summary: dict[str, Any]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The metrics that a list shows, and their titles."""
    metrics = reader.table(summary.get("metrics"))
    told = summary.get("headlines")
    headlines = [reader.table(h) for h in told] if isinstance(told, list) else []
    titles = {reader.text(h.get("metric")): reader.text(h.get("title")) for h in headlines}
    chosen = [key for key in ([key for key in SHOWN if key in metrics] or [*titles]) if key in metrics]
    return {key: reader.number(metrics[key]) for key in chosen}, {key: titles.get(key) or key for key in chosen}


def _evaluation(folder: Path) -> Listed:
    summary = _summary(folder)
    model = summary.get("model")
    path = str(model.get("path", "")) if isinstance(model, dict) else ""
    task = reader.text(reader.table(summary.get("task")).get("name"))
    state = "finished" if summary else "damaged"
    hint = "" if summary else f"remove {folder} and evaluate again"
    return Listed(
        folder.name, str(folder), "evaluation", state, None, None, task, path, "", "", hint, *_metrics(summary)
    )
