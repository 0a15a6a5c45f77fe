"""What a task is. Loop, workers, statistics, view and report know a task only by the record `Task` below.

To add one: write `tasks/<name>.py` with a `TASK`, and add its name to `NAMES` in `tasks/__init__.py`. A task brings

  prompts      `load` gives the examples of a split: rows of `[data]` (`data.load_split`), or made from a seed
               (`data.generated_split`, for the path `generated`); either way they are fingerprinted, and what is
               checked or scored later travels in an example's metadata. `messages` makes the chat of one example.
  settings     a frozen dataclass over `TaskConfig`: the section [task] of its runs. Its keys work with --set and
               --config, and --dry-run shows them; a key of another task is refused.
  signals      what completions are rewarded for, by name: functions that score a whole step at once (they may ask a
               server; None is a value that could not be computed, never 0), a `Dependent` one where it needs others'
               values. The general ones are in `smolsum.rewards.REWARDS`; a task lists those that make sense for it.
  presets      the model, strategy and reward that are meant when none is given, its stages with their weights, and
               presets of its own: `task_presets(NAME)` for `presets/tasks/NAME.toml`, or a `TaskPresets`.
  evaluation   `measurer` (one completion to its metrics), `summarise` (the rows of a split to their summary), what is
               shown of it (`headlines`, `panels`; `watched` in the lines of a training), what configurations are
               compared by (`score`), what goes wrong (`errors`), what a judge is asked (`criteria`, perhaps none), and
               metrics over several samples of a prompt (`over_samples`, such as pass@k).

What a judge is asked about a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smolsum.config.presets import TaskPresets
from smolsum.config.sections import Config, TaskConfig
from smolsum.tasks.data import Example, Split, load_split
from smolsum.types import COMPOSITE, Criterion, Prompt, Rollout, RolloutGroup

if TYPE_CHECKING:
    from smolsum.rewards.combine import Signal


Messages = tuple[dict[str, str], ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """A summary metric that people look at first: its key, its column's title and how a value is shown."""

    metric: str
    title: str
    show: Callable[[float], str]


@dataclass(frozen=True)
class MetricTable:
    """One table of an evaluation: its title, its columns, and how to get them where an evaluation lacks them all;
    without a remedy it is the data that lack them."""

    title: str
    headlines: tuple[Headline, ...]
    remedy: str = ""


@dataclass(frozen=True)
class ErrorKind:
    """Something that goes wrong with a completion: its name, what counts as that in words, and how a row shows it."""

    name: str
    meaning: str
    shown: Callable[[Row], bool | None]
    """a row with its metrics, and the judge's where there was one; None where the row cannot tell"""


def load_rows(config: Config, split: str) -> Split:
    """The examples of a task whose data have prompts and references; errors as of `load_split`."""
    return load_split(config.data, split)


def no_metrics(groups: Sequence[RolloutGroup], config: Config) -> dict[str, float]:
    """Of a step nothing beside what is measured for every task."""
    return {}


def no_questions(completions: Sequence[tuple[Prompt, Rollout]], config: Config) -> None:
    """Nobody is asked about completions."""


def by_settings(config: Config) -> dict[str, Any]:
    """Measures depend on the task's settings and on nothing else."""
    return config.task.measures


def as_given(weights: Mapping[str, float], settings: TaskConfig) -> Mapping[str, float]:
    """Weights do not depend on settings."""
    return weights


