"""How often intervals and tests keep what they promise, in simulated studies; predicted next to simulated power.

    uv run python benchmarks/evidence.py [--studies 10000] [scores shares single power ...]

A study has two arms of 3 to 10 seeds (`--seeds`), on 20 to 200 examples (`--examples`). A score is the sum of what the
example brings, example x arm, seed, and noise; each study draws anew how large these are. Shares: whether such a sum is
above a threshold, so that 80 to 99 % are. Half of the studies have seeds that do not vary, and in half of the others
those of one arm vary twice as much.

scores, matched, shares  coverage of 95 % intervals of the difference, and tests of no effect with p < 0.05: `examples`
            counts examples only, `bootstrap` draws runs and examples anew, `Satterthwaite` has his exponents,
            `crossed` is what `smolsum stats` prints; last, how often a difference of the margin is called equivalent
clusters    the same for single runs with five questions a document
ratios      the lowest and highest coverage over fixed shares of seeds and noise in the variance
single      coverage of the intervals of one arm's share: exact and Jeffreys'
power       the power that `smolsum stats --plan` predicts, and that of simulated studies of the same variances
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from smolsum.stats.design import Design, PlannedTest, Spread, pilot_spread
from smolsum.stats.power import detectable, power
from smolsum.stats.seeds import by_cluster, crossed_difference, crossed_variance, resample, run_parts
from smolsum.stats.shares import share_difference, share_interval

Array = NDArray[np.float64]
PARTS = ("scores", "matched", "shares", "clusters", "single", "power", "ratios")
BOOTSTRAPS = 10
"""studies of each size that are bootstrapped too, a quarter of a second each"""
PILOTS = 20
SEED_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)
SHARES = (0.8, 0.9, 0.95, 0.98, 0.99)


def sums(rng: np.random.Generator, seeds: int, n: int, scales: Array, ratio: Array) -> tuple[Array, Array, Array]:
    """Both arms (studies x seeds x examples), and the variance of one of b's sums in each study. `scales` (studies x 4)
    are the standard deviations of example, example x arm, seed and noise; `ratio` multiplies that of b's seeds."""
    studies = len(scales)
    example, inner, seed, noise = (scales[:, i, None, None] for i in range(4))
    common = example * rng.normal(size=(studies, 1, n))
    arms = [
        common
        + inner * rng.normal(size=(studies, 1, n))
        + seed * factor * rng.normal(size=(studies, seeds, 1))
        + noise * rng.normal(size=(studies, seeds, n))
        for factor in (1.0, ratio[:, None, None])
    ]
    squares = (scales**2).sum(axis=1) + (ratio**2 - 1) * scales[:, 2] ** 2
    return arms[0], arms[1], squares


def drawn_scales(rng: np.random.Generator, studies: int) -> tuple[Array, Array]:
    """Standard deviations, and how much more the seeds of b vary."""
    scales = np.exp(rng.uniform(np.log(0.1), np.log(1.0), size=(studies, 4)))
    scales[:, 2] *= (np.arange(studies) % 2) * 0.5
    ratio = np.where(np.arange(studies) % 4 == 3, 2.0, 1.0)
    return scales, ratio


def satterthwaite(arms: list[Array], variance: Array) -> Array:
    """His degrees of freedom of a variance, with exponents of 2."""
    share = np.divide(run_parts(arms)[0].sum(axis=-1), variance, out=np.zeros_like(variance), where=variance > 0)
    seeds, n = arms[0].shape[-2:]
    degrees: Array = 1 / (share**2 / (len(arms) * (seeds - 1)) + (1 - share) ** 2 / (n - 1))
    return degrees


def outside(delta: Array, truth: Array | float, error: Array, df: Array | float) -> Array:
    """Which 95 % intervals do not have the true difference in them."""
    return np.abs(delta - truth) > special.stdtrit(df, 0.975) * error + 1e-12


