"""Lists of runs: for `smolsum runs`, each with its state and last evaluation, then the evaluations outside of runs; and
for the view, a list that is read in portions and kept."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from smolsum.errors import SmolsumError
from smolsum.runs.evaluation_records import SUMMARY, MeasureInfo, Summary
from smolsum.runs.main_evaluation import RunOrigin, representatives
from smolsum.runs.paths import LATEST, RunPaths, last_started, list_runs
from smolsum.runs.reader import LAST_BYTES, Run, read_leniently
from smolsum.runs.samples import clean
from smolsum.runs.state import RunState, progress, run_state
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
    changed: str
    """when one of its files last changed, ISO 8601; empty where it has no file"""
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
        changed=_changed(paths.status, paths.metrics, paths.events, *paths.evaluations.glob(f"*/{SUMMARY}")),
        hint=hint,
        metrics=metrics,
        titles=titles,
    )


def _changed(*files: Path) -> str:
    times = []
    for file in files:
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="milliseconds") if times else ""


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
        changed=_changed(folder / SUMMARY),
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


@dataclass(frozen=True)
class RunLine:
    """What the list says of a run."""

    run: Run
    state: RunState
    progress: str
    evaluated: str
    """what the newest evaluation on the test split was made after; empty before the first"""
    results: Mapping[str, tuple[MeasureInfo, float]]
    """its constraint and its quality, by title"""
    age_s: float
    """seconds since the run was last started"""


class RunList:
    """The runs of a directory, the one that was started last first. Only the ends of their files are read, in portions,
    as there may be many runs, and long ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        """why the directory cannot be read; empty if it can"""
        self._runs: dict[Path, Run] = {}
        self._unread: list[Path] = []

    def poll(self, budget_s: float) -> bool:
        """Look for new runs and read what changed, for about `budget_s` seconds; whether all was read."""
        until = monotonic() + budget_s
        if not self._unread:
            try:
                found = [paths.root for paths in reversed(list_runs(self.folder))]
                self.problem = ""
            except SmolsumError as error:
                found, self.problem = [], str(error)
            self._runs = {root: self._runs.get(root) or Run(RunPaths(root), last_bytes=LAST_BYTES) for root in found}
            self._unread = found[::-1]  # read from its end, the newest first
        while self._unread and monotonic() < until:
            self._runs[self._unread.pop()].poll()
        return not self._unread

    def lines(self) -> list[RunLine]:
        """Return a line for each run that was read, the newest first."""
        now, unread = datetime.now(UTC), set(self._unread)
        return [_line(run, now) for root, run in self._runs.items() if root not in unread or run.status.state]

    def __len__(self) -> int:
        return len(self._runs)


def _line(run: Run, now: datetime) -> RunLine:
    started = last_started(run.paths.root)
    age = max(now.timestamp() - started, 0.0) if started is not None else 0.0
    label, summary = run.newest_result
    measures = () if summary.so_far else summary.measures
    found = {clean(one.title): (one, summary.metrics.get(one.name)) for one in measures if one.role}
    results = {title: (one, value) for title, (one, value) in found.items() if value is not None}
    return RunLine(run, run_state(run, now), progress(run), label, results, age)
