"""What the charts show: the metrics of each one, with the letters, levels and scale.

What a task rewards and measures is read from the run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase, digits

from smolsum.config.targets import TOKENS
from smolsum.runs.reader import Run
from smolsum.watch.pane_text import number

RUNS = "ABCDEFGHIJ"
"""Letters of compared runs."""
VALIDATION = "validation"
"""Title of the chart of validations."""
METRIC = "metric:"
"""Beginning of the name of a pane that is the chart of a metric."""
MAX_HEADLINES = 3
"""Headline metrics in the chart of validations, besides the reward."""


@dataclass(frozen=True)
class Curve:
    """A metric in a chart; its letter marks the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class Chart:
    """A title, the curves that a run has, a band between two metrics, and named levels."""

    title: str
    curves: Callable[[Run], list[Curve]]
    band: tuple[str, str] | None = None
    levels: Callable[[Run], dict[str, float]] = lambda run: {}
    log: bool = False
    least: float | None = None
    """the scale begins here or below; a log scale begins here or above"""
    by_reward: bool = False
    """whether the values depend on what is rewarded, so that each reward has its own scale"""


def _fixed(*curves: tuple[str, str, str]) -> Callable[[Run], list[Curve]]:
    return lambda run: [Curve(*curve) for curve in curves if curve[0] in run.series]


def _rewards(run: Run) -> list[Curve]:
    """The total reward (the sum of the signals, each times its weight), the signals by name, and the total of the
    validations."""
    parts = [name.removeprefix("rewards/").removesuffix("/mean") for name in run.named("rewards/", "/mean")]
    found = _fixed(("reward", "R", "total"))(run)
    if len(parts) > 1 or not found:
        found += [
            Curve(f"rewards/{name}/mean", letter, name)
            for name, letter in zip(parts, letters(parts, taken="v"), strict=True)
        ]
    return found + _fixed(("validation/reward", "v", "validation"))(run)


def _validation(run: Run) -> list[Curve]:
    """The reward and the first headlines that are shares or scores: a count would flatten them."""
    reward = _fixed(("validation/reward", "v", "reward"))(run)
    heads = [(f"validation/{metric}", title) for metric, title in run.headlines.items()]
    fitting = [
        (metric, title)
        for metric, title in heads
        if metric in run.series and -1 <= run.series[metric].low <= run.series[metric].high <= 1
    ][:MAX_HEADLINES]
    marks = letters([title for _, title in fitting], taken="v")
    return reward + [Curve(metric, mark, title) for (metric, title), mark in zip(fitting, marks, strict=True)]


def letters(names: Iterable[str], *, taken: str = "") -> list[str]:
    """Return a letter for each name: the first free one of the name, else the first free one of the alphabet."""
    used = set(taken + RUNS[:2].lower())
    found = []
    for name in names:
        free = (c for c in name.lower() + ascii_lowercase + digits if c in ascii_lowercase + digits and c not in used)
        found.append(next(free, "?"))
        used.add(found[-1])
    return found


def _length_levels(run: Run) -> dict[str, float]:
    """The target length with its tolerance, in runs that measure it; other tasks have none."""
    target, tolerance = run.settings.target_tokens, run.settings.tolerance_tokens
    if run.settings.targets or run.settings.unit != TOKENS:
        return {}  # each prompt has its own, or lengths count something else
    if not target or "length/within_tol" not in run.series:
        return {}
    low, high = target - (tolerance or 0), target + (tolerance or 0)
    sides = {f"-{tolerance}": float(low), f"+{tolerance}": float(high)} if tolerance else {}
    return {f"target {target}" + (f", within {low}-{high}" if tolerance else ""): float(target), **sides}


def _clip_level(run: Run) -> dict[str, float]:
    level = run.settings.max_grad_norm
    return {} if level is None else {f"clipped above {number(level)}": level}


CHARTS = (
    Chart("reward", _rewards, by_reward=True),
    Chart(
        "length in tokens",
        _fixed(("completions/mean_length", "m", "mean"), ("length/mean_target", "t", "mean target")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    Chart("loss", _fixed(("loss", "l", "loss"))),
    Chart("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level, least=0.0),
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
    Chart(VALIDATION, _validation, by_reward=True),
    Chart(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "zero-std share")),
        least=0.0,
        by_reward=True,
    ),
    # below a millionth sampler and trainer differ only by rounding
    Chart(
        "KL, mismatch",
        _fixed(("kl", "k", "kl"), ("sampling/mismatch_k3", "m", "sampler mismatch")),
        log=True,
        least=1e-6,
    ),
    Chart(
        "entropy, repeats",
        _fixed(
            ("entropy", "e", "entropy"),
            ("completions/repeated_trigrams", "r", "repeated trigrams"),
            ("sampling/temperature", "t", "temperature"),
        ),
    ),
)
"""In the order of the keys 1 to 9; the first `CARD` are on every first page."""
CARD = 5


def rewarded(weights: Mapping[str, float]) -> str:
    """Return the signals of a stage, with the weights that are not 1."""
    return "+".join(name if weight == 1 else f"{weight:.3g} {name}" for name, weight in weights.items())


def chart_named(name: str) -> Chart:
    """Return one of CHARTS by its pane (`chart0`), or the chart of a single metric."""
    name = name.removeprefix(METRIC)
    place = name.removeprefix("chart")
    if place != name and place.isdecimal() and int(place) < len(CHARTS):
        return CHARTS[int(place)]
    return Chart(name, _fixed((name, "m", name)), by_reward=name.startswith(("reward", "validation/reward")))
