"""The values of all signals of a step, and one reward from several signals."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, chdir, redirect_stdout

from smolsum.config.sections import Config
from smolsum.errors import PluginError
from smolsum.rewards.background import ends_when_frozen
from smolsum.rewards.signal import Background, Dependent, NotApplicable, Outcomes, RewardLog, Signal, Values, at_the_end
from smolsum.types import RolloutGroup


def score_all(
    groups: Sequence[RolloutGroup], weights: Mapping[str, float], config: Config, signals: Mapping[str, Signal]
) -> dict[str, Values]:
    """Return PxG values of each signal in `weights` and of those they need, by name, looked up in the task's `signals`;
    a signal of weight 0 is computed too, to be logged. Those of users are computed at the same time; what they print
    goes to stderr, as stdout is for results."""
    return {name: _plain(values) for name, values in _outcomes(groups, weights, config, signals).items()}


def score_and_combine(
    groups: Sequence[RolloutGroup],
    weights: Mapping[str, float],
    config: Config,
    signals: Mapping[str, Signal],
    log: RewardLog | None = None,
) -> tuple[dict[str, Values], Values]:
    """Return the values of `score_all`, and the PxG totals of `combine`: a user's reward that does not apply to a
    completion is left out of its total. What users' rewards log goes to `log`."""
    found = _outcomes(groups, weights, config, signals, log)
    totals = combine(groups, found, weights)
    return {name: _plain(values) for name, values in found.items()}, totals


def _outcomes(
    groups: Sequence[RolloutGroup],
    weights: Mapping[str, float],
    config: Config,
    signals: Mapping[str, Signal],
    log: RewardLog | None = None,
) -> dict[str, Outcomes]:
    log = log or RewardLog([len(group.rollouts) for group in groups], at_the_end(config))
    found: dict[str, Outcomes] = {}
    waits: dict[str, Callable[[], Outcomes]] = {}

    def compute(name: str) -> Outcomes:
        if name not in found:
            signal = signals[name]
            if isinstance(signal, Background):
                found[name] = waits[name]()
            elif isinstance(signal, Dependent):
                scores = signal.score(groups, config, {need: _plain(compute(need)) for need in signal.needs})
                found[name] = [[*row] for row in scores]
            else:
                found[name] = [[*row] for row in signal(groups, config)]
        return found[name]

    own = [(name, signal) for name in with_needs(weights, signals) if isinstance(signal := signals[name], Background)]
    # users' code prints and changes folders, and both belong to the whole process
    with ExitStack() as users:
        if own:
            users.enter_context(redirect_stdout(sys.stderr))
            users.enter_context(chdir("."))
            users.enter_context(ends_when_frozen([name for name, _ in own], config.rewards.timeout_s))
        for name, signal in own:
            waits[name] = users.enter_context(signal.begin(groups, config, log))
        for name in weights:
            compute(name)
    return found


def with_needs(names: Iterable[str], signals: Mapping[str, Signal]) -> list[str]:
    """Return the names, and those of all signals that they depend on."""
    found: dict[str, None] = {}
    waiting = list(names)[::-1]
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = None
            waiting += signal.needs if isinstance(signal := signals[name], Dependent) else ()
    return list(found)


def _plain(outcomes: Outcomes) -> Values:
    """Return the values with None for what does not apply."""
    return [[None if isinstance(value, NotApplicable) else value for value in row] for row in outcomes]


def combine(
    groups: Sequence[RolloutGroup],
    scores: Mapping[str, Sequence[Sequence[float | NotApplicable | None]]],
    weights: Mapping[str, float],
) -> list[list[float | None]]:
    """Return PxG totals, the sum over signals of weight x value; None where a signal of non-zero weight is None, and
    where none of them applies.

    A rollout whose total is None has no part in the advantages and gets the advantage 0; it still counts in the loss's
    denominators, and in the KL term if its group is trained on. Raises ValueError for a signal that is not PxG, and
    PluginError for a total that is too large for a float.
    """
    for name in weights:
        if [len(row) for row in scores[name]] != [len(group.rollouts) for group in groups]:
            raise ValueError(f"signal {name!r} does not score each rollout of each group once")
    return [
        [_total({name: (weight, scores[name][p][g]) for name, weight in weights.items()}) for g, _ in enumerate(rows)]
        for p, rows in enumerate(group.rollouts for group in groups)
    ]


def _total(terms: Mapping[str, tuple[float, float | NotApplicable | None]]) -> float | None:
    """Return the weighted sum, exactly rounded, so that the order of the signals in a config is no matter."""
    weighted = {name: term for name, term in terms.items() if term[0] != 0}
    products: dict[str, float] = {}
    for name, (weight, value) in weighted.items():
        if value is None:
            return None
        if not isinstance(value, NotApplicable):
            products[name] = weight * value
    if weighted and not products:
        return None
    try:
        total = math.fsum(products.values())
    except (OverflowError, ValueError):  # beyond the largest float, or infinity minus infinity
        total = math.inf
    if not math.isfinite(total):
        shown = " + ".join(f"{product:g} ({name})" for name, product in products.items())
        raise PluginError(f"the reward {shown} is too large for a float", hint="lower the weights, or the values")
    return total
