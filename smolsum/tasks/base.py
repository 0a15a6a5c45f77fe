"""What a task is: prompts, rewards, an evaluation and presets. Other packages know a task only through `Task`.

To add one, write `tasks/<name>.py` with a `TASK`, and add its name to `NAMES` in `tasks/__init__.py`. `docs/plugins.md`
shows a complete one; what that leaves out has the defaults below.

- Signals may ask a server: a `SmolsumError` saves the run, and an `UnreachableError` also says how to continue.
- Completions are measured by the signals unless there is a `measurer`; a column `passed` separates rescued from
  regressed examples. The summary has the mean of each number, unless there is a `summarise`.
- If `load` asks a model, `preview` makes a stand-in for the dry run, which asks nothing (`ab_judge/task.py`).
- A stage with a `mix` needs `category`, the column that it mixes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from smolsum.config.constraints import LENGTH, parse_constraints
from smolsum.config.presets import TaskPresets as TaskPresets
from smolsum.config.sections import Config, TaskConfig
from smolsum.config.targets import Targets
from smolsum.errors import UsageError
from smolsum.rewards.combine import score_all, with_needs
from smolsum.rewards.judge import JudgeSignal, judge_signals
from smolsum.rewards.signal import Background, Signal, facts_of
from smolsum.tasks.data import Example, Split, load_split
from smolsum.types import COMPOSITE, Criterion, Prompt, Rollout, RolloutGroup

Messages = tuple[dict[str, str], ...]
MetricRow = Mapping[str, Any]
"""the metrics of one example, by name"""
Summary = dict[str, float | None]
"""the metrics of a split, by name; None for one without a value"""
Measure = Callable[[Prompt, Rollout], dict[str, Any]]
"""a prompt and its completion to the metrics of that example"""
AskAhead = Callable[[Sequence[tuple[Prompt, Rollout]], Config], None]
"""asks about many completions at once"""


def chat(system: str, example: Example) -> Messages:
    """Return the system message, if any, the turns before the source, and the source as the user's turn. An example's
    own system message stands in place of `system`."""
    first = [{"role": "system", "content": system}] if system and not example.has_system else []
    return (*first, *example.turns, {"role": "user", "content": example.source})


def own_instruction(task: TaskConfig, text: str, own: str = "plain") -> TaskConfig:
    """Return the settings for a prompt variant: the word `own` means the system prompt as it is set, several words are
    the system prompt itself. Raises UsageError for another single word."""
    if text == own:
        return task
    return with_instruction(task, text, own)


def with_instruction(task: TaskConfig, text: str, known: str) -> TaskConfig:
    """Return the settings with `text` as the system prompt. Raises UsageError for a single word, since the variants
    that are `known` are handled before."""
    if len(text.split()) < 2:
        raise UsageError(f"no prompt {text!r}", hint=f"give {known}, or a whole instruction")
    return replace(task, system_prompt=text)


@dataclass(frozen=True, kw_only=True)
class TaskPrompts:
    """What is asked."""

    messages: Callable[[Example, Config], Messages] = lambda example, config: chat(config.task.system_prompt, example)
    """the chat that asks for one example"""
    load: Callable[[Config, str], Split] = lambda config, split: load_split(config.data, split)
    """the split `train`, `validation` or `test`, read from [data] or made from a seed (`generated_split`, for the path
    `generated`); what is checked or scored later belongs in an example's metadata. UsageError for wrong input"""
    preview: Callable[[Config, str], Split] | None = None
    """the split for a dry run, where `load` asks a model: about as many and as long prompts, without a request"""
    preview_note: Callable[[Config], str] = lambda config: ""
    """a sentence on what the preview does not have; empty: it is what `load` returns"""
    category: str = ""
    """the metadata column by whose values a stage may mix prompts; empty: no mixes"""
    variant: Callable[[TaskConfig, str], TaskConfig] = own_instruction
    """settings for a baseline's prompt variant (or text): UsageError for an unknown one"""
    baselines: tuple[str, ...] = ("plain",)
    """the prompt variants of `smolsum baseline` without `--prompt`"""
    baselines_of: Callable[[TaskConfig], tuple[str, ...]] | None = None
    """the same, where they depend on the settings"""
    prompt_settings: tuple[str, ...] = ("system_prompt",)
    """settings that change how the policy is asked and not what is measured: evaluations that differ in them compare"""

    def baselines_for(self, task: TaskConfig) -> tuple[str, ...]:
        """Return the prompt variants of a baseline without `--prompt`."""
        return self.baselines_of(task) if self.baselines_of else self.baselines

    def load_preview(self, config: Config, split: str) -> Split:
        """Return a split for a dry run: of `preview`, else of `load`. Raises what they raise."""
        return (self.preview or self.load)(config, split)

    def categories(self, examples: Sequence[Example] | Sequence[Prompt]) -> tuple[str, ...]:
        """Return the category of each example or prompt, empty where it has none."""
        return tuple(str(example.metadata.get(self.category) or "") for example in examples)


