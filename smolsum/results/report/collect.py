"""What a report is made from: finished evaluations and runs, read from their folders. What cannot be read is left out
with the reason."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from smolsum.config.run_labels import CRITERIA, model_name, reward_of, strategy_of
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import finite, read_jsonl
from smolsum.results.report.document import Cell, CellSource, number
from smolsum.results.score_columns import Scores, load_scores
from smolsum.runs.evaluation_records import BEHIND, SCORES, SUMMARY, Summary
from smolsum.runs.main_evaluation import SAMPLER, SPLIT, RunOrigin, split_of
from smolsum.runs.paths import LATEST, RunPaths
from smolsum.runs.records import RunInfo, RunSettings, Status
from smolsum.runs.typed_json import has_scores, parse, read, read_object, read_summary
from smolsum.tasks import TASKS
from smolsum.tasks.base import Metric
from smolsum.types import COMPOSITE

_LENGTH = r"\d+-(words|tokens)"


def start_command(model: str, run: RunPaths) -> str:
    """Return the command that evaluates an untrained model with the settings of a run."""
    plugins = [word for text in run.named_plugins for word in ("--plugin", text)]
    return shlex.join(["smolsum", "eval", model, "--config", str(run.config), *plugins])


@dataclass(frozen=True)
class EvaluationResult:
    """A finished evaluation: its summary and its scores, one row an example."""

    folder: Path
    summary: Summary
    scores: Scores

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def last(self) -> "EvaluationResult":
        """The evaluation itself, where a run has its last one."""
        return self

    @property
    def task(self) -> Mapping[str, Any] | None:
        """The settings of its task; None if it does not state them."""
        return self.summary.task

    @property
    def step(self) -> int | None:
        """The step of the run that was evaluated; None outside a run."""
        return self.summary.step

    @property
    def judge(self) -> str | None:
        """The judge with its rounds and prompts; None without a judge."""
        return self.summary.judge

    @property
    def model(self) -> str:
        return model_name(self.summary.model.path)

    @property
    def remote(self) -> bool:
        """Whether the model is behind an endpoint, so that it cannot be trained here."""
        return self.summary.model.weights.startswith(BEHIND)

    @cached_property
    def command(self) -> str:
        """The command that repeats this evaluation, without the options of its judge."""
        if self.summary.command:
            return self.summary.command
        if self.step is None:
            return f"smolsum eval {shlex.quote(self.summary.model.path)}"
        run = RunPaths(self.folder.parents[1])
        last = sum(read(run.info, RunInfo).steps.values())
        if self.step == 0:  # no checkpoint: the model itself, asked as the run asked it
            return start_command(self.summary.model.path, run)
        if self.step == last:
            return run.eval_command
        plugins = [word for text in run.named_plugins for word in ("--plugin", text)]
        return shlex.join(["smolsum", "eval", str(run.checkpoint(self.step)), *plugins])

    @property
    def variant(self) -> str:
        """The prompt of a baseline: `50-words` if its label names one, else the label."""
        label = self.summary.label or self.name
        found = re.search(_LENGTH, label)
        return found[0] if found else label

    @property
    def prompt(self) -> str:
        """The `--prompt` of `smolsum baseline` that made this evaluation; empty for any other."""
        if not (self.summary.label or "").startswith("baseline-"):
            return ""
        named = re.fullmatch(_LENGTH, self.variant)
        return self.variant if named else str((self.task or {}).get("system_prompt", ""))

    @property
    def asks_for_length(self) -> bool:
        """Whether this is a baseline whose prompt names a length."""
        return bool(re.fullmatch(_LENGTH, self.prompt))

    def metric(self, name: str) -> float | None:
        """Return the mean of a metric over the examples; None if it is missing."""
        return self.summary.metrics.get(name)

    def source(self, name: str) -> CellSource:
        """Return the file and field of a metric."""
        return CellSource(self.folder / SUMMARY, f"metrics.{name}")

    def cell(self, name: str, show: Callable[[float], str], command: str = "") -> Cell:
        """Return a metric as a cell that links to its file; without a value, a cell with the command, or a dash."""
        return number(self.metric(name), show, self.source(name), command=command)


@dataclass(frozen=True)
class OtherEvaluation:
    """An evaluation of a run that is not compared with those of other runs."""

    folder: Path
    summary: Summary
    differences: Sequence[str]
    """how it differs from the run's own evaluations, in words"""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run with its greedy evaluations on its own test split, the earliest first; of several of a step, the
    last stands for the run."""

    paths: RunPaths
    config: Mapping[str, Any]
    info: RunInfo
    metrics: Sequence[Mapping[str, Any]]
    """the rows of its steps; empty if some are missing"""
    evaluations: tuple[EvaluationResult, ...]
    sampled: tuple[EvaluationResult, ...] = ()
    """evaluations of the same examples that are not greedy"""
    others: tuple[OtherEvaluation, ...] = ()
    """all others: of other data, of another split"""
    gap: str = ""
    """a sentence on missing steps; empty if `metrics` has all"""

    @property
    def name(self) -> str:
        return self.paths.name

    @property
    def model(self) -> str:
        return model_name(self.config["model"]["path"])

    @property
    def strategy(self) -> str:
        """The strategy, in the study's words where they have one."""
        return strategy_of(self.config, self._strategies)

    @property
    def reward(self) -> str:
        """The reward configuration in the study's words."""
        return reward_of(self.config, self._strategies)

    @property
    def _strategies(self) -> Mapping[str, Any]:
        """The strategies of the run's task; none for a task that is not installed here."""
        task = TASKS.get(str(self.task["name"]))
        return task.presets.strategies if task else {}

    @property
    def task(self) -> Mapping[str, Any]:
        """The settings of its task."""
        section: Mapping[str, Any] = self.config["task"]
        return section

    def rows_with(self, *keys: str, last: int = 0) -> list[Mapping[str, Any]]:
        """Return the rows of its steps, or of the `last`, in which all of these are numbers."""
        return [row for row in self.metrics[-last:] if all(isinstance(row.get(key), int | float) for key in keys)]

    @property
    def start(self) -> EvaluationResult | None:
        """The evaluation of the model before training."""
        return next((e for e in reversed(self.evaluations) if e.step == 0), None)

    @property
    def start_command(self) -> str:
        """The command that evaluates the model that the run began with."""
        return start_command(str(self.config["model"]["path"]), self.paths)

    @property
    def last(self) -> EvaluationResult:
        """The evaluation of the trained model."""
        return self.evaluations[-1]

    @property
    def after_length(self) -> EvaluationResult | None:
        """The evaluation of a run of several stages after its length stage."""
        first, *others = self.config["stages"]
        if not others or set(self.config["stages"][first]["rewards"]) != {"length"}:
            return None
        return next((e for e in reversed(self.evaluations) if e.step == self.info.steps[first]), None)


