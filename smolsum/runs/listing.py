"""`smolsum runs`: each run with its state and last evaluation, then the evaluations outside of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from smolsum.errors import SmolsumError
from smolsum.runs.evaluation_records import SUMMARY, Summary
from smolsum.runs.main_evaluation import RunOrigin, representatives
from smolsum.runs.paths import LATEST, RunPaths, list_runs
from smolsum.runs.reader import LAST_BYTES, Run, read_leniently
from smolsum.runs.state import run_state
from smolsum.runs.typed_json import has_scores

SHOWN = ("length/within_tol", "rouge", "meteor", "bleu", "composite")
"""Metrics that a list has room for; an evaluation that has none of them shows its headlines."""


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
    """by stage, where stages differ: `length > meteor`"""
    started: str
    """ISO 8601; empty where it is not known"""
    hint: str
    """the command that helps where something is wrong"""
    metrics: dict[str, float | None]
    """of the evaluation that stands for it: those of `SHOWN`, or its headlines"""
    titles: dict[str, str]
    """of those metrics"""


def inventory(folder: Path) -> list[Listed]:
    """Return all runs in `folder`, the newest last, then the evaluations of baselines and models by name; one that
    cannot be read is `damaged`. Raises UsageError for a folder that cannot be read."""
    found = [_run(paths) for paths in list_runs(folder)]
    if not folder.is_dir():
        return found
    others = (path for path in sorted(folder.iterdir()) if path.name != LATEST and path.is_dir())
    return found + [_evaluation(path) for path in others if not RunPaths(path).config.exists() and has_scores(path)]


def _run(paths: RunPaths) -> Listed:
    run = Run(paths, last_bytes=LAST_BYTES)
    try:
        while run.poll() and run.behind():
            pass
        found = run_state(run, datetime.now(UTC))
        state, hint = found.state, found.hint
    except SmolsumError as error:
        state, hint = "damaged", error.hint or ""
    rewards = ["+".join(stage.rewards) or "?" for stage in run.settings.stages.values()]
    metrics, titles = _metrics(_representative(run))
    return Listed(
        name=paths.name,
        path=str(paths.root),
        kind="run",
        state=state,
        step=run.step,
        steps=run.total or None,
        task=run.settings.task,
        model=run.settings.model,
        rewards=" > ".join(dict.fromkeys(rewards)),
        started=run.info.created,
        hint=hint,
        metrics=metrics,
        titles=titles,
    )


def _representative(run: Run) -> Summary:
    """The summary of the evaluation that stands for the run, never of a sample; in a tie one with most metrics."""
    found = {run.paths.evaluation(name): one for name, one in run.evaluations().items() if not one.so_far}
    chosen = representatives(found, RunOrigin.of(run.config, run.info))
    return max((found[folder] for folder in chosen), key=lambda summary: len(summary.metrics), default=Summary())


def _metrics(summary: Summary) -> tuple[dict[str, float | None], dict[str, str]]:
    """The metrics that a list shows, and their titles."""
    titles = {headline.metric: headline.title for headline in summary.headlines}
    keys = [key for key in SHOWN if key in summary.metrics] or [key for key in titles if key in summary.metrics]
    return {key: summary.metrics[key] for key in keys}, {key: titles.get(key) or key for key in keys}


def _evaluation(folder: Path) -> Listed:
    summary = read_leniently(folder / SUMMARY)
    damaged = summary == Summary()
    state, hint = ("damaged", f"remove {folder} and evaluate again") if damaged else ("finished", "")
    metrics, titles = _metrics(summary)
    return Listed(
        name=folder.name,
        path=str(folder),
        kind="evaluation",
        state=state,
        step=None,
        steps=None,
        task=str((summary.task or {}).get("name", "")),
        model=summary.model.path,
        rewards="",
        started="",
        hint=hint,
        metrics=metrics,
        titles=titles,
    )


def at_work(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Return the runs that are starting, running or paused now, in the same order."""
    found = []
    for paths in runs:
        run = Run(paths)
        run.poll_status()
        if run_state(run, datetime.now(UTC)).alive:
            found.append(paths)
    return found
