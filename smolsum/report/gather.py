"""What run directories hold, read once: runs that are whole and of one kind, and the others with why they are left out.

Nothing that is left out reaches a table: not a run that is damaged, not one that has not finished, not one whose test
split, target, judge or base model is not that of the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tomli

from smolsum.configurations import model_argument, model_name, reward_of, strategy_of
from smolsum.errors import SmolsumError, UsageError
from smolsum.evaluate.scores import SCORES, SUMMARY, has_scores, read_summary
from smolsum.lines import read_jsonl
from smolsum.report.page import Source
from smolsum.runs import LATEST, RunPaths
from smolsum.stats.scores import Scores, load_scores

SPLIT, SAMPLER = "test", "greedy"
"""of the evaluations that a report is about"""


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation: its summary and its scores, one row an example."""

    folder: Path
    summary: Mapping[str, Any]
    scores: Scores

    @property
    def step(self) -> int | None:
        """The step of the run that was evaluated; None outside a run."""
        return self.summary.get("step")

    @property
    def judge(self) -> str | None:
        """Who judged, how often, with which prompts; None where nobody did."""
        return self.summary.get("judge")

    @property
    def model(self) -> str:
        """The model's name."""
        return model_name(str(self.summary["model"]["path"]))

    @property
    def again(self) -> str:
        """The command that makes this evaluation, but for a judge's options."""
        if self.step is None:
            return f"smolsum eval {model_argument(str(self.summary['model']['path']))}"
        run = RunPaths(self.folder.parents[1])
        between = self.step < sum(json.loads(run.info.read_bytes())["steps"].values())
        return f"smolsum eval {run.checkpoint(self.step)}" if between else run.evaluate_command

    def metric(self, name: str) -> float | None:
        """The mean of a metric over the examples."""
        value = self.summary["metrics"].get(name)
        return None if value is None else float(value)

    def source(self, name: str) -> Source:
        """Where `metric` reads."""
        return Source(self.folder / SUMMARY, f"metrics.{name}")

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The completion of each example, by its id."""
        return {str(row["id"]): str(row.get("text", "")) for row in read_jsonl(self.folder / SCORES)}


@dataclass(frozen=True)
class Trained:
    """A run that has finished, with its evaluations on the test split, the earliest first."""

    paths: RunPaths
    config: Mapping[str, Any]
    info: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: tuple[Evaluation, ...]

    @property
    def model(self) -> str:
        """The model's name."""
        return model_name(self.config["model"]["path"])

    @property
    def strategy(self) -> str:
        """The strategy in the study's words."""
        return strategy_of(self.config)

    @property
    def reward(self) -> str:
        """The reward configuration in the study's words."""
        return reward_of(self.config)

    @property
    def last(self) -> Evaluation:
        """The evaluation of the trained model."""
        return self.evaluations[-1]

    @property
    def after_length(self) -> Evaluation | None:
        """The evaluation of a two-stage run's model as its length stage left it."""
        first, *others = self.config["stages"]
        if not others or set(self.config["stages"][first]["rewards"]) != {"length"}:
            return None
        return next((e for e in reversed(self.evaluations) if e.step == self.info["steps"][first]), None)


@dataclass(frozen=True)
class LeftOut:
    """What was asked for and is not in the report."""

    name: str
    reason: str
    command: str = ""