Entry: TypeAlias = TrainedRun | EvaluationResult


@dataclass(frozen=True)
class LeftOut:
    """A run or an evaluation that was given and is not in the report."""

    name: str
    reason: str
    command: str = ""
    run: TrainedRun | None = None
    """the run, if it is whole but not comparable with the others"""


@dataclass(frozen=True)
class ReportInputs:
    """All that a report is made from."""

    trained: tuple[TrainedRun, ...]
    baselines: tuple[EvaluationResult, ...]
    left_out: tuple[LeftOut, ...]
    notices: tuple[str, ...] = ()
    """what readers should know about runs that are in the report"""

    @property
    def entries(self) -> list[Entry]:
        """The runs, then the baselines."""
        return [*self.trained, *self.baselines]

    @property
    def models(self) -> list[str]:
        """Names of all models, in alphabetical order."""
        return sorted({one.model for one in self.entries}, key=str.casefold)

    def runs_of(self, model: str) -> list[TrainedRun]:
        return [run for run in self.trained if run.model == model]

    @property
    def trainable(self) -> list[str]:
        """Names of the models that are not behind an endpoint."""
        own = {run.model for run in self.trained} | {e.model for e in self.baselines if not e.remote}
        return [model for model in self.models if model in own]

    @property
    def evaluations(self) -> list[EvaluationResult]:
        """The last evaluation of each run, then the baselines."""
        return [one.last for one in self.entries]

    @property
    def named_evaluations(self) -> list[tuple[str, EvaluationResult]]:
        """The last evaluation of each run under the run's name, then the baselines under their folders' names."""
        return [(one.name, one.last) for one in self.entries]

    @property
    def judge(self) -> str | None:
        return next((e.judge for e in self.evaluations if e.judge), None)

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """What the judge scores; evaluations that do not say so are the study's."""
        criteria = self.evaluations[0].summary.criteria
        return CRITERIA if criteria is None else tuple(criteria)

    @property
    def score(self) -> str:
        """The column that configurations are compared by."""
        return self.evaluations[0].summary.score or COMPOSITE

    @cached_property
    def rated_headlines(self) -> tuple[Metric, ...]:
        """The headlines of which some values are better: as the evaluations state them, or else as the task has them
        now."""
        # backwards, so that what the first evaluation says of a metric stays
        found = {
            one.name: Metric(one.name, one.title, one.form, better=one.better, role=one.role, column=one.column)
            for e in reversed(self.evaluations)
            for one in reversed(e.summary.measures)
        }
        if not found:
            task = TASKS.get(str((self.entries[0].task or {}).get("name")))
            return tuple(metric for metric in task.evaluation.headlines if metric.better) if task else ()
        return tuple(reversed(found.values()))

    def meaning_of(self, metric: Metric) -> str:
        """Return what a metric is in a sentence, as the task has it now; its title if the task does not say."""
        task = TASKS.get(str((self.evaluations[0].task or {}).get("name")))
        own = task.evaluation.headlines if task else ()
        found = next((one.meaning for one in own if (one.name, one.title) == (metric.name, metric.title)), "")
        return found or metric.title

    @property
    def follows_study(self) -> bool:
        """Whether the task is judged as the study's is, so that the report has the study's tables."""
        return self.criteria == CRITERIA

    @property
    def has_references(self) -> bool:
        """Whether training can be rewarded by references: some data has them, or is not known."""
        corpora = [run.info.corpus for run in self.trained]
        return not corpora or any(corpus is None or corpus.train.references is not None for corpus in corpora)

    def path_of(self, model: str) -> str:
        """Return the path or hub id of a model."""
        paths = [str(run.config["model"]["path"]) for run in self.runs_of(model)]
        return (paths + [e.summary.model.path for e in self.baselines if e.model == model])[0]


