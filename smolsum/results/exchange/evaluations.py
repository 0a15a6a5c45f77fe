"""What leaves the machine of an evaluation, whatever the form: facts without folders, addresses and texts, and the
mean of every column of its scores. `texts.py` adds the texts, where the user wants them to leave too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import Any

from smolsum.config.presets import preset_names, read_table
from smolsum.config.run_labels import model_name
from smolsum.errors import SmolsumError
from smolsum.files import digest, json_lines
from smolsum.results.exchange.texts import SampleTexts
from smolsum.results.report.collect import EvaluationResult, ReportInputs, TrainedRun, read_evaluation
from smolsum.runs.evaluation_records import BEHIND, SUMMARY, MeasureInfo
from smolsum.runs.evidence import public
from smolsum.runs.typed_json import read_object
from smolsum.tasks import TASKS
from smolsum.types import COMPOSITE, PASS_RATE

NOT_FACTS = ("metrics", "headlines", "panels", "measures", "watched", "errors", "signals", "schema_version")
"""keys of a summary that say how it is shown, or that a form has its own place for"""
SAME = 1e-9
"""relative difference of two sums of the same numbers in another order, at most"""
SPLIT = "test"
"""of an evaluation that does not name its split"""


@dataclass(frozen=True)
class ColumnMean:
    """A column of the scores. Its mean is, unrounded, the summary's, unless that is not of means: the share of wrong
    facts is one of sums."""

    name: str
    mean: float
    error: float | None
    """standard error of the mean over the examples; None for fewer than two"""
    count: int
    """examples that have a value"""


@dataclass(frozen=True)
class DataSource:
    """The data of an evaluation: its name without folders, whether the hub has it, and the split's name there."""

    name: str
    on_hub: bool
    split: str


@dataclass(frozen=True)
class ExchangedEvaluation:
    """A finished evaluation as it leaves the machine."""

    result: EvaluationResult
    run: TrainedRun | None
    """the run that it is of; None for an untrained model"""
    data: DataSource
    texts: Mapping[str, SampleTexts] = field(default_factory=dict)
    """by example; empty unless the user wants them to leave"""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What was evaluated and how, as the summary has it, without what is private."""
        hub = set(self.run.info.revisions) if self.run else _known_on_hub()
        found: dict[str, Any] = public(read_object(self.result.folder / SUMMARY), hub)
        if self.result.remote:  # two endpoints stay two
            found["model"]["weights"] = f"{BEHIND}endpoint {digest(self.result.summary.model.weights)[:8]}"
        return {key: value for key, value in found.items() if key not in NOT_FACTS}

    @property
    def name(self) -> str:
        """The run with the name of the evaluation in it, or the folder of one outside of a run."""
        return f"{self.run.name}-{self.result.name}" if self.run else self.result.name

    @property
    def task(self) -> str:
        settings = self.result.task or (self.run.task if self.run else {})
        return str(settings.get("name") or "unknown")

    @property
    def base(self) -> str:
        """The model that training began with, or that was evaluated: its id on the hub, or the last part of a path."""
        return str(self.facts["model"]["path"])

    @property
    def base_on_hub(self) -> bool:
        """Whether that is an id on the hub."""
        return "/" in self.base

    @property
    def trained(self) -> bool:
        """Whether the run had changed the model before it was evaluated."""
        return self.run is not None and bool(self.result.step)

    @property
    def model(self) -> str:
        """The name of the model that was evaluated: the run with the step, or the untrained model."""
        if self.run and self.trained:
            return f"{self.run.name}-step-{self.result.step}"
        return model_name(self.base)

    @property
    def split(self) -> str:
        return self.result.summary.split or SPLIT

    @cached_property
    def time(self) -> datetime:
        """When it was evaluated, in UTC and seconds: as the run's events say, else when its summary was written."""
        if self.run and self.run.paths.events.is_file():
            label = f"{self.result.summary.label}:"
            rows = [row for _, row in json_lines(self.run.paths.events) if row.get("kind") == "evaluated"]
            said = [str(r.get("time")) for r in rows if str(r.get("message", "")).startswith(label)]
            for text in reversed(said):
                try:
                    return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
                except ValueError:
                    continue
        written = (self.result.folder / SUMMARY).stat().st_mtime
        return datetime.fromtimestamp(int(written), UTC)

    @property
    def version(self) -> str:
        """That of smolsum: the run's, else the one installed."""
        return (self.run.info.versions.get("smolsum") if self.run else None) or version("smolsum")

    @property
    def key(self) -> str:
        """A fingerprint of 32 hex digits, the same whenever these scores are written again."""
        return digest([self.name, self.facts, self.result.summary.metrics, self.time.isoformat()])

    @property
    def measures(self) -> tuple[MeasureInfo, ...]:
        """The headlines of which higher or lower values are better, and the judge's scores."""
        summary = self.result.summary
        found = list(summary.measures)
        if not found and (task := TASKS.get(self.task)):
            found = [
                MeasureInfo(one.name, one.title, one.form, one.better, one.role, one.column)
                for one in task.evaluation.headlines
            ]
        judged = [*(summary.criteria or ()), COMPOSITE, PASS_RATE] if summary.judge else []
        known = {one.name for one in found}
        found += [MeasureInfo(one, one.replace("_", " "), ".3f", "higher") for one in judged if one not in known]
        return tuple(one for one in found if one.better)

    @cached_property
    def columns(self) -> tuple[ColumnMean, ...]:
        """The columns that have a value, those first that the task shows."""
        frame, metrics = self.result.scores.frame, self.result.summary.metrics
        names = {one.column or one.name: one.name for one in self.measures}
        first = [self.result.summary.score or "", *names]
        order = [*(name for name in first if name in frame.columns), *frame.columns[1:]]
        found = []
        for name in dict.fromkeys(order):
            values = frame[name].drop_nulls().to_list()
            if values:
                mean, said = math.fsum(values) / len(values), metrics.get(names.get(name, name))
                if said is not None and math.isclose(mean, said, rel_tol=SAME, abs_tol=SAME):
                    mean = said
                found.append(ColumnMean(name, mean, _error(values), len(values)))
        return tuple(found)

    @property
    def other_metrics(self) -> dict[str, float]:
        """The metrics of all examples together, such as the median length, which no column has."""
        names = {one.column or one.name: one.name for one in self.measures}
        shown = {(names.get(one.name, one.name), one.mean) for one in self.columns}
        metrics = self.result.summary.metrics
        return {name: value for name, value in metrics.items() if value is not None and (name, value) not in shown}