@dataclass(frozen=True, kw_only=True)
class TaskTargets:
    """How a task lets each prompt ask for its own length. `messages` then find it in an example's metadata, under
    `TARGET`."""

    of: Callable[[Config], Targets | None] = lambda config: None
    """the targets of a run; None where no prompt asks for a length"""
    length: Callable[[Config], Callable[[Rollout], int]] = lambda config: lambda rollout: rollout.length
    """counts a completion in the unit of the targets"""
    signals: tuple[str, ...] = ("length",)
    """the signals that depend on the target"""
    measures: tuple[str, ...] = ()
    """what the task measures of a completion that depends on the target"""


@dataclass(frozen=True, kw_only=True)
class TaskRewards:
    """What completions are rewarded for."""

    signals: Mapping[str, Signal]
    """by name: functions that score a whole step at once (they may ask a server; None is a value that could not be
    computed, never 0), or a `Dependent` that needs others' values. `smolsum.rewards.REWARDS` has the general ones"""
    adjust_weights: Callable[[Mapping[str, float], TaskConfig], Mapping[str, float]] = lambda weights, task: weights
    """the weights of a stage's signals under these settings"""

    @property
    def length_signals(self) -> list[str]:
        """The signals that depend on a completion's length, or on whether it was cut."""
        return [name for name, signal in self.signals.items() if facts_of(signal).by_length]

    @property
    def end_signals(self) -> list[str]:
        """The signals that only the place where a completion ends decides."""
        return [name for name, signal in self.signals.items() if facts_of(signal).by_end]


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: its key in a summary, its column's title, and the format in which a value is shown."""

    name: str
    title: str
    form: str = ".1%"
    better: Literal["higher", "lower", ""] = field(default="", kw_only=True)
    """which values are better; empty: neither (a report then compares nothing by it)"""
    role: Literal["constraint", "quality", ""] = field(default="", kw_only=True)
    """what a report opens with: the first headline of each role. The constraint is what a completion has to obey, the
    quality how good it is; a judge's composite replaces the quality where there is one"""
    column: str = field(default="", kw_only=True)
    """the column of the scores that tests of this metric use; empty: the one with its name"""
    meaning: str = field(default="", kw_only=True)
    """what a share counts, as a sentence before the number needs it (answers that parse); empty: the title says it"""

    def show(self, value: float) -> str:
        return format(value, self.form)


@dataclass(frozen=True)
class MetricTable:
    """One table of an evaluation: its title, its columns, and how to get their values where an evaluation has none of
    them. Without a hint such a table is left out; what the data would need for it is then said."""

    title: str
    metrics: tuple[Metric, ...]
    hint: str = ""
    needs: str = ""
    subject: str = ""
    """the metric without which the others say nothing, so that the table is left out"""

    def applies(self, values: Mapping[str, float | None]) -> bool:
        """Return whether an evaluation with these values has a use for the table."""
        return not self.subject or values.get(self.subject) is not None


