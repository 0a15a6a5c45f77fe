"""Which strategy a run trains, and why; its stages, with the signals of --reward in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from smolsum.config.presets import QUALITY, ConfigurableTask, Entry, read_for
from smolsum.errors import UsageError, nearest

SYNONYMS = {"joint": "included", "combined": "included", "staged": "finetuned", "sequential": "finetuned"}
"""What others call a strategy, for the hint where it is unknown."""


@dataclass(frozen=True)
class ChosenStrategy:
    """The strategy of a run, and the reason."""

    name: str
    reason: str


def choose_strategy(flag: str | None, preset: str | None, reward: str | None, task: ConfigurableTask) -> ChosenStrategy:
    """Return the strategy of --strategy, else of --preset, else the task's. For the length alone it is the first that
    begins with a stage for it, where the task's own bounds the length and would have nothing to reward."""
    if flag is not None:
        return ChosenStrategy(flag, "flag --strategy")
    if preset is not None:
        return ChosenStrategy(preset, f"--preset {preset}")
    own, strategies = task.presets.strategy, task.presets.strategies
    rewards = {
        name: [stage.get("rewards", ()) for stage in table.get("stages", {}).values()]
        for name, table in strategies.items()
    }
    if reward == "length" and not any("length" in one for one in rewards.get(own, ())):
        alone = next((name for name, found in rewards.items() if found[:1] == [["length"]]), None)
        if alone is not None:
            return ChosenStrategy(alone, f"--reward length leaves {own}, the default, nothing to reward")
    others = [f"--strategy {name}" for name in strategies if name != own]
    instead = f" (others: {', '.join(others)})" if others else ""
    return ChosenStrategy(own, f"the default of task {task.name}{instead}")


def missing_stage_hint(stage: str, there: Sequence[str], rewards: Iterable[str | None], task: ConfigurableTask) -> str:
    """Return a hint for settings of a stage that is not among those `there`: the nearest of them, or the strategies
    that have it with one of these `rewards`."""
    having: dict[str, list[str]] = {}
    for reward in rewards:
        for name in task.presets.strategies:
            for one in _stages(name, reward, task):
                having[one] = list(dict.fromkeys([*having.get(one, ()), name]))
    match = [stage] if stage in having else get_close_matches(stage, [*there, *having], n=1)
    if not match or match[0] in there:
        return nearest(stage, there)
    strategies, choice = " or ".join(f"--strategy {name}" for name in having[match[0]]), ", ".join(there)
    if match[0] == stage:
        return f"{strategies} has that stage; without it, choose from {choice}"
    return f"did you mean {match[0]}, which {strategies} has? Without it, choose from {choice}"


def _stages(strategy: str, reward: str | None, task: ConfigurableTask) -> list[str]:
    """Return the names of the stages that a strategy has with a reward; none where they do not go together."""
    try:
        layer = strategy_layer(strategy, reward, task)
    except UsageError:
        return []
    return list(dict.fromkeys(entry.key.split(".")[1] for entry in layer if entry.key.startswith("stages.")))


def strategy_layer(strategy: str, reward: str | None, task: ConfigurableTask) -> list[Entry]:
    """Return a strategy's stages with the signals of --reward in them, without stages that have no signal left."""
    if strategy not in task.presets.strategies:
        hint = nearest(SYNONYMS.get(strategy, strategy), task.presets.strategies)
        raise UsageError(f"flag --strategy: unknown strategy {strategy!r}", hint=hint)
    chosen = task.presets.reward if reward is None else reward
    signals = parse_reward(chosen, task.rewards.signals) if chosen else ()
    quality = () if signals == ("length",) else signals
    quality_source = f"default reward {task.presets.reward}" if reward is None else "flag --reward"
    stands_for = QUALITY not in task.rewards.signals  # a task may have a signal of that name
    found, empty, takes_reward, expanded = [], set(), False, ""
    for key, value, source in read_for(task, "strategies", strategy):
        if expanded and key.startswith(expanded):  # a weight of a table that has been expanded
            continue
        names_quality = isinstance(value, Mapping) and QUALITY in value and stands_for
        if not key.endswith(".rewards") or not (names_quality or isinstance(value, list)):
            found.append(Entry(key, value, source))
            continue
        takes_reward, expanded = True, f"{key}."
        weights: dict[str, tuple[float, str]] = {}
        given = value if isinstance(value, Mapping) else dict.fromkeys(value, 1.0)
        for word, weight in given.items():
            if word == QUALITY and stands_for:
                others = [signal for signal in quality if signal not in given]
                weights |= dict.fromkeys(others, (weight, quality_source))
            else:
                weights[word] = (weight, source)
        found += [Entry(f"{key}.{signal}", weight, origin) for signal, (weight, origin) in weights.items()]
        if not weights:
            empty.add(key.removesuffix(".rewards"))
    if reward is not None and not takes_reward:
        raise UsageError(
            f"flag --reward: strategy {strategy} of task {task.name} names all of its signals",
            hint=f"--set stages.{next(iter(task.presets.strategies[strategy]['stages']))}.rewards.SIGNAL=WEIGHT",
        )
    left = [entry for entry in found if ".".join(entry.key.split(".")[:2]) not in empty]
    if empty and not any(entry.key.startswith("stages.") and entry.key.count(".") == 1 for entry in left):
        raise UsageError(
            f"flag --reward: strategy {strategy} has nothing to reward without a quality signal",
            hint=f"--reward {task.presets.reward or next(iter(task.rewards.signals))}, or another --strategy",
        )
    return left


def parse_reward(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the signals of a reward such as `meteor-rouge`. Raises UsageError where one is unknown or named twice."""
    signals = tuple(text.split("-"))
    for signal in signals:
        if signal not in known:
            study = text.replace("rouge-l", "rouge")  # the name in the study, where a hyphen joins nothing
            hint = f"--reward {study}" if study != text else nearest(signal, known)
            where = f" in {text!r}" if len(signals) > 1 else ""
            raise UsageError(f"flag --reward: unknown signal {signal!r}{where}", hint=hint)
    if len(set(signals)) < len(signals):
        hint = f"--reward {'-'.join(dict.fromkeys(signals))}, and --set for weights"
        raise UsageError(f"flag --reward: {text!r} names a signal twice", hint=hint)
    return signals
