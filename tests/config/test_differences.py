"""What tells runs apart."""

from typing import Any

from smolsum.config.differences import differing, group_seeds, rewarded
from smolsum.config.presets import leaves


def config(seed: int, **stages: dict[str, Any]) -> dict[str, Any]:
    return {"run": {"name": f"of {seed}"}, "train": {"seed": seed, "steps": [1, 2]}, "stages": stages}


def test_settings_that_differ() -> None:
    """Each with its value in every run. What only one run has is there, except for a stage that others lack: the stages
    are compared instead, and settings of a stage between the runs that have it."""
    length, quality = {"steps": 10, "rewards": {"length": 1.0}}, {"steps": 5, "rewards": {"meteor": 0.5, "rouge": 1.0}}
    quality["loss"], longer = "grpo", {**quality, "steps": 6, "loss": "dapo"}
    runs = [
        config(1, length=length),
        config(2, length=length, quality=quality),
        config(2, length=length, quality=longer),
    ]
    runs[0]["task"] = {"unit": "words", "even": True}
    assert differing([leaves(run) for run in runs]) == {
        "stages": ["length", "length > quality", "length > quality"],
        "steps": ["10", "10 > 5", "10 > 6"],
        "rewarded for": ["length", "length > 0.5 meteor+rouge", "length > 0.5 meteor+rouge"],
        "train.seed": ["1", "2", "2"],
        "stages.quality.loss": ["-", "grpo", "dapo"],
        "task.unit": ["words", "-", "-"],
        "task.even": ["true", "-", "-"],
    }
    assert differing([leaves(runs[0]), leaves(runs[0])]) == {}
    assert differing([]) == {}


def test_damaged_settings_are_compared_as_they_are() -> None:
    found = differing([{"stages.one.rewards.length": "many"}, {"stages.one.rewards.length": 2}, {"stages": 3}])
    assert found["rewarded for"] == ["length", "2 length", ""]
    assert found["stages"] == ["one", "one", "3"]


def test_weights_of_one_are_not_said() -> None:
    assert rewarded({"length": 1, "meteor": 1.0, "rouge": 0.25, "bleu": 0}) == "length+meteor+0.25 rouge+0 bleu"


def test_seeds_are_grouped() -> None:
    """Runs that differ in name and seed are together; those of a group in which a seed occurs twice, and those without
    settings, are alone."""
    one, other = {"steps": 1, "rewards": {"length": 1.0}}, {"steps": 2, "rewards": {"length": 1.0}}
    items = [("a", config(1, x=one)), ("b", config(1, x=other)), ("c", config(2, x=one)), ("d", config(1, x=other))]
    assert group_seeds([*items, ("e", None), ("f", {})]) == [["a", "c"], ["b"], ["d"], ["e"], ["f"]]
