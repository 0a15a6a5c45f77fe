"""Constraints as text: what each form means, and one error for each way to get it wrong."""

import math

import pytest
from support.refusals import refuses

from smolsum.config.constraints import Constraint, parse_constraints
from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("length in 59..69: 0.99", Constraint("length in 59..69", "length", 59.0, 69.0, 0.99)),
        ("length in 59 .. 69 :.99", Constraint("length in 59 .. 69", "length", 59.0, 69.0, 0.99)),
        ("overlong >= -0.5: 1", Constraint("overlong >= -0.5", "overlong", low=-0.5, level=1.0)),
        ("repeated_trigrams <= 1e-2", Constraint("repeated_trigrams <= 1e-2", "repeated_trigrams", high=0.01)),
        ("length within 1: 0.85", Constraint("length within 1", "length", high=1.0, level=0.85, from_target=True)),
        ("length within tolerance: 0.9", Constraint("length within tolerance", "length", high=1.0, level=0.9,
                                                    from_target=True, by_tolerance=True)),
        ("meteor >= start", Constraint("meteor >= start", "meteor", low=1.0, of_start=True)),
        ("copied <= 1.1 start", Constraint("copied <= 1.1 start", "copied", high=1.1, of_start=True)),
    ],
)  # fmt: skip
def test_forms(text: str, expected: Constraint) -> None:
    """A range with two ends, one end, or around the target, with a share or without."""
    assert parse_constraints(text) == (expected,)


def test_several_are_separated_and_a_mean_in_a_range_is_two() -> None:
    """Each end of the range of a mean has a multiplier of its own."""
    found = parse_constraints(" length in 60..68 ; meteor >= 0.3; ")
    assert [one.text for one in found] == ["length >= 60", "length <= 68", "meteor >= 0.3"]
    assert [(one.low, one.high) for one in found] == [(60.0, math.inf), (-math.inf, 68.0), (0.3, math.inf)]
    assert parse_constraints("") == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text, text) for text in ("length", "length in 59-69: 0.99", "length in 59..: 0.99", "length > 59: 0.9")),
        ("length in 59..69: most", "length in 59..69: most"),
        ("length in 69..59: 0.99", "69 is above 59"),
        ("length in 59..69: 99", "the share 99"),
        ("length in 59..69: 0", "the share 0"),
        ("length within 5", "needs a share"),
        ("meteor >= start: 0.9", "takes no share"),
        ("meteor >= 0 start", "0 is not above 0"),
        ("meteor >= -0.9 start", "-0.9 is not above 0"),
        ("meteor in start..1", "not of a known form"),
        ("meteor >= 0.9start", "not of a known form"),
        ("length in 59..69: 0.99; length in 59..69: 0.5", "the same range twice"),
        ("length within -3: 0.9", "no distance is below 0"),
        ("meteor >= 0.9; meteor <= 0.1", "exclude each other"),
    ],
)
def test_what_is_wrong_is_quoted_with_its_source(text: str, named: str) -> None:
    """The error of a run names the flag or the file, and the hint is a form that works."""
    with refuses("flag", named):
        resolve(TASKS, flags={"grpo.constraints": text})


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [("meteor >= start", 0.3, 0.3), ("meteor >= 0.9 start", 0.3, 0.27), ("copied <= 1.1 start", 0.3, 0.33),
     ("length >= 0.9 start", -0.5, -0.55), ("copied <= 1.1 start", 0.0, 0.0)],
)  # fmt: skip
def test_bounds_relative_to_the_start(text: str, start: float, end: float) -> None:
    """A multiple is the start with some room, also where that is negative; the other end stays open."""
    (one,) = parse_constraints(text)
    found = one.relative_to(start)
    assert found.end == pytest.approx(end)
    assert (math.isinf(found.low), math.isinf(found.high)) == ("<=" in text, ">=" in text)
    assert (found.shortfall(end - 0.1) > 0) is (">=" in text)
    assert found.unit == max(0.01, abs(found.end))


def test_hints_can_be_pasted() -> None:
    """The forms that errors show are themselves constraints."""
    with refuses() as refused:
        parse_constraints("length")
    for form in str(refused.value.hint).replace(", or ", ", ").split(", "):
        assert parse_constraints(form)
    for text in ("meteor >= start: 0.9", "copied <= 0 start"):
        with refuses() as refused:
            parse_constraints(text)
        assert parse_constraints(str(refused.value.hint))


def test_slugs_are_names_of_metrics() -> None:
    """Trackers allow letters, digits, '_', '-' and '.' in names."""
    found = parse_constraints("length in 59..69: 0.9; meteor >= 0.3; bleu <= 0.5: 0.9; length within tolerance: 0.9")
    names = ["length_59-69", "meteor_at_least_0.3", "bleu_at_most_0.5", "length_within_tolerance"]
    assert [one.slug for one in found] == names


def test_stages_inherit_constraints_and_flags_replace_those_of_a_strategy() -> None:
    """A stage takes those of [grpo]; --constraint also replaces a preset's own."""
    text = "length in 20..30: 0.9"
    for strategy in ("constrained", "included"):
        config = resolve(TASKS, strategy=strategy, flags={"grpo.constraints": text}).config
        assert {stage.constraints for stage in config.stages.values()} == {text}
    assert resolve(TASKS, strategy="included").config.stages["included"].constraints == ""
    own = resolve(TASKS, strategy="constrained").config.stages["constrained"]
    assert own.rewards == {"meteor": 1.0}
    assert "length within tolerance: 0.99" in own.constraints


@pytest.mark.parametrize("setting", ["constraint_method=pid", "constraint_weight=3", "constraint_limit=9"])
def test_settings_of_constraints_need_one(setting: str) -> None:
    """They would change nothing; with a constraint they are accepted."""
    for strategy in ("finetuned", "included"):
        with refuses(setting.split("=")[0], "constraint"):
            resolve(TASKS, sets=[f"grpo.{setting}"], strategy=strategy)
    for strategy in ("constrained", None):
        assert resolve(TASKS, sets=[f"grpo.{setting}"], strategy=strategy)


@pytest.mark.parametrize("method", ["sum", "gdpo", "gate"])
def test_settings_of_multipliers_need_some_that_move(method: str) -> None:
    """A limit or a rate would change nothing; a weight only with a gate."""
    for setting in ("constraint_limit=9", "constraint_rate=0.3", "constraint_weight=3"):
        sets = [f"grpo.{setting}", f"grpo.constraint_method={method}"]
        if method != "gate" and "weight" in setting:
            assert resolve(TASKS, sets=sets)
            continue
        with refuses(setting.split("=")[0], repr(method), "constraint_method=lagrange"):
            resolve(TASKS, sets=sets)


def test_what_was_once_the_default_is_not_chosen() -> None:
    """config.toml of a run from before these defaults changed has them, and the run resumes without constraints too."""
    before = ["grpo.constraint_weight=2", "grpo.constraint_rate=0.4"]
    assert resolve(TASKS, sets=before, strategy="included").config.grpo.constraint_weight == 2.0