def differences(part: str, seeds: int, n: int, studies: int, rng: np.random.Generator) -> dict[str, list[Array]]:
    """What went wrong in studies of one size, by method: intervals without the truth."""
    scales, ratio = drawn_scales(rng, studies)
    a, b, squares = sums(rng, seeds, n, scales, ratio)
    effect = np.where(np.arange(studies) % 3 == 0, 0.0, 0.3 * rng.normal(size=studies))
    if part == "shares":
        shares = np.array(SHARES)[rng.integers(len(SHARES), size=studies)]
        above = np.where(effect == 0, shares, shares + (1 - shares) * rng.uniform(-1, 0.9, size=studies))
        squares_a = (scales**2).sum(axis=1)
        a = (a + (special.ndtri(shares) * np.sqrt(squares_a))[:, None, None] > 0).astype(float)
        b = (b + (special.ndtri(above) * np.sqrt(squares))[:, None, None] > 0).astype(float)
        effect = above - shares
    else:
        b = b + effect[:, None, None]
    if part == "matched":  # what a pair shares cancels
        pair = rng.normal(size=(studies, seeds, 1))
        a, b = a + pair, b + pair
    matched = part == "matched"
    none = effect == 0
    wrong: dict[str, list[Array]] = {}

    def note(method: str, missed: Array) -> None:
        wrong.setdefault(method, []).append(missed)
        wrong.setdefault(f"{method}, no effect", []).append(missed[none[: len(missed)]])

    d = b.mean(axis=1) - a.mean(axis=1)
    note("examples", outside(d.mean(axis=1), effect, d.std(axis=1, ddof=1) / np.sqrt(n), n - 1.0))
    some = min(BOOTSTRAPS, studies)
    drawn = [resample(x, y, matched=matched, seed=i) for i, (x, y) in enumerate(zip(a[:some], b[:some], strict=True))]
    note("bootstrap", np.array([not e.boot_low <= t <= e.boot_high for e, t in zip(drawn, effect[:some], strict=True)]))
    delta, variance, df = crossed_difference(a, b, matched=matched)
    error = np.sqrt(variance)
    plain = satterthwaite([b - a] if matched else [a, b], variance)
    note("Satterthwaite", outside(delta, effect, error, plain))
    note("crossed", outside(delta, effect, error, df))
    if part == "shares":
        between = [share_difference(x, y) for x, y in zip(a, b, strict=True)]
        note("MOVER", np.array([not e[0] <= t <= e[1] for e, t in zip(between, effect, strict=True) if e]))
    # equivalence where the true difference is the margin
    margin = np.abs(effect[~none])
    t = (margin - np.sign(effect[~none]) * delta[~none]) / np.maximum(error[~none], 1e-12)
    wrong["equivalent"] = [t > special.stdtrit(df[~none], 0.95)]
    if part == "shares":
        ends = [share_difference(x, y, level=0.9) for x, y in zip(a[~none], b[~none], strict=True)]
        within = [e is not None and -m < e[0] and e[1] < m for e, m in zip(ends, margin, strict=True)]
        wrong["equivalent, MOVER"] = [np.array(within)]
    return wrong


