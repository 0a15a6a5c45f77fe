"""How runs are named in lists and reports: by model, strategy and reward configuration, in the study's words."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from smolsum.config.presets import QUALITY, Table, leaves

LENGTH_ONLY, FINETUNED, INCLUDED = "length-only", "finetuned", "included"
STAGES = {LENGTH_ONLY: ("length",), FINETUNED: ("length", "quality"), INCLUDED: ("included",)}
STRATEGIES = {FINETUNED: "length-penalty fine-tuned", INCLUDED: "length-penalty included"}
PREFIX = {FINETUNED: "quality-", INCLUDED: "length-quality-"}
REWARD_SETS = {
    "rouge": ("rouge",),
    "meteor": ("meteor",),
    "bleu": ("bleu",),
    "meteor-bleu": ("meteor", "bleu"),
    "meteor-rouge": ("meteor", "rouge"),
    "bleu-rouge": ("bleu", "rouge"),
}
"""the study's reward configurations (Table 8), in the order of its Tables 10-13"""
CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
"""the study's judged metrics (Table 3), in its order"""
NAMED = 3
"""signals that a name has room for"""


def model_name(path: str) -> str:
    """Return the last part of a model's path or hub id."""
    return PurePosixPath(path.rstrip("/")).name.rpartition(":")[2] or path


def strategy_of(config: Mapping[str, Any], presets: Mapping[str, Table]) -> str:
    """Return the strategy of a run's stages: length-only, finetuned, included, the one of the task's `presets` with
    these stages, or the names of the stages."""
    stages = [set(stage["rewards"]) for stage in config["stages"].values()]
    if stages == [{"length"}]:
        return LENGTH_ONLY
    if len(stages) == 1 and "length" in stages[0]:
        return INCLUDED
    if len(stages) == 2 and stages[0] == {"length"} and "length" not in stages[1]:
        return FINETUNED
    return preset_strategy(config, presets) or "+".join(config["stages"])


def preset_strategy(config: Mapping[str, Any], presets: Mapping[str, Table]) -> str:
    """Return the strategy of the task's `presets` with a run's stages; of several, such as one with thoughts and one
    without, that whose settings the run has most of, and of equal ones the first. Empty if none has these stages."""
    alike = {name: table for name, table in presets.items() if list(table.get("stages", ())) == list(config["stages"])}
    own = leaves(config)

    def differing(name: str) -> int:
        return sum(own.get(key) != value for key, value in leaves(alike[name]).items())

    return min(alike, key=differing, default="")


def reward_of(config: Mapping[str, Any], presets: Mapping[str, Table]) -> str:
    """Return the reward configuration of a run's last stage that rewards more than the length, such as `meteor-rouge`,
    with the weights that are not those of the strategy in the task's `presets`. If a name has no room for the signals,
    it has their number."""
    stages = config["stages"]
    last = next((name for name in reversed(stages) if _quality(stages[name])), "")
    if not last:
        return LENGTH_ONLY
    rewards = dict(stages[last]["rewards"])
    weights = _weights(preset_strategy(config, presets), presets, last)
    added = added_signals(config, presets)
    quality = tuple(name for name in rewards if name not in added)
    usual = {name: weight for word, weight in weights.items() for name in (quality if word == QUALITY else (word,))}
    label = (label_of(quality) or LENGTH_ONLY) if len(quality) <= NAMED else f"{len(quality)} signals"
    return label + _changed(rewards, usual or dict.fromkeys(rewards, 1.0))


def added_signals(config: Mapping[str, Any], presets: Mapping[str, Table]) -> set[str]:
    """Return what a run's strategy in the task's `presets` rewards next to the signals of --reward, and the length."""
    stages = presets.get(preset_strategy(config, presets), {}).get("stages", {}).values()
    named = [set(stage.get("rewards", ())) for stage in stages]
    return {"length"}.union(*(one - {QUALITY} for one in named if QUALITY in one))


def _quality(stage: Mapping[str, Any]) -> list[str]:
    """The signals of a stage, at its start or end, that are not the length."""
    weights = [*stage["rewards"].items(), *stage.get("rewards_end", {}).items()]
    return [name for name, weight in weights if weight and name != "length"]


def _weights(strategy: str, presets: Mapping[str, Table], stage: str) -> dict[str, float]:
    """The weights of a stage in a strategy, by signal or `quality`; empty where it has none."""
    weights = presets.get(strategy, {}).get("stages", {}).get(stage, {}).get("rewards", {})
    return dict(weights) if isinstance(weights, Mapping) else dict.fromkeys(weights, 1.0)


def _changed(own: Mapping[str, float], usual: Mapping[str, float]) -> str:
    """The weights of a stage that its strategy has otherwise, in brackets; empty without any."""
    changed = {name: own.get(name, 0.0) for name in {**usual, **own} if own.get(name, 0.0) != usual.get(name)}
    if len(changed) > NAMED:
        return " (own weights)"
    return f" ({', '.join(f'{name}={weight:g}' for name, weight in changed.items())})" if changed else ""


def label_of(signals: Sequence[str]) -> str:
    """Return the study's name for quality signals in any order, or else their names joined."""
    known = ((label, set(names)) for label, names in REWARD_SETS.items())
    return next((label for label, names in known if names == set(signals)), "-".join(signals))