def gather(references: Sequence[str], runs_dir: Path) -> ReportInputs:
    """Read what each reference names: a run or an evaluation, by its path or its name in `runs_dir`. Raises
    UsageError if a reference does not exist."""
    found: list[Entry | LeftOut] = []
    for root in _roots(references, runs_dir):
        try:
            if RunPaths(root).config.exists():
                found.append(_read_run(RunPaths(root)))
            elif has_scores(root):
                one = read_evaluation(root)
                _ = one.command  # reads the run that an evaluation belongs to
                found.append(one)
            else:
                found.append(LeftOut(root.name, "holds neither a run nor a finished evaluation"))
        except SmolsumError as error:
            found.append(LeftOut(root.name, f"malformed: {error.message}"))
    trained = tuple(one for one in found if isinstance(one, TrainedRun))
    baselines = tuple(one for one in found if isinstance(one, EvaluationResult))
    return ReportInputs(trained, baselines, tuple(one for one in found if isinstance(one, LeftOut)))


def _roots(references: Sequence[str], runs_dir: Path) -> list[Path]:
    """The folders that are meant, each once: `runs/*` contains the link `latest` too."""
    roots: dict[Path, Path] = {}
    for reference in references:
        candidates = (Path(reference).expanduser(), runs_dir / reference)
        found = next((path for path in candidates if reference and path.is_dir()), None)
        if found is None:
            if Path(reference).is_file():  # `runs/*` may match notes next to the runs
                continue
            raise UsageError(f"no run {reference!r}, neither here nor in {runs_dir}", hint="smolsum runs lists them")
        if found.is_symlink() and found.name == LATEST:
            found = found.parent / found.readlink()
        roots.setdefault(found.resolve(), found)
    return sorted(roots.values(), key=lambda path: (path.name, str(path)))


