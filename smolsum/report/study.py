"""What a report is made from: evaluations, finished runs, and all of them together."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from smolsum.config.study import model_name, reward_of, strategy_of
from smolsum.files import read_jsonl
from smolsum.report.document import CellSource
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import BEHIND, SCORES, SUMMARY
from smolsum.stats.loading import Scores
from smolsum.types import COMPOSITE

CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
"""the study's metrics (its Table 3), in its order"""


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
    def behind(self) -> bool:
        """Whether the model is one behind an endpoint, which nobody trains here."""
        return str(self.summary["model"]["weights"]).startswith(BEHIND)

    @property
    def again(self) -> str:
        """The command that makes this evaluation, but for a judge's options."""
        if command := self.summary.get("command"):
            return str(command)
        if self.step is None:
            return f"smolsum eval {shlex.quote(str(self.summary['model']['path']))}"
        run = RunPaths(self.folder.parents[1])
        between = self.step < sum(json.loads(run.info.read_bytes())["steps"].values())
        return f"smolsum eval {run.checkpoint(self.step)}" if between else run.evaluate_command

    @property
    def variant(self) -> str:
        """The prompt of a baseline: `50-words` where its label says so, else the label."""
        label = str(self.summary.get("label") or self.folder.name)
        found = re.search(r"\d+-(words|tokens)", label)
        return found[0] if found else label

    @property
    def prompt(self) -> str:
        """What `smolsum baseline --prompt` made this of; empty if it was not that."""
        if not str(self.summary.get("label")).startswith("baseline-"):
            return ""
        named = re.fullmatch(r"\d+-(words|tokens)", self.variant)
        return self.variant if named else str((self.summary.get("task") or {}).get("system_prompt", ""))

    def metric(self, name: str) -> float | None:
        """The mean of a metric over the examples."""
        value = self.summary["metrics"].get(name)
        return None if value is None else float(value)

    def source(self, name: str) -> CellSource:
        """Where `metric` reads."""
        return CellSource(self.folder / SUMMARY, f"metrics.{name}")

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The completion of each example, by its id."""
        return {str(row["id"]): str(row.get("text", "")) for row in read_jsonl(self.folder / SCORES)}


@dataclass(frozen=True)
class Trained:
    """A run that has finished, with its greedy evaluations on the test split, the earliest first."""

    paths: RunPaths
    config: Mapping[str, Any]
    info: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: tuple[Evaluation, ...]
    sampled: tuple[Evaluation, ...] = ()
    """those of the same examples that are not greedy"""

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
    def first(self) -> Evaluation | None:
        """The evaluation of the model before it was trained."""
        return self.evaluations[0] if self.evaluations[0].step == 0 else None

    @property
    def last(self) -> Evaluation:
        """The evaluation of the trained model."""
        return self.evaluations[-1]

    def judged_by(self, judge: str | None) -> Trained:
        """The run without evaluations by other judges; itself where none of its last step would remain."""
        kept = tuple(e for e in self.evaluations if e.judge in (judge, None))
        return replace(self, evaluations=kept) if kept and kept[-1].step == self.last.step else self

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
    run: Trained | None = None
    """of a run that is whole, but not of the others' kind"""


@dataclass(frozen=True)
class Study:
    """All that a report is made from."""

    trained: tuple[Trained, ...]
    baselines: tuple[Evaluation, ...]
    left_out: tuple[LeftOut, ...]
    notices: tuple[str, ...] = ()
    """what a reader should know of runs that are in the report all the same"""

    @property
    def models(self) -> list[str]:
        """Names of all models, in alphabetical order."""
        return sorted({run.model for run in self.trained} | {e.model for e in self.baselines}, key=str.casefold)

    @property
    def trainable(self) -> list[str]:
        """Names of the models that do not lie behind an endpoint."""
        own = {run.model for run in self.trained} | {e.model for e in self.baselines if not e.behind}
        return [model for model in self.models if model in own]

    @property
    def evaluations(self) -> list[Evaluation]:
        """The evaluations of all that was trained, then of the baselines."""
        return [run.last for run in self.trained] + list(self.baselines)

    @property
    def judge(self) -> str | None:
        """The judge of this report."""
        return next((e.judge for e in self.evaluations if e.judge), None)

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """What a judge is asked, as the evaluations have it; those of before they did are the study's."""
        return tuple(self.evaluations[0].summary.get("criteria", CRITERIA))

    @property
    def score(self) -> str:
        """The column that configurations are compared by."""
        return str(self.evaluations[0].summary.get("score", COMPOSITE))

    @property
    def repeats(self) -> bool:
        """Whether the task is judged as the study's is, so that its tables are the right ones."""
        return self.criteria == CRITERIA

    def path_of(self, model: str) -> str:
        """The path or hub id of a model that goes by this name."""
        paths = [str(run.config["model"]["path"]) for run in self.trained if run.model == model]
        return (paths + [str(e.summary["model"]["path"]) for e in self.baselines if e.model == model])[0]
