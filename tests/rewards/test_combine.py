"""The weighted sum of signals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.processes import python
from support.refusals import refuses

from smolsum.config.sections import Config
from smolsum.errors import PluginError
from smolsum.rewards import REWARDS
from smolsum.rewards.combine import combine, score_all
from smolsum.rewards.custom import make_reward
from smolsum.rewards.signal import Dependent, NotApplicable, Values
from smolsum.types import RolloutGroup

Group = Callable[..., RolloutGroup]
CHAT = ({"role": "user", "content": "Shorter?"},)
SKIP = NotApplicable.VALUE


@pytest.mark.parametrize(
    ("scores", "weights", "totals"),
    [
        # worked by hand: 1 * -0.5 + 2 * 0.25 = 0, 1 * -1 + 2 * 0.75 = 0.5
        ({"length": [-0.5, -1.0], "rouge": [0.25, 0.75]}, {"length": 1.0, "rouge": 2.0}, [0.0, 0.5]),
        # a signal that could not be computed is never counted as 0, but it removes nothing where its weight is 0
        ({"length": [-0.5, -1.0], "rouge": [None, 0.75]}, {"length": 1.0, "rouge": 1.0}, [None, -0.25]),
        ({"length": [-0.5], "rouge": [None]}, {"length": 1.0, "rouge": 0.0}, [-0.5]),
        # what does not apply is left out, as in TRL; where nothing applies there is no total
        ({"code": [SKIP, 0.5, SKIP, SKIP], "maths": [0.25, 0.5, SKIP, None], "length": [9.0] * 4},
         {"code": 1.0, "maths": 2.0, "length": 0.0}, [0.5, 1.5, None, None]),
    ],
)  # fmt: skip
def test_totals_are_weighted_sums(
    scores: dict[str, list[Any]], weights: dict[str, float], totals: list[float | None], group: Group
) -> None:
    found = combine([group(["a"] * len(totals))], {name: [row] for name, row in scores.items()}, weights)
    assert found == [totals]


@pytest.mark.parametrize("values", [(1e308, 1e308), (1e300, -1e300)])
def test_a_total_beyond_the_largest_float_is_an_error(values: tuple[float, float], group: Group) -> None:
    """Also infinity minus infinity, which fsum refuses in another way."""
    scores = {name: [[value]] for name, value in zip("ab", values, strict=True)}
    with refuses("too large", error=PluginError):
        combine([group(["x"])], scores, {"a": 1e10, "b": 1e10})


def test_the_order_of_the_weights_does_not_matter(group: Group) -> None:
    """0.1 + 0.2 + 0.3 depends on the order in plain addition; a resumed run must not."""
    scores = {"a": [[0.1]], "b": [[0.2]], "c": [[0.3]]}
    groups = [group(["x"])]
    forwards = combine(groups, scores, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert forwards == combine(groups, scores, {"c": 1.0, "b": 1.0, "a": 1.0}) == [[0.6]]


def test_a_signal_of_another_shape_is_refused(group: Group) -> None:
    """A signal that skips a rollout would give its neighbours the wrong reward."""
    with pytest.raises(ValueError, match="'length'"):
        combine([group(["a", "b"])], {"length": [[0.0]]}, {"length": 1.0})


def test_score_all_runs_the_signals_of_the_stage(group: Group) -> None:
    """One PxG table for each weighted signal and no other."""
    scores = score_all([group(["the cat sat on the mat", ""])], {"rouge": 1.0, "bleu": 0.0}, Config(), REWARDS)
    assert scores == {"rouge": [[1.0, 0.0]], "bleu": [[1.0, 0.0]]}


def test_a_dependent_signal_gets_what_it_needs(group: Group) -> None:
    """Another signal's values of the same step, computed once and logged even without a weight of their own."""
    asked: list[str] = []

    def right(groups: Sequence[RolloutGroup], config: Config) -> Values:
        asked.append("right")
        return [[float(rollout.text == "yes") for rollout in g.rollouts] for g in groups]

    def bonus(groups: Sequence[RolloutGroup], config: Config, values: Mapping[str, Values]) -> Values:
        return [[0.2 * value if value is not None else None for value in row] for row in values["right"]]

    signals = {"right": right, "bonus": Dependent(("right",), bonus)}
    groups = [group(["yes", "no"])]
    assert score_all(groups, {"bonus": 1.0}, Config(), signals) == {"right": [[1.0, 0.0]], "bonus": [[0.2, 0.0]]}
    assert asked == ["right"]
    scores = score_all(groups, {"right": 1.0, "bonus": 1.0}, Config(), signals)
    assert combine(groups, scores, {"right": 1.0, "bonus": 1.0}) == [[1.2, 0.0]]


def brevity(completions: list[str]) -> list[float]:
    return [1.0 / len(text) for text in completions]


def test_a_dependent_signal_may_need_a_user_s_reward(group: Group) -> None:
    """It is computed though no weight names it, also where another signal stands between."""

    def twice(groups: Sequence[RolloutGroup], config: Config, values: Mapping[str, Values]) -> Values:
        (needed,) = values.values()
        return [[2.0 * value if value is not None else None for value in row] for row in needed]

    signals = {
        "brevity": make_reward(brevity, file=__file__, sha256=""),
        "bonus": Dependent(("brevity",), twice),
        "more": Dependent(("bonus",), twice),
    }
    expected = {"more": [[2.0, 4.0]], "bonus": [[1.0, 2.0]], "brevity": [[0.5, 1.0]]}
    groups = [replace(one, prompt=replace(one.prompt, messages=CHAT)) for one in [group(["ab", "c"])]]
    assert score_all(groups, {"more": 1.0}, Config(), signals) == expected


def test_importing_the_room_loads_no_metric_library() -> None:
    """`smolsum --help` must not pay for nltk, sacrebleu or rouge_score."""
    libraries = "'nltk', 'sacrebleu', 'rouge_score', 'numpy', 'mlx'"
    code = f"import sys, smolsum.rewards.combine; print(*{{{libraries}}} & set(sys.modules))"
    assert python("-c", code) == (0, "\n", "")
