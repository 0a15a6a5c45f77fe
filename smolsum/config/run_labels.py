"""How runs are named in lists and reports: by model, strategy and reward configuration, in the study's words."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

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


def strategy_of(config: Mapping[str, Any]) -> str:
    """Return the strategy of a run's stages: length-only, finetuned, included, or the names of its stages."""
    stages = [set(stage["rewards"]) for stage in config["stages"].values()]
    if all(signals == {"length"} for signals in stages):
        return LENGTH_ONLY
    if len(stages) == 1 and "length" in stages[0]:
        return INCLUDED
    if len(stages) == 2 and stages[0] == {"length"} and "length" not in stages[1]:
        return FINETUNED
    return "+".join(config["stages"])


def reward_of(config: Mapping[str, Any]) -> str:
    """Return the reward configuration of a run's last stage, such as `meteor-rouge`, with weights other than 1. If a
    name has no room for the signals, it has their number."""
    rewards = dict(list(config["stages"].values())[-1]["rewards"])
    quality = {name: weight for name, weight in rewards.items() if name != "length"}
    if not quality:
        return LENGTH_ONLY
    if len(quality) > NAMED:
        return f"{len(quality)} signals"
    known = label_of(tuple(quality))
    unusual = [f"{name}={weight:g}" for name, weight in rewards.items() if weight != 1.0]
    return f"{known} ({', '.join(unusual)})" if unusual else known


def label_of(signals: Sequence[str]) -> str:
    """Return the study's name for quality signals in any order, or else their names joined."""
    known = ((label, set(names)) for label, names in REWARD_SETS.items())
    return next((label for label, names in known if names == set(signals)), "-".join(signals))
