"""Whether the policy of a run stands still: the trainer says it in its lines, and the view as an alert."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, pvariance

from smolsum.runs.reader import Run

STEPS = 100
"""steps of a stage, after its warm-up, before it is judged"""
SMALL_KL = 1e-3
"""nats a token: below it the policy is all but the one that the stage began with"""
MOST_IDLE = 0.5
"""share of groups without a spread of rewards, above which no rate would help"""
STANDARD_ERRORS = 2.0
"""distance between the means of the first and the last third of the steps that may be chance"""
LASTING = ("reward", "completions/mean_length")
"""metrics that do not move in a stage that stands still"""
ADVICE = "the learning rate is probably too low for this model: smolsum train --find-lr measures one"


def standstill(run: Run) -> str:
    """Return a sentence if the policy stands still in the current stage of a run, else an empty text.

    It does where, since the learning rate was highest, the means of reward and length in the first and in the last
    third of the steps differ by no more than chance, and the KL divergence from the stage's start stays below
    `SMALL_KL`; in a stage without a KL term the entropy stands still too. A stage that has learnt all that it can has
    moved away from its start, so it does not stand still.
    """
    rates = _values(run, "learning_rate")
    began = rates.index(max(rates)) if rates else 0
    found = {name: _values(run, name)[began:] for name in (*LASTING, "kl", "entropy")}
    idle = _values(run, "frac_reward_zero_std")[began:]
    since = run.step - run.stage_began.get(run.stage, 0) + 1
    steps = round(since * len(found["reward"]) / max(len(rates), 1))
    if steps < STEPS or (idle and fmean(idle) > MOST_IDLE) or not all(_flat(found[name]) for name in LASTING):
        return ""
    if kl := found["kl"]:
        third = max(len(kl) // 3, 1)  # its highest mean: a policy that moved and came back did not stand still
        most = max(fmean(kl[n : n + third]) for n in range(0, len(kl), third))
        why = f"and KL is at most {most:.1g}" if most < SMALL_KL else ""
    else:
        why = "nor did the entropy" if _flat(found["entropy"]) else ""
    return f"the policy stands still: in {steps} steps neither reward nor length moved, {why}" if why else ""


def _values(run: Run, name: str) -> list[float]:
    """Return a metric's values in the current stage; in a long stage, means of neighbouring steps."""
    began = run.stage_began.get(run.stage, 0)
    return [point.mean for point in run.series[name].points(began - 1)] if name in run.series else []


def _flat(values: Sequence[float]) -> bool:
    """Return whether the means of the first and the last third of the values differ by chance at most."""
    third = len(values) // 3
    if third < 2:
        return False
    first, last = values[:third], values[-third:]
    error = sqrt((pvariance(first) + pvariance(last)) / third)
    return abs(fmean(last) - fmean(first)) <= STANDARD_ERRORS * error