def _read_run(paths: RunPaths) -> TrainedRun | LeftOut:
    status = read(paths.status, Status) if paths.status.exists() else Status()
    if status.state != "finished":
        reason = f"is {status.state} at step {status.step}" if status.state else "has no status"
        return LeftOut(paths.root.name, f"half-finished: {reason}", paths.resume_command)
    config = _read_config(paths)
    info = read(paths.info, RunInfo, needs=("steps", "model", "tokenizer"))
    if list(info.steps) != list(config["stages"]):
        raise SmolsumError(f"{paths.info} has other stages than {paths.config}")
    folders = [folder for folder in sorted(paths.evaluations.glob("*")) if has_scores(folder)]
    summaries = {folder: read_summary(folder) for folder in folders}
    origin = RunOrigin.of(config, info)
    own = [f for f, one in summaries.items() if split_of(f, one) == SPLIT and not origin.is_other_data(f, one)]
    found = [read_evaluation(folder) for folder in sorted(own, key=lambda f: origin.rank(f, summaries[f]))]
    evaluations = [one for one in found if one.summary.sampler == SAMPLER]
    if any(one.step is None for one in evaluations):
        raise SmolsumError(f"{paths.evaluations} has an evaluation without a step")
    last = sum(info.steps.values())
    if not evaluations or evaluations[-1].step != last:
        reason = f"half-finished: no evaluation of its last step, {last}"
        return LeftOut(paths.root.name, reason, paths.eval_command)
    sampled = [one for one in found if one.summary.sampler != SAMPLER and one.step is not None]
    sampled = [one for one in sampled if one.scores.origin == evaluations[-1].scores.origin]
    shown = {one.folder for one in (*evaluations, *sampled)}
    others = [
        OtherEvaluation(folder, summary, origin.differences(folder, summary))
        for folder, summary in summaries.items()
        if folder not in shown
    ]
    metrics = finite(read_jsonl(paths.metrics))
    run = TrainedRun(paths, config, info, metrics, tuple(evaluations), tuple(sampled), tuple(others))
    return replace(run, metrics=(), gap=gap) if (gap := _gap(run)) else run


def _read_config(paths: RunPaths) -> Mapping[str, Any]:
    """The settings of a run, as they are."""
    config = read_object(paths.config)
    settings = parse(config, RunSettings, str(paths.config), needs=("model.path", "data.path", "task.name", "stages"))
    for problem, is_so in {
        "a section is not a table": not all(isinstance(section, dict) for section in config.values()),
        "it has no model.path": not settings.model,
        "it has no task.name": not settings.task,
        "it has no stages": not settings.stages,
        "a stage has no rewards": not all("rewards" in stage for stage in config["stages"].values()),
    }.items():
        if is_so:
            raise SmolsumError(f"{paths.config} is damaged: {problem}")
    return config


def read_evaluation(folder: Path) -> EvaluationResult:
    """Return a finished evaluation. Raises SmolsumError for a file that is damaged."""
    path = folder / SUMMARY
    summary = read_summary(folder, needs=("n", "model", "tokenizer", "metrics"))
    scores = load_scores(str(folder), finite=True)
    judging = summary.judging
    for wrong, is_so in {
        "it has no model.path": not summary.model.path,
        f"n is {summary.n}, but {SCORES} has {scores.frame.height} lines": summary.n != scores.frame.height,
        "it does not say what was judged": summary.judge and not (judging and judging.prompts and judging.thresholds),
        "its command has an open quotation mark": not _can_be_split(summary.command),
    }.items():
        if is_so:
            raise SmolsumError(f"{path} is damaged: {wrong}")
    return EvaluationResult(folder, summary, replace(scores, name=folder.name))


def _can_be_split(command: str) -> bool:
    try:
        return bool(shlex.split(command)) or not command
    except ValueError:
        return False


def _gap(run: TrainedRun) -> str:
    """A sentence on steps that the metrics lack; empty if they have all."""
    ends = [0, *accumulate(run.info.steps.values())]
    steps = {row["step"] for row in run.metrics if type(row.get("step")) is int}
    first, last = min(steps, default=0), ends[-1]
    # a run that continues from a stage of another run begins after that stage
    if not last or (first - 1 in ends and steps == set(range(first, last + 1))):
        return ""
    lost = f"ends at step {max(steps)}" if steps and max(steps) < last else "lacks steps" if steps else "has no steps"
    return f"{run.paths.metrics.name} of {run.name} {lost} of {last}: the run is in no curve, its cost unknown"
