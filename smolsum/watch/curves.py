"""What the charts show: the metrics of each one, with the letters, levels and scale; and the legend with their values.

What a task rewards and measures is read from the run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits

from rich.style import Style
from rich.text import Text

from smolsum.config.targets import TOKENS
from smolsum.runs.reader import Run
from smolsum.watch.formats import CURVES, DIM, number
from smolsum.watch.model import Snapshot

RUNS = "ABCDEFGHIJ"
"""Letters of compared runs."""
VALIDATION = "validation"
"""Title of the chart of validations."""
MAX_HEADLINES = 3
"""Headline metrics in the chart of validations, besides the reward."""
MIN_ROWS, MAX_LEGEND_ROWS = 5, 3
"""Rows that a legend leaves for the drawing, and that it may have."""


@dataclass(frozen=True)
class Curve:
    """A metric in a chart; its letter marks the end of its line."""

    metric: str
    letter: str
    name: str


@dataclass(frozen=True)
class ChartSpec:
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
    ChartSpec("reward", _rewards, by_reward=True),
    ChartSpec(
        "length in tokens",
        _fixed(("completions/mean_length", "m", "mean"), ("length/mean_target", "t", "mean target")),
        band=("completions/min_length", "completions/max_length"),
        levels=_length_levels,
    ),
    ChartSpec("loss", _fixed(("loss", "l", "loss"))),
    ChartSpec("grad norm", _fixed(("grad_norm", "g", "norm")), levels=_clip_level, least=0.0),
    ChartSpec(
        "clip fraction",
        _fixed(
            ("clip_ratio/low_mean", "-", "low"),
            ("clip_ratio/high_mean", "+", "high"),
            ("clip_ratio/region_mean", "c", "all"),
            ("cispo_clip_ratio", "c", "cispo"),
        ),
        least=0.0,
    ),
    ChartSpec(VALIDATION, _validation, by_reward=True),
    ChartSpec(
        "spread in groups",
        _fixed(("reward_std", "s", "std"), ("frac_reward_zero_std", "z", "zero-std share")),
        least=0.0,
        by_reward=True,
    ),
    # below a millionth sampler and trainer differ only by rounding
    ChartSpec(
        "KL, mismatch",
        _fixed(("kl", "k", "kl"), ("sampling/mismatch_k3", "m", "sampler mismatch")),
        log=True,
        least=1e-6,
    ),
    ChartSpec(
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


def chart_of(name: str) -> ChartSpec:
    """Return the chart of a single metric."""
    return ChartSpec(name, _fixed((name, "m", name)), by_reward=name.startswith(("reward", "validation/reward")))


def shown_curves(snapshot: Snapshot, spec: ChartSpec) -> list[Curve]:
    """Return the curves of the first run: all that are not hidden, or the first next to other runs."""
    curves, hidden = spec.curves(snapshot.run), _hidden_curves(snapshot, spec)
    return curves[:1] if snapshot.others else [curve for curve in curves if curve not in hidden]


def _hidden_curves(snapshot: Snapshot, spec: ChartSpec) -> list[Curve]:
    """The curves that the user has hidden. The first run next to others has none, and one is always left."""
    curves = spec.curves(snapshot.run)
    hidden = [curve for curve in curves if curve.metric in snapshot.options.hidden]
    return hidden if len(hidden) < len(curves) and not snapshot.others else []


def letter_of(snapshot: Snapshot, curve: Curve) -> str:
    """Return the letter at the end of a curve of the first run; next to other runs, that of the run."""
    return RUNS[0] if snapshot.others else curve.letter


def legend(
    snapshot: Snapshot, spec: ChartSpec, more: Sequence[str], *, room: int, width: int, height: int
) -> tuple[Text, list[Text]]:
    """Return the note in the frame, of at most `room` characters; where that is too short, lines below the drawing.

    With enough lines every curve has its name; otherwise only its letter and value. `more` is named at the end. An
    entry has its metric as `curve` in its `meta`, unless it is that of the only curve.
    """
    shown, hidden = shown_curves(snapshot, spec), _hidden_curves(snapshot, spec)
    cursor = snapshot.options.view.cursor
    before = [] if cursor is None else [Text(f"at step {cursor:.0f}:")]
    behind = [*_others(snapshot, spec), *(Text(part) for part in (*[*spec.levels(snapshot.run)][:1], *more))]

    def entries(*, named: bool) -> list[Text]:
        found = []
        for place, curve in enumerate((*shown, *hidden)):
            several, look = len(shown) > 1 or bool(hidden), "" if curve in hidden else CURVES[place % len(CURVES)]
            entry = Text("", Style() if [curve] == shown else Style.from_meta({"curve": curve.metric}))
            entry.append(f"{letter_of(snapshot, curve)} " if several or snapshot.others else "", f"bold {look}".strip())
            entry.append(f"{curve.name} " if named and several else "")
            found.append(entry.append("off" if curve in hidden else _value(snapshot, spec, curve)))
        return found

    parts = [*before, *entries(named=True), *behind]
    if _length(parts) <= room:
        return Text("  ").join(parts), []
    lines: list[list[Text]] = []
    for part in parts:
        if lines and _length([*lines[-1], part]) < width:
            lines[-1].append(part)
        else:
            lines.append([part])
    if len(lines) <= min(height - MIN_ROWS, MAX_LEGEND_ROWS):
        return Text(), [Text(" ", style=DIM).append_text(Text("  ").join(line)) for line in lines]
    parts = [*before, *entries(named=False), *behind]
    while len(parts) > 1 and _length(parts) > room:
        parts.pop()
    return Text("  ").join(parts), []


def _length(parts: Sequence[Text]) -> int:
    return sum(map(len, parts)) + 2 * (len(parts) - 1)


def _value(snapshot: Snapshot, spec: ChartSpec, curve: Curve) -> str:
    """The value at the cursor, or the newest one, with the band around it; of an earlier stage, the step of the last
    value."""
    run, cursor = snapshot.run, snapshot.options.view.cursor
    last = run.series[curve.metric].last_step or 0
    if cursor is None and last < run.stage_began.get(run.stage, 0):
        return f"until {last}"
    value = _at(run, curve.metric, cursor)
    if spec.band and set(spec.band) <= set(run.series):
        low, high = (_at(run, name, cursor) for name in spec.band)
        return f"{value} (min {low}, max {high})"
    return value


def _at(run: Run, metric: str, cursor: float | None) -> str:
    """The newest value, or that of the cursor's step; a value of an earlier step has its step."""
    if metric not in run.series:
        return "-"
    if cursor is None:
        return number(run.last(metric))
    found = run.series[metric].at(cursor)
    if found is None:
        return "-"
    step, value = found
    return number(value) if step == int(cursor) else f"{number(value)} ({step})"


def _others(snapshot: Snapshot, spec: ChartSpec) -> list[Text]:
    """The letter of each other run, and the value of its first curve."""
    cursor, found = snapshot.options.view.cursor, []
    for place, run in enumerate(snapshot.others, start=1):
        for curve in spec.curves(run)[:1]:
            letter = (RUNS[place], f"bold {CURVES[place % len(CURVES)]}")
            found.append(Text.assemble(letter, f" {_at(run, curve.metric, cursor)}"))
    return found
