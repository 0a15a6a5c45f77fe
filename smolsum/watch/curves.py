"""Which metrics stand in which chart, as the run has them: what a task rewards and measures is named by the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from string import ascii_lowercase, digits

from smolsum.watch import typed
from smolsum.watch.block import number
from smolsum.watch.run import Run

RUNS = "AB"
"""the letters of two runs that are compared; no curve has them, whatever their case"""
HEADLINES = 3
"""Headline metrics beside the reward in the chart of validations."""


@dataclass(frozen=True)
class Curve:
    """A metric in a chart: its letter stands at the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class Chart:
    """A title, its curves as the run has them, a band between two metrics, and levels with what they mean."""

    title: str
    curves: Callable[[Run], list[Curve]]
    band: tuple[str, str] | None = None
    levels: Callable[[Run], dict[str, float]] = lambda run: {}
    log: bool = False
    least: float | None = None
    """where the scale begins at the most, and on a log scale at the least"""


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    """The total, each signal by its name, and the total of the validations."""
    parts = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.named("rewards/", "/mean")]
    found = _fixed(("reward", "R", "reward"))(run)
    if len(parts) > 1 or not found:
        found += [
            Curve(f"rewards/{name}/mean", letter, name)
            for name, letter in zip(parts, letters(parts, taken="v"), strict=True)
        ]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _validation(run: Run) -> list[Curve]:
    """The reward, and the first headlines of the run's task that are shares or scores: a count would flatten them."""
    reward = _fixed(("validation/reward", "v", "reward"))(run)
    heads = [(f"validation/{metric}", title) for metric, title in run.headlines.items()]
    fitting = [
        (metric, title)
        for metric, title in heads
        if metric in run.series and -1 <= run.series[metric].low <= run.series[metric].high <= 1
    ][:HEADLINES]
    marks = letters([title for _, title in fitting], taken="v")
    return reward + [Curve(metric, mark, title) for (metric, title), mark in zip(fitting, marks, strict=True)]


def letters(names: Iterable[str], *, taken: str = "") -> list[str]:
    """Returns a letter for each name, one of its own where that is free, else the next in the alphabet."""
    used = set(taken + RUNS.lower())
    found = []
    for name in names:
        free = (c for c in name.lower() + ascii_lowercase + digits if c in ascii_lowercase + digits and c not in used)
        found.append(next(free, "?"))
        used.add(found[-1])
    return found


def _length_levels(run: Run) -> dict[str, float]:
    """The wanted length with its tolerance, in runs that count who keeps to it: other tasks have none."""
    target, tolerance = (typed.whole(run.setting("task", f"{key}_tokens")) for key in ("target", "tolerance"))
    if not target or "length/within_tol" not in run.series:
        return {}
    low, high = target - (tolerance or 0), target + (tolerance or 0)
    sides = {f"-{tolerance}": float(low), f"+{tolerance}": float(high)} if tolerance else {}
    return {f"target {target}" + (f" ({low}-{high})" if tolerance else ""): float(target), **sides}


def _clip_level(run: Run) -> dict[str, float]:
    level = typed.number(run.setting("optimizer", "max_grad_norm"))
    return {} if level is None else {f"clipped above {number(level)}": level}


CHARTS = (
    Chart("reward", _rewards),
    Chart(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "zero-std share")),
        least=0.0,
    ),
    Chart(
        "tokens",
        _fixed(("completions/mean_length", "m", "mean")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    Chart("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level, least=0.0),
    Chart("loss", _fixed(("loss", "l", "loss"))),
    Chart(
        "clip fraction",
        _fixed(
            ("clip_ratio/low_mean", "-", "low"),
            ("clip_ratio/high_mean", "+", "high"),
            ("clip_ratio/region_mean", "c", "all"),
            ("cispo_clip_ratio", "c", "cispo"),
        ),
        least=0.0,
    ),
    # below a millionth sampler and trainer agree but for rounding
    Chart(
        "KL, mismatch",
        _fixed(("kl", "k", "kl"), ("sampling/mismatch_k3", "m", "sampler mismatch")),
        log=True,
        least=1e-6,
    ),
    Chart("validation", _validation),
    Chart(
        "entropy, repeats",
        _fixed(("entropy", "e", "entropy"), ("completions/repeated_trigrams", "r", "repeated trigrams")),
    ),
)
"""In the order of the keys 1 to 9."""
