"""A strategy of a task as a layer of settings: its stages, with the signals that --reward names put in their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smolsum import shelf
from smolsum.errors import UsageError
from smolsum.presets import Entry
from smolsum.tasks.task import Task
from smolsum.values import nearest


def layer(strategy: str, reward: str | None, task: Task) -> list[Entry]:
    """Returns a strategy's stages with their signals, without the stages that no signal is left for."""
    if strategy not in task.strategies:
        hint = nearest(strategy, task.strategies)
        raise UsageError(f"flag --strategy: unknown strategy {strategy!r}", hint=hint)
    chosen = task.reward if reward is None else reward
    signals = parse_reward(chosen, task.signals) if chosen else ()
    quality = () if signals == ("length",) else signals
    quality_source = f"default reward {task.reward}" if reward is None else "flag --reward"
    entries, empty, takes_reward = [], set(), False
    for key, value, source in shelf.read(task, "strategies", strategy):
        if not (key.endswith(".rewards") and isinstance(value, Sequence)):
            entries.append(Entry(key, value, source))
            continue
        takes_reward = True
        weights: dict[str, str] = {}
        for word in value:
            weights |= dict.fromkeys(quality, quality_source) if word == "quality" else {word: source}
        entries += [Entry(f"{key}.{signal}", 1.0, origin) for signal, origin in weights.items()]
        if not weights:
            empty.add(key.removesuffix(".rewards"))
    if reward is not None and not takes_reward:
        raise UsageError(
            f"flag --reward: strategy {strategy} of task {task.name} names all of its signals",
            hint=f"--set stages.{next(iter(task.strategies[strategy]['stages']))}.rewards.SIGNAL=WEIGHT",
        )
    return [entry for entry in entries if ".".join(entry.key.split(".")[:2]) not in empty]


def parse_reward(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Returns the signals of a reward such as `meteor-rouge`; UsageError where one is unknown or doubled."""
    signals = tuple(text.split("-"))
    for signal in signals:
        if signal not in known:
            raise UsageError(f"flag --reward: unknown signal {signal!r} in {text!r}", hint=nearest(signal, known))
    if len(set(signals)) < len(signals):
        hint = f"--reward {'-'.join(dict.fromkeys(signals))}, and --set for weights"
        raise UsageError(f"flag --reward: {text!r} names a signal twice", hint=hint)
    return signals