def no_warnings(config: Config) -> Sequence[str]:
    """No setting is wrong with another."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of prompt with its signals and its evaluation."""

    name: str
    settings: type[TaskConfig]
    """of its section [task]"""
    messages: Callable[[Example, Config], Messages]
    """the chat that asks for one example"""
    signals: Mapping[str, Signal]
    """what can be rewarded, by name"""
    meanings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """range and meaning, in words, of the signals that are the task's own: a report shows them"""

    presets: TaskPresets
    """models, strategies and settings where none are given, and presets of the task's own"""

    kind: str = ""
    """the column by whose values a stage may mix prompts; empty: there is none"""
    weigh: Callable[[Mapping[str, float], TaskConfig], Mapping[str, float]] = as_given
    """the weights that a stage's signals have with these settings"""
    load: Callable[[Config, str], Split] = load_rows
    """the split `train`, `validation` or `test`; UsageError where the user has to mend something"""
    check: Callable[[Config], Sequence[str]] = no_warnings
    """warnings about settings that do not go together; UsageError for those that mean nothing together"""

    measurer: Callable[[Sequence[Split], Config], Callable[[Prompt, Rollout], dict[str, Any]]]
    """given the split, and the others where `needs_all_splits`, a function from a prompt and its completion to the
    metrics of that example; a column `passed`, 1 where an example is right and else 0, tells rescued and regressed ones
    apart"""
    needs_all_splits: bool = False
    """whether measuring one split needs the others, as what any post states is known from all of them"""
    measures: Callable[[Config], dict[str, Any]] = by_settings
    """what measures depend on: evaluations that differ in it do not compare"""
    ask_ahead: Callable[[Sequence[tuple[Prompt, Rollout]], Config], None] = no_questions
    """called with all completions that are measured next, for a task that asks a server about them: many at a time"""
    summarise: Callable[[Sequence[Row]], dict[str, float | None]]
    """the rows of a split to its summary"""
    over_samples: Callable[[Sequence[Sequence[Row]]], dict[str, float | None]] | None = None
    """the rows of every prompt's samples, as many for each, to the summary of all of them, with what only several tell
    (pass@k); its intervals are over prompts, as samples of one prompt are alike"""
    step_metrics: Callable[[Sequence[RolloutGroup], Config], dict[str, float]] = no_metrics
    """of a training step's rollouts, for metrics.jsonl and the view"""
    watched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """what the lines of a training show of a step and of a validation beside its reward: a short name, and the metrics
    of the two, of which the first that is there is shown"""
    headlines: tuple[Headline, ...]
    """the columns of the closing table, the most important first"""
    missing: Headline | None = None
    """the count of examples that have no score for want of an answer, shown where there are any; a validation with some
    chooses no checkpoint"""
    panels: tuple[MetricTable, ...]
    """the tables of an evaluation, but for what a judge says"""
    errors: tuple[ErrorKind, ...] = ()
    """the error taxonomy; a completion may have several, or none"""
    score: str = COMPOSITE
    """the column that a report compares configurations by, higher is better"""
    criteria: tuple[Criterion, ...] = ()
    """what a judge is asked; the composite is the sum of their scores"""

    variant: Callable[[TaskConfig, str], TaskConfig]
    """settings for a baseline's prompt variant (or text): UsageError where there is none such"""
    prompting: tuple[str, ...] = ("system_prompt",)
    """settings that say how the policy is asked and not what is measured: evaluations that differ in them compare"""
    baselines: tuple[str, ...]
    """the prompt variants that a baseline is made of unless it is told otherwise"""

    def columns(self, *summaries: Mapping[str, float | None]) -> tuple[Headline, ...]:
        """The headlines, and what is missing, where something is."""
        lacking = self.missing is not None and any(summary.get(self.missing.metric) for summary in summaries)
        return (*self.headlines, self.missing) if self.missing and lacking else self.headlines

    def lacks(self, summary: Mapping[str, float | None], examples: int) -> str:
        """In words how many examples are in no mean of a summary; empty where all are."""
        count = summary.get(self.missing.metric) if self.missing else None
        return f"{count:.0f} of {examples} {self.missing.title}, and in no mean" if count and self.missing else ""

    def kinds(self, examples: Sequence[Example] | Sequence[Prompt]) -> tuple[str, ...]:
        """The kind of each example or prompt, empty where it has none."""
        return tuple(str(example.metadata.get(self.kind) or "") for example in examples)
