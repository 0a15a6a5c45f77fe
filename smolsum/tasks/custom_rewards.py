"""A task with users' rewards: they join its signals, and evaluations measure them with its own metrics."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from smolsum.config.sections import Config
from smolsum.config.targets import TARGET
from smolsum.errors import UsageError
from smolsum.rewards.combine import score_all
from smolsum.rewards.custom import CustomReward
from smolsum.tasks.base import Measure, Metric, MetricRow, MetricTable, Summary, Task, mean
from smolsum.tasks.data import Split
from smolsum.types import Prompt, Rollout, RolloutGroup

Completion = tuple[str, tuple[int, ...], str]


def with_rewards(task: Task, rewards: Sequence[CustomReward], named: Collection[str]) -> Task:
    """Return the task with these signals. Evaluations measure those that the user `named`, and those that a stage of
    the run uses."""
    if not rewards:
        return task
    signals = {reward.name: reward for reward in rewards}
    base, found = task.evaluation, dict[Completion, dict[str, float | None]]()

    def measured(config: Config) -> list[str]:
        used = {name for stage in config.stages.values() for name in stage.used_signals}
        return [name for name in signals if name in named or name in used]

    def ask_ahead(completions: Sequence[tuple[Prompt, Rollout]], config: Config) -> None:
        base.ask_ahead(completions, config)
        found.clear()
        groups = [RolloutGroup(prompt, (rollout,)) for prompt, rollout in completions]
        names = measured(config)
        values = score_all(groups, dict.fromkeys(names, 1.0), config, signals) if groups else {}
        for place, (prompt, rollout) in enumerate(completions):
            found[_key(prompt, rollout)] = {name: values[name][place][0] for name in names}

    def measurer(splits: Sequence[Split], config: Config) -> Measure:
        own = base.measurer(splits, config)

        def measure(prompt: Prompt, rollout: Rollout) -> dict[str, Any]:
            if _key(prompt, rollout) not in found:
                ask_ahead([(prompt, rollout)], config)
            values, added = own(prompt, rollout), found[_key(prompt, rollout)]
            if shared := sorted(values.keys() & added.keys()):
                raise UsageError(
                    f"reward {shared[0]!r} has the name of something that task {task.name} measures",
                    hint='rename it: @smolsum.reward(name="…")',
                )
            return {**values, **added}

        return measure

    def summarise(rows: Sequence[MetricRow]) -> Summary:
        return base.summarise(rows) | {name: mean(rows, name) for name in signals if any(name in row for row in rows)}

    metrics = tuple(Metric(name, name, ".3f", better=one.options.better) for name, one in signals.items())
    evaluation = replace(
        base,
        code=lambda config: {f"plugin {name}": signals[name].sha256 for name in measured(config)},
        ask_ahead=ask_ahead,
        measurer=measurer,
        summarise=summarise,
        headlines=(*base.headlines, *metrics),
        tables=(*base.tables, MetricTable("rewards of plugins", metrics)),
    )
    lengths = [reward.name for reward in rewards if reward.options.uses_length]
    meanings = {reward.name: (reward.options.range, reward.meaning) for reward in rewards}
    return replace(
        task,
        rewards=replace(
            task.rewards,
            signals={**task.rewards.signals, **signals},
            meanings={**task.rewards.meanings, **meanings},
            length_signals=(*task.rewards.length_signals, *lengths),
        ),
        evaluation=evaluation,
    )


def check_columns(task: Task, splits: Mapping[str, Split], config: Config) -> None:
    """Raise UsageError where a reward that a stage uses asks for a column that a split does not have."""
    used = dict.fromkeys(name for stage in config.stages.values() for name in stage.used_signals)
    for name, split in splits.items():
        columns = dict.fromkeys(column for example in split.examples for column in example.metadata)
        columns |= {config.data.completion_column: None}
        columns |= {TARGET: None} if task.targets.of(config) else {}
        for signal in (task.rewards.signals.get(one) for one in used):
            if isinstance(signal, CustomReward):
                signal.check_columns(name, columns)


def _key(prompt: Prompt, rollout: Rollout) -> Completion:
    return prompt.id, rollout.token_ids, rollout.text