@dataclass(frozen=True)
class ErrorKind:
    """Something that goes wrong with a completion: its name, its meaning in words, and how a row shows it."""

    name: str
    meaning: str
    shown: Callable[[MetricRow], bool | None]
    """a row with its metrics, and the judge's if there was one; None where the row does not show it"""


def mean(rows: Sequence[MetricRow], name: str) -> float | None:
    """Return the mean of a column over the rows that have a value; None where no row has one."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return fmean(values) if values else None


def means(rows: Sequence[MetricRow]) -> Summary:
    """Return the mean of each column that holds numbers (or None) only."""
    names = dict.fromkeys(name for row in rows for name in row)
    numbers = [name for name in names if all(isinstance(row.get(name), int | float | None) for row in rows)]
    return {name: mean(rows, name) for name in numbers}


def measure_signals(splits: Sequence[Split], config: Config) -> Measure:
    """Measure a completion by the signals of the task, each computed on this completion alone, except those that ask a
    judge; those of plugins, and those that need one, are measured apart (`plugins`)."""
    from smolsum.tasks import TASKS  # a task is not among them before this module is loaded

    found = TASKS[config.task.name].rewards.signals
    apart = {name for name, signal in found.items() if isinstance(signal, Background | JudgeSignal)}
    signals = {name: signal for name, signal in found.items() if apart.isdisjoint(with_needs([name], found))}

    def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
        scores = score_all([RolloutGroup(prompt, (rollout,))], dict.fromkeys(signals, 1.0), config, signals)
        values = {name: scores[name][0][0] for name in signals}
        return {name: None if value is None else float(value) for name, value in values.items()}

    return measure


def _criteria(config: Config) -> Sequence[Criterion]:
    """Return what a judge is asked about completions of this task."""
    from smolsum.tasks import TASKS

    return TASKS[config.task.name].evaluation.criteria


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """How completions are measured, and how the results are shown."""

    measurer: Callable[[Sequence[Split], Config], Measure] = measure_signals
    """makes the function that measures one example, from its split, and from all splits where `needs_all_splits`; by
    default the values of the signals. A column `passed`, 1 where an example is right and else 0, separates
    rescued from regressed examples"""
    quick_measurer: Callable[[Sequence[Split], Config], Measure] | None = None
    """makes the function that measures every rollout of a training, for `train.guard`: quick, and it asks no server. It
    may be the `measurer`. None: the guard watches nothing"""
    needs_all_splits: bool = False
    """whether measuring one split needs the others, to know all that any post states"""
    measures: Callable[[Config], dict[str, Any]] = lambda config: config.task.measures
    """what measures depend on: evaluations that differ in it do not compare"""
    code: Callable[[Config], dict[str, str]] = lambda config: {}
    """the digests of the users' code that measures, by what it measures"""
    ask_ahead: AskAhead = lambda completions, config: None
    """called with all completions before they are measured, so that a task can ask a server about many at a time"""
    summarise: Callable[[Sequence[MetricRow]], Summary] = means
    """the rows of a split to its summary; by default the mean of each column that holds numbers"""
    aggregate_samples: Callable[[Sequence[Sequence[MetricRow]]], Summary] | None = None
    """the rows of every prompt's samples, equally many for each, to one summary with what only several samples show
    (pass@k); its intervals are over prompts, since samples of one prompt are alike"""
    step_metrics: Callable[[Sequence[RolloutGroup], Config], dict[str, float]] = lambda groups, config: {}
    """metrics of a training step's rollouts, for metrics.jsonl and the view"""
    watched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """what the progress lines show of a step and of a validation besides the reward: a short name, and the metrics to
    look for, of which the first found is shown"""
    headlines: tuple[Metric, ...]
    """the columns of the closing table, the most important first"""
    missing: Metric | None = None
    """the number of examples that have no score because an answer is missing, shown where it is not 0; a validation
    with missing scores chooses no checkpoint"""
    tables: tuple[MetricTable, ...] = ()
    """all tables of an evaluation except the judge's; by default one of the headlines"""
    errors: tuple[ErrorKind, ...] = ()
    """the error taxonomy; a completion may have several errors, or none"""
    criteria: tuple[Criterion, ...] = ()
    """what a judge is asked; the composite is the sum of their scores"""
    score: str = ""
    """the column that a report compares configurations by, higher is better; empty: the judge's composite, or the first
    headline without a judge"""

    def __post_init__(self) -> None:
        score = self.score or (COMPOSITE if self.criteria else self.headlines[0].name)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "tables", self.tables or (MetricTable("metrics", self.headlines),))

    def columns(self, *summaries: Mapping[str, float | None]) -> tuple[Metric, ...]:
        """Return the headlines, and the missing examples where there are any."""
        lacking = self.missing is not None and any(summary.get(self.missing.name) for summary in summaries)
        return (*self.headlines, self.missing) if self.missing and lacking else self.headlines

    def lacks(self, summary: Mapping[str, float | None], examples: int) -> str:
        """Return in words how many examples are in no mean of a summary; empty where all are."""
        count = summary.get(self.missing.name) if self.missing else None
        return f"{count:.0f} of {examples} {self.missing.title}, and in no mean" if count and self.missing else ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kind of prompt with its rewards, its evaluation and its presets."""

    name: str
    settings: type[TaskConfig] = TaskConfig
    """the record of the section [task]: its keys work with --set and --config, and --dry-run shows them"""
    prompts: TaskPrompts = field(default_factory=TaskPrompts)
    targets: TaskTargets = field(default_factory=TaskTargets)
    rewards: TaskRewards
    evaluation: TaskEvaluation
    presets: TaskPresets = field(default_factory=TaskPresets)
    """the model, strategy and settings of a run that names none, and presets of the task's own: `task_presets(NAME)`
    for `presets/tasks/NAME.toml`, or a `TaskPresets`. Without strategies there is one of one stage, both with the name
    of the task, in which each signal has the weight 1"""
    check: Callable[[Config], Sequence[str]] = lambda config: ()
    """warnings about settings that do not go together; UsageError for those that mean nothing together"""

    def __post_init__(self) -> None:
        if not self.presets.strategies:
            stage = {"rewards": dict.fromkeys(self.rewards.signals, 1.0)}
            strategies = {self.name: {"stages": {self.name: stage}}}
            object.__setattr__(self, "presets", replace(self.presets, strategies=strategies))
        own = self.rewards.signals
        signals = {**own, **judge_signals(_criteria), **own}  # those of the task come first, and win
        object.__setattr__(self, "rewards", replace(self.rewards, signals=signals))

    @property
    def by_length(self) -> frozenset[str]:
        """The signals and measures that depend on a completion's length, or on whether it was cut."""
        return frozenset({*self.rewards.length_signals, *self.targets.measures, LENGTH, "tokens", "truncated"})

    def warnings(self, config: Config) -> list[str]:
        """Return the warnings of `check`, and those about stages that leave truncated completions out although a signal
        or constraint depends on length."""
        found = list(self.check(config))
        for name, stage in config.stages.items():
            trained = stage.trained_rewards
            rewarded = [s for s, weight in trained.items() if weight and s in self.rewards.length_signals]
            bounded = dict.fromkeys(one.measured for one in parse_constraints(stage.constraints))
            signals = rewarded or [s for s in bounded if s in self.by_length]
            if stage.mask_truncated and signals:
                verb = "rewards" if rewarded else "has a constraint on"
                found.append(
                    f"stage {name} {verb} {' and '.join(signals)} but leaves out completions that were cut "
                    "(mask_truncated = true), so it learns nothing from those that are too long: "
                    "--set grpo.mask_truncated=auto trains on them"
                )
        return found
