"""What changes within a stage: temperature and weights, as pure functions of the step."""

from dataclasses import replace

import pytest
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.config.sections import StageConfig
from smolsum.config.stage_schedule import described, progress, schedule_metrics, stage_at
from smolsum.tasks import TASKS

STAGE = StageConfig(
    rewards={"length": 1.0, "meteor": 0.5}, steps=0, epochs=1.0, temperature=1.2, learning_rate=1e-4,
    schedule="constant", warmup_steps=0, beta=0.0,
)  # fmt: skip


@pytest.mark.parametrize(("course", "middle", "quarter"), [("linear", 0.5, 0.25), ("cosine", 0.5, 0.1464466)])
def test_courses(course: str, middle: float, quarter: float) -> None:
    """From exactly 0 at the first step to exactly 1 at the last, where refilled groups of later steps stay too."""
    found = [progress(course, k, 5) for k in range(7)]  # type: ignore[arg-type]
    assert found[0] == 0.0
    assert found[4:] == [1.0, 1.0, 1.0]
    assert found[2] == pytest.approx(middle)
    assert found[1] == pytest.approx(quarter)
    assert progress(course, 0, 1) == 0.0  # type: ignore[arg-type]


def test_a_stage_without_schedule_stays() -> None:
    """The same record at every step, and nothing to log."""
    assert all(stage_at(STAGE, k, 9) is STAGE for k in range(9))
    assert schedule_metrics(STAGE, STAGE) == {}
    assert described(STAGE) == ""


def test_temperature_and_weights_of_a_step() -> None:
    """A signal that the end leaves out keeps its weight; one that only the end has starts at 0."""
    stage = replace(STAGE, temperature_end=0.6, rewards_end={"length": 0.1, "rouge": 2.0}, rewards_schedule="cosine")
    first, middle, last = (stage_at(stage, k, 11) for k in (0, 5, 10))
    assert first.temperature == 1.2
    assert last.temperature == 0.6
    assert middle.temperature == pytest.approx(0.9)
    assert first.rewards == {"length": 1.0, "meteor": 0.5, "rouge": 0.0}
    assert last.rewards == {"length": 0.1, "meteor": 0.5, "rouge": 2.0}
    assert middle.rewards == pytest.approx({"length": 0.55, "meteor": 0.5, "rouge": 1.0})
    assert schedule_metrics(stage, last) == {
        "sampling/temperature": 0.6,
        "rewards/length/weight": 0.1,
        "rewards/meteor/weight": 0.5,
        "rewards/rouge/weight": 2.0,
    }
    assert stage.trained_rewards == {"length": 1.0, "meteor": 0.5, "rouge": 2.0}
    assert described(stage) == (
        "temperature 1.2 to 0.6 (linear); weights length 1, meteor 0.5 to length 0.1, meteor 0.5, rouge 2 (cosine)"
    )


def test_signals_of_the_end_decide_about_truncated_completions() -> None:
    """A stage that ends with a reward of length learns from completions that were cut."""
    sets = ["stages.included.rewards={meteor=1.0}", "stages.included.rewards_end={length=1.0}"]
    flags = {"grpo.mask_truncated": "auto"}
    moved = resolve(TASKS, strategy="included", sets=sets, flags=flags).config.stages["included"]
    assert moved.mask_truncated is False
    assert moved.rewards_end == {"length": 1.0}
    same = resolve(TASKS, strategy="included", sets=sets[:1], flags=flags).config.stages["included"]
    assert same.mask_truncated is True


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("temperature_schedule=cosine", "temperature_end is not", "temperature_end=0.7"),
        ("temperature_end=1.0", "what the stage begins with", "another value"),
        ("temperature_end=-1", "0 or more", "default"),
        ("temperature_schedule=step", "linear, cosine", "default"),
        ("rewards_schedule=cosine", "rewards_end is not", "rewards_end="),
        ("rewards_end={length=1.0}", "what the stage begins with", "another value"),
        ("rewards_end={length=0, meteor=0}", "no reward", "rewards_end.length=1.0"),
        ("rewards_end.lenght=1.0", "'lenght'", "length"),
    ],
)
def test_settings_that_mean_nothing_are_refused(text: str, named: str, hint: str) -> None:
    """With the setting, and what to do."""
    with refuses("stages.included", named) as refused:
        resolve(TASKS, strategy="included", sets=[f"stages.included.{text}"])
    assert hint in str(refused.value.hint)