def exchanged(inputs: ReportInputs) -> tuple[ExchangedEvaluation, ...]:
    """Return all finished evaluations of the runs, of whatever data and decoding, then those outside of runs. Raises
    SmolsumError where one is damaged, and where no evaluation is finished."""
    sources = {digest_: data for run in inputs.trained for digest_, data in _sources(run).items()}
    found = []
    for run in inputs.trained:
        others = [read_evaluation(one.folder) for one in run.others]
        found += [_exchanged(one, run, sources) for one in (*run.evaluations, *run.sampled, *others)]
    found += [_exchanged(one, None, sources) for one in inputs.baselines]
    if not found:
        reasons = "; ".join(f"{one.name} {one.reason}" for one in inputs.left_out)
        raise SmolsumError(
            f"there is no finished evaluation{f': {reasons}' if reasons else ''}", hint="smolsum runs lists them"
        )
    return tuple(found)


def _exchanged(
    result: EvaluationResult, run: TrainedRun | None, sources: Mapping[str, DataSource]
) -> ExchangedEvaluation:
    split = result.summary.split or SPLIT
    info = result.summary.data.get(split)
    unknown = DataSource(str((result.task or {}).get("name") or "unknown"), on_hub=False, split=split)
    return ExchangedEvaluation(result, run, sources.get(info.fingerprint, unknown) if info else unknown)


@cache
def _known_on_hub() -> set[str]:
    """Return the models of the presets that are on the hub. An evaluation outside of runs does not say whether its
    model is, and a folder's path may look like an id."""
    paths = (read_table("models", name).get("model", {}).get("path", "") for name in preset_names("models"))
    return {path for path in paths if "/" in path}


def _sources(run: TrainedRun) -> dict[str, DataSource]:
    """Return the data of a run by the fingerprints of its splits. An evaluation outside of runs does not name its data,
    but has such a fingerprint."""
    settings = run.config["data"]
    path, on_hub = str(settings["path"]), str(settings["path"]) in run.info.revisions
    shown = path if on_hub else PurePosixPath(path).name or path
    return {
        info.fingerprint: DataSource(shown, on_hub, str(settings.get(f"{split}_split", split)))
        for split, info in run.info.data.items()
    }


def _error(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def safe(text: str) -> str:
    """Return a text as a part of a file's name: letters, digits, points and hyphens."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "-.") else "-" for one in text)
    return kept.strip("-.") or "unknown"
