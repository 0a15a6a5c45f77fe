"""What the interval of a judged share covers, and how many calls to a judge can be saved.

    uv run python benchmarks/judges.py                 # 20,000 studies a row, in numpy
    uv run python benchmarks/judges.py --http          # and some of them through a real HTTP judge

coverage   A judge that passes `sensitivity` of good texts and fails `specificity` of bad ones judges 200 texts, of
           which a known share is good. Its errors are counted on 50 good and 50 bad texts more. How often is the true
           share in the exact interval of what passes, and how often in the corrected one?
rounds     200 texts, up to five rounds. Texts differ with a standard deviation of 1, rounds of a text with `noise`.
           Rounds are added until the interval is at most 5 % wider than that of five would be on average: how many were
           needed, how wide is the interval next to that of five, and how often is the true mean in it?
weighted   How many rounds of drawn scores are as narrow, within 5 %, as one round weighted by the probabilities.
http       Studies of both kinds through smolsum's client, prompts, ledger and cache, with a server in another process;
           what comes out must be the numbers that are drawn without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent / "cases"))

from biased_judge import KnownJudge

from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestPolicy
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judgements import Judged
from smolsum.results.evaluate.judging import JudgeJob, JudgeOptions, ask_judge
from smolsum.results.evaluate.rounds import width_of
from smolsum.stats.judged_share import JudgeErrors, corrected_share, corrected_shares
from smolsum.tasks.success_rates import exact_interval
from smolsum.types import COMPOSITE, PASS_RATE, Criterion, Prompt, Rollout, RolloutGroup

Array = NDArray[np.float64]
TEXTS, CALIBRATION = 200, 50
JUDGES = ((0.95, 0.95), (0.9, 0.8), (0.8, 0.9), (0.95, 0.6), (0.6, 0.95), (0.7, 0.7))
SHARES = (0.05, 0.2, 0.5, 0.8, 0.95)
ROUNDS, NARROW = 5, 1.05
T = float(stats.t.ppf(0.975, TEXTS - 1))
NOISES = (0.25, 0.5, 0.75, 1.0, 1.5)
QUALITY = Criterion("quality", ("Read the Actual Output.", "Rate it."), sees=("completion",))
SERVER = Path(__file__).parent / "cases" / "biased_judge.py"


def coverage(times: int) -> None:
    """Print what both intervals cover, for each judge and true share."""
    print("sensitivity\tspecificity\tgood\traw\tcorrected\twidth")
    exact = np.array([exact_interval(passed, TEXTS) for passed in range(TEXTS + 1)])
    every = []
    for q1, q0 in JUDGES:
        for share in SHARES:
            rng = np.random.default_rng([int(1000 * q1), int(1000 * q0), int(1000 * share)])
            passed = rng.binomial(TEXTS, share * q1 + (1 - share) * (1 - q0), times)
            good, bad = (rng.binomial(CALIBRATION, q, times) / CALIBRATION for q in (q1, q0))
            n, m = (np.full(times, float(size)) for size in (TEXTS, CALIBRATION))
            _, low, high = corrected_shares(passed / TEXTS, n, bad, m, good, m)
            raw = (exact[passed, 0] <= share) & (share <= exact[passed, 1])
            inside = (low <= share) & (share <= high)
            every.append((raw.mean(), inside.mean()))
            cells = (f"{100 * raw.mean():.1f} %", f"{100 * inside.mean():.1f} %", f"{np.nanmean(high - low):.3f}")
            print(q1, q0, share, *cells, sep="\t")
    raws, covered = zip(*every, strict=True)
    for name, found in (("raw", raws), ("corrected", covered)):
        print(f"{name}: {100 * fmean(found):.1f} %, worst {100 * min(found):.1f} %, best {100 * max(found):.1f} %")


def rounds(times: int) -> None:
    """Print the rounds that are needed, and the coverage with the rule."""
    print("noise\trounds\tfewer calls\twidth to that of five\tcovered\tcovered with five")
    saved = []
    for noise in NOISES:
        rng = np.random.default_rng(int(1000 * noise))
        wanted = NARROW * T * ((1 + noise**2 / ROUNDS) / TEXTS) ** 0.5
        used, wider, covered, always = [], [], [], []
        for _ in range(times):
            scores = rng.normal(size=(TEXTS, 1)) + noise * rng.normal(size=(TEXTS, ROUNDS))
            count = _needed(scores, wanted)
            means = scores[:, :count].mean(axis=1), scores.mean(axis=1)
            halves = [T * one.std(ddof=1) / TEXTS**0.5 for one in means]
            used.append(count)
            wider.append(halves[0] / halves[1])
            covered.append(abs(means[0].mean()) <= halves[0])
            always.append(abs(means[1].mean()) <= halves[1])
        saved.append(1 - fmean(used) / ROUNDS)
        shares = (f"{100 * fmean(covered):.1f} %", f"{100 * fmean(always):.1f} %")
        print(noise, f"{fmean(used):.2f}", f"{100 * saved[-1]:.0f} %", f"{fmean(wider):.3f}", *shares, sep="\t")
    print(f"over all judges: {100 * fmean(saved):.0f} % fewer calls")


def weighted() -> None:
    """Print the rounds of drawn scores that one weighted round stands for."""
    print("noise\trounds of drawn scores")
    for noise in NOISES:
        print(noise, next(r for r in range(1, 100) if (1 + noise**2 / r) ** 0.5 <= NARROW), sep="\t")


def _needed(scores: Array, wanted: float) -> int:
    """The rounds that an evaluation would ask for."""
    for count in range(2, ROUNDS):
        found = width_of(scores[:, :count].tolist())
        assert found is not None
        if found.is_enough(wanted, ROUNDS):
            return count
    return ROUNDS


@contextmanager
def served(judge: KnownJudge) -> Iterator[str]:
    """Where the judge answers, in a process of its own."""
    flags = [f"--{name}={value}" for name, value in vars(judge).items()]
    process = subprocess.Popen([sys.executable, str(SERVER), *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def asked(url: str, texts: Sequence[str], **options: object) -> Judged:
    """What the judge says of the texts, through an evaluation's way to it, in a folder and cache of its own."""
    groups = [
        RolloutGroup(
            Prompt(f"text-{n}", ({"role": "user", "content": "-"},), (), (), {}),
            (Rollout((), (), "stop", 0, "", 0, text),),
        )
        for n, text in enumerate(texts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        cost = JudgeCost(None, agreed=True, quiet=True)
        endpoint = Endpoint(url, "known")
        given = {"rounds": 1, **options}
        made = JudgeOptions(endpoint, (), requests=RequestPolicy(concurrency=8), cost=cost, **given)  # type: ignore[arg-type]
        judged, failure = ask_judge(JudgeJob(Path(folder), groups, [QUALITY], "again"), endpoint, made)
    assert failure is None
    assert not judged.missing
    return judged


def passed(judged: Judged) -> list[float]:
    """Whether each text passed."""
    return [row[PASS_RATE] for row in judged.columns([QUALITY]).values()]


def by_http(studies: int) -> None:
    """Print whether studies through HTTP give the numbers that are drawn without it."""
    same, covered_raw, covered = 0, 0, 0
    for study in range(studies):
        q1, q0 = JUDGES[study % len(JUDGES)]
        share = SHARES[study % len(SHARES)]
        judge = KnownJudge(q1, q0, seed=study)
        rng = np.random.default_rng(study)
        truth = [*(rng.random(TEXTS) < share), *[True] * CALIBRATION, *[False] * CALIBRATION]
        texts = [f"Text {n} is {'good' if good else 'bad'}." for n, good in enumerate(truth)]
        with served(judge) as url:
            found = passed(asked(url, texts))
        drawn = [float(judge.draw(text, 0) >= 5) for text in texts]
        same += found == drawn
        parts = [found[:TEXTS], found[TEXTS : TEXTS + CALIBRATION], found[TEXTS + CALIBRATION :]]
        errors = JudgeErrors(fmean(parts[1]), CALIBRATION, 1 - fmean(parts[2]), CALIBRATION)
        low, high = exact_interval(round(sum(parts[0])), TEXTS)
        interval = corrected_share(fmean(parts[0]), TEXTS, errors)
        covered_raw += low <= share <= high
        covered += interval is not None and interval.low <= share <= interval.high
    print(f"http: {same} of {studies} studies are those drawn without it, verdict by verdict")
    print(f"http: the true share is in {covered_raw} raw and {covered} corrected intervals of {studies}")
    print("http, noise of 10\tcalls of five rounds\tuntil\tweighted\thalf widths of the three")
    for noise in (0.5, 1.0, 2.0):
        judge = KnownJudge(noise=noise)
        worth = np.random.default_rng(0).normal(6, 1.5, TEXTS).clip(2, 9)
        texts = [f"Text {n} is worth {value:.2f}." for n, value in enumerate(worth)]
        with served(judge) as url:
            five = _half(asked(url, texts, rounds=ROUNDS))
        with served(judge) as url:
            drawn = asked(url, texts, rounds=ROUNDS, until=NARROW * five)
        with served(judge) as url:
            one = asked(url, texts, weighted=True)
        widths = [f"{width:.4f}" for width in (five, _half(drawn), _half(one))]
        print(noise, ROUNDS * TEXTS, drawn.usage["calls"], one.usage["calls"], *widths, sep="	")


def _half(judged: Judged) -> float:
    """Half the width of the mean's interval."""
    means = np.array([row[COMPOSITE] for row in judged.columns([QUALITY]).values()])
    return float(T * means.std(ddof=1) / len(means) ** 0.5)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20_000, metavar="N", help="studies of a row")
    parser.add_argument("--http", action="store_true", help="also some studies through a real HTTP judge")
    parser.add_argument("--studies", type=int, default=30, metavar="N", help="of --http")
    arguments = parser.parse_args()
    coverage(arguments.times)
    print()
    rounds(arguments.times // 5)
    print()
    weighted()
    if arguments.http:
        print()
        by_http(arguments.studies)


if __name__ == "__main__":
    main()