def clusters(seeds: int, n: int, studies: int, rng: np.random.Generator) -> dict[str, list[Array]]:
    """Single runs with documents of about five questions each: their errors by examples and by document."""
    wrong: dict[str, list[Array]] = {"examples": [], "clustered": []}
    for _ in range(studies):
        documents = np.sort(rng.integers(n // 5, size=n))
        d = rng.normal(size=n) + rng.uniform(0, 1) * rng.normal(size=n // 5)[documents]
        for method, values in (("examples", d), ("clustered", by_cluster(d[None], documents)[0])):
            error = values.std(ddof=1) / np.sqrt(len(values))
            wrong[method].append(outside(values.mean(), 0.0, error, len(values) - 1.0)[None])
    return wrong


def single(seeds: int, n: int, studies: int, rng: np.random.Generator) -> dict[str, list[Array]]:
    """Intervals of one arm's share that do not have the true share in them."""
    scales, _ = drawn_scales(rng, studies)
    shares = rng.uniform(0.8, 0.99, size=studies)
    x, _, _ = sums(rng, seeds, n, scales, np.ones(studies))
    passed = (x + (special.ndtri(shares) * np.sqrt((scales**2).sum(axis=1)))[:, None, None] > 0).astype(float)
    found = [share_interval(one) for one in passed]
    pairs = [(one, share) for one, share in zip(found, shares, strict=True) if one is not None]
    exact = np.array([not one.exact_low <= share <= one.exact_high for one, share in pairs])
    return {"exact": [exact], "Jeffreys": [np.array([not o.bayes_low <= s <= o.bayes_high for o, s in pairs])]}


def coverage(part: str, given: argparse.Namespace) -> None:
    """Print the coverage of each method, over all sizes and in the size where it is furthest from 95 %."""
    made: dict[str, Callable[..., dict[str, list[Array]]]] = {"clusters": clusters, "single": single}
    cells = [(seeds, n) for seeds in given.seeds for n in given.examples]
    each = max(1, given.studies // len(cells))
    found: dict[str, list[tuple[int, int]]] = {}
    for seeds, n in cells:
        rng = np.random.default_rng([PARTS.index(part), seeds, n])
        wrong = made[part](seeds, n, each, rng) if part in made else differences(part, seeds, n, each, rng)
        for method, missed in wrong.items():
            every = np.concatenate(missed)
            found.setdefault(method, []).append((int(every.sum()), len(every)))
    print(f"\n{part}: {each * len(cells)} studies", "all", "cells", sep="\t")
    for method, counts in found.items():
        missed, of = (sum(column) for column in zip(*counts, strict=True))
        shares = [m / k for m, k in counts]
        if "no effect" in method or "equivalent" in method:
            texts = f"{100 * missed / of:.1f} % significant", f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"
        else:
            texts = (
                f"{100 - 100 * missed / of:.1f} %",
                f"{100 - 100 * max(shares):.1f} to {100 - 100 * min(shares):.1f} %",
            )
        print(method, *texts, sep="\t", flush=True)


def ratios(given: argparse.Namespace) -> None:
    """Print the coverage of Satterthwaite's degrees of freedom and of the crossed test for each number of seeds, in the
    least and most favourable mix of variances: that of seeds is a share of the whole, that of noise one of the rest."""
    print("\nratios", "Satterthwaite", "crossed", sep="\t")
    for seeds, arms in product(given.seeds, (2, 1)):
        covered: list[list[float]] = []
        for n, seed, noise in product((min(given.examples), max(given.examples)), SEED_SHARES, (0.0, 0.5, 1.0)):
            rng = np.random.default_rng([arms, seeds, n, round(100 * seed), round(10 * noise)])
            between, within = seed, (1 - seed) * noise
            examples = (1 - seed) * rng.chisquare(n - 1, given.studies) / (n - 1)
            runs = (between + within) / arms * rng.chisquare(seeds - 1, (given.studies, arms)) / (seeds - 1)
            rest = arms * (seeds - 1) * (n - 1)
            overlap = within * rng.chisquare(rest, given.studies) / rest
            overlaps = np.repeat(overlap[:, None] / arms, arms, axis=-1)
            variance, df = crossed_variance(examples, runs, overlaps, n, [seeds] * arms)
            share = runs.sum(axis=1) / variance
            plain = 1 / (share**2 / (arms * (seeds - 1)) + (1 - share) ** 2 / (n - 1))
            delta, error = rng.normal(size=given.studies), np.sqrt(variance)
            covered.append([100 * float(1 - outside(delta, 0.0, error, k).mean()) for k in (plain, df)])
        ends = zip(np.min(covered, axis=0), np.max(covered, axis=0), strict=True)
        name = f"{seeds} seeds{'' if arms == 2 else ', matched'}"
        print(name, *(f"{low:.1f} to {high:.1f} %" for low, high in ends), sep="\t", flush=True)


def compare_power(given: argparse.Namespace) -> None:
    """Print the predicted and the simulated power of each size, and the largest gap of each kind of scores."""
    print("\npower", "difference", "predicted", "simulated", sep="\t")
    gaps: dict[str, list[float]] = {}
    kinds: dict[str, Callable[..., Case]] = {
        "scores": partial(of_scores, matched=False),
        "matched": partial(of_scores, matched=True),
        "shares": of_threshold,
        "shares, beta": of_chances,
    }
    for seeds, n, kind in product(given.seeds, given.examples, kinds):
        rng = np.random.default_rng([PARTS.index("power"), seeds, n, list(kinds).index(kind)])
        design = Design(seeds, n, matched=kind == "matched")
        effect, spread, made = kinds[kind](rng, design)
        predicted = power(effect, spread, design, PlannedTest())
        found: list[Array] = []
        while sum(map(len, found)) < given.studies:
            delta, variance, df = crossed_difference(*made(500, seeds, n), matched=design.matched)
            found.append(outside(delta, 0.0, np.sqrt(variance), df))
        simulated = float(np.concatenate(found).mean())
        gaps.setdefault(kind, []).append(100 * abs(simulated - predicted))
        of = "" if spread.shares is None else f"{spread.shares[0]:.3f} "
        print(
            f"{seeds} x {n} {kind}", f"{of}{effect:+.3f}", f"{predicted:.1%}", f"{simulated:.1%}", sep="\t", flush=True
        )
    for kind, found_gaps in gaps.items():
        print(f"{kind}: largest gap {max(found_gaps):.1f} points, mean {float(np.mean(found_gaps)):.1f}")


Case = tuple[float, Spread, Callable[[int, int, int], tuple[Array, Array]]]
"""the true difference, the spread, and what makes tables (studies, seeds, examples) of both arms"""


def of_scores(rng: np.random.Generator, design: Design, *, matched: bool) -> Case:
    """Normal scores, and a difference that is found with 30 to 90 %."""
    example, seed, noise = np.exp(rng.uniform(np.log(0.1), 0.0, size=3)) * [1, 0.3, 1]
    scales, spread = np.array([[1.0, example, seed, noise]]), Spread(seed, example * 2**0.5, noise)
    effect = detectable(spread, design, PlannedTest(), wanted=float(rng.choice([0.3, 0.5, 0.8, 0.9])))

    def made(studies: int, seeds: int, n: int) -> tuple[Array, Array]:
        a, b, _ = sums(rng, seeds, n, np.repeat(scales, studies, axis=0), np.ones(studies))
        return a, b + effect

    return effect, spread, made


def of_threshold(rng: np.random.Generator, design: Design) -> Case:
    """Which of such scores are above a threshold, as large pilots show their spread."""
    scales = np.array([[1.0, *np.exp(rng.uniform(np.log(0.1), 0.0, size=3)) * [1, 0.3, 1]]])
    total = float((scales**2).sum()) ** 0.5
    share, other = drawn_shares(rng)

    def made(studies: int, seeds: int, n: int) -> tuple[Array, Array]:
        a, b, _ = sums(rng, seeds, n, np.repeat(scales, studies, axis=0), np.ones(studies))
        thresholds = (total * float(special.ndtri(one)) for one in (share, other))
        first, second = ((x + above > 0).astype(float) for x, above in zip((a, b), thresholds, strict=True))
        return first, second

    return from_pilots(share, other, made)


def of_chances(rng: np.random.Generator, design: Design) -> Case:
    """Scores of 0 and 1 that the predicted studies do not know: an example's chance to pass has a beta distribution,
    and its log-odds change by the arm, by the example in it, and by the run."""
    share, wanted = drawn_shares(rng)
    size, inner, seed = np.exp(rng.uniform(np.log([0.5, 0.1, 0.05]), np.log([20.0, 1.0, 0.6])))

    def chances(shape: tuple[int, ...]) -> Array:
        odds: Array = special.logit(np.clip(rng.beta(share * size, (1 - share) * size, size=shape), 1e-9, 1 - 1e-9))
        return odds

    odds, change = chances((2_000_000,)), (inner**2 + seed**2) ** 0.5 * rng.normal(size=2_000_000)

    def share_at(gain: float) -> float:
        return float(special.expit(odds + change + gain).mean())

    gain = float(optimize.brentq(lambda x: share_at(x) - wanted, -20, 20, xtol=1e-4))

    def made(studies: int, seeds: int, n: int) -> tuple[Array, Array]:
        common = chances((studies, 1, n))
        arms = [
            rng.uniform(size=(studies, seeds, n))
            < special.expit(
                common + g + inner * rng.normal(size=(studies, 1, n)) + seed * rng.normal(size=(studies, seeds, 1))
            )
            for g in (0.0, gain)
        ]
        return arms[0].astype(float), arms[1].astype(float)

    return from_pilots(share_at(0.0), share_at(gain), made)


def drawn_shares(rng: np.random.Generator) -> tuple[float, float]:
    """The shares of both arms, 80 to 99 % in the first, and a fifth to nine tenths of what fails less in the second, or
    up to twice as many failures more."""
    share = float(rng.choice(SHARES))
    change = float(rng.uniform(0.2, 0.9)) if rng.random() < 0.7 else -float(rng.uniform(0.5, 2.0))
    return share, share + (1 - share) * change


def from_pilots(share: float, other: float, made: Callable[[int, int, int], tuple[Array, Array]]) -> Case:
    """A case of shares with the spread of many large pilots."""
    pilots = [pilot_spread(*(arm[0] for arm in made(1, 200, 4000)), None, 1, matched=False) for _ in range(PILOTS)]
    squares = np.mean([[one.seed**2, one.example**2, one.noise**2] for one in pilots], axis=0)
    return other - share, Spread(*map(float, np.sqrt(squares)), shares=(share, other)), made


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 7, 10])
    parser.add_argument("--examples", type=int, nargs="+", default=[20, 50, 100, 200])
    given = parser.parse_args()
    for part in given.parts:
        {"power": compare_power, "ratios": ratios}.get(part, partial(coverage, part))(given)


if __name__ == "__main__":
    main()