@dataclass(frozen=True)
class Study:
    """All that a report is made from."""

    trained: tuple[Trained, ...]
    baselines: tuple[Evaluation, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def models(self) -> list[str]:
        """Names of all models, in alphabetical order."""
        return sorted({run.model for run in self.trained} | {e.model for e in self.baselines}, key=str.casefold)

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations of all that was trained, then of the baselines."""
        return [run.last for run in self.trained] + list(self.baselines)

    @property
    def judge(self) -> str | None:
        """The judge of this report."""
        return next((e.judge for e in self.evaluations if e.judge), None)

    def path_of(self, model: str) -> str:
        """The path or hub id of a model that goes by this name."""
        paths = [str(run.config["model"]["path"]) for run in self.trained if run.model == model]
        return (paths + [str(e.summary["model"]["path"]) for e in self.baselines if e.model == model])[0]


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
                for of_run, _, _ in _KINDS:
                    of_run(run)
                trained.append(run)
            elif has_scores(root):
                evaluation = _read_evaluation(root)
                for _, of_evaluation, _ in _KINDS:
                    of_evaluation(evaluation)
                baselines.append(evaluation)
            else:
                left_out.append(LeftOut(root.name, "holds neither a run nor a finished evaluation"))
        except _Unfinished as unfinished:
            left_out.append(LeftOut(root.name, *unfinished.args))
        except (SmolsumError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = error.message if isinstance(error, SmolsumError) else f"{type(error).__name__}: {error}"
            left_out.append(LeftOut(root.name, f"malformed: {what}"))
    for of_run, of_evaluation, what in _KINDS:
        kinds = [key for key in [*map(of_run, trained), *map(of_evaluation, baselines)] if key is not None]
        trained, dropped_runs = _agreeing(trained, of_run, kinds)
        baselines, dropped = _agreeing(baselines, of_evaluation, kinds)
        left_out += [LeftOut(run.paths.name, f"mixed: {what} is not that of the other runs") for run in dropped_runs]
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
    status = dict(json.loads(paths.status.read_bytes())) if paths.status.exists() else {}
    if (state := status.get("state")) != "finished":
        told = f"is {state} at step {status.get('step')}" if state else "has no status"
        raise _Unfinished(f"half-finished: {told}", paths.resume_command)
    config = tomli.loads(paths.config.read_text(encoding="utf-8"))
    info = dict(json.loads(paths.info.read_bytes()))
    if not config["stages"] or not config["model"]["path"] or list(info["steps"]) != list(config["stages"]):
        raise ValueError(f"{paths.info} tells of other stages than {paths.config}")
    strategy_of(config), reward_of(config)
    folders = [folder for folder in sorted(paths.evaluations.glob("*")) if has_scores(folder) and _wanted(folder)]
    evaluations = sorted(map(_read_evaluation, folders), key=lambda e: (e.step or 0, e.judge is not None))
    last = sum(info["steps"].values())
    if not evaluations or evaluations[-1].step != last:
        raise _Unfinished(f"half-finished: no evaluation of its last step, {last}", paths.evaluate_command)
    return Trained(paths, config, info, read_jsonl(paths.metrics), tuple(evaluations))


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


T = TypeVar("T")
Key = Callable[[Any], Hashable]


def _agreeing(entries: Sequence[T], key: Key, kinds: Sequence[Hashable]) -> tuple[list[T], list[T]]:
    """The entries of the most frequent kind (of its model, where the kind begins with one), and the others. An entry
    without a kind agrees with all."""
    counts: dict[Hashable, Counter[Hashable]] = {}
    for kind in kinds:
        assert isinstance(kind, tuple)
        counts.setdefault(kind[0], Counter())[kind] += 1
    chosen = {group: counter.most_common(1)[0][0] for group, counter in counts.items()}
    kept: list[T] = []
    dropped: list[T] = []
    for entry in entries:
        kind = key(entry)
        agrees = kind is None or (isinstance(kind, tuple) and chosen[kind[0]] == kind)
        (kept if agrees else dropped).append(entry)
    return kept, dropped


def _data(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.scores.origin.get("data"))


def _judge(evaluation: Evaluation) -> Hashable:
    return ("", evaluation.judge) if evaluation.judge else None


def _target(task: Mapping[str, Any]) -> Hashable:
    return ("", task["target_tokens"], task["tolerance_tokens"])


_KINDS: tuple[tuple[Key, Key, str], ...] = (
    (lambda run: _data(run.last), _data, "the fingerprint of its test split"),
    (
        lambda run: _target(run.config["task"]),
        lambda e: _target(e.summary["task"]) if e.summary.get("task") else None,
        "its target length",
    ),
    (lambda run: _judge(run.last), _judge, "its judge"),
    (
        lambda run: (run.model, run.info["model"]["weights"], run.info["tokenizer"]),
        lambda e: (e.model, e.summary["model"]["weights"], e.summary["tokenizer"]),
        "the fingerprint of its base model",
    ),
)
