"""`smolsum stats` where runs, documents and margins count, and `--plan`: the real command line on files."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.calls import Call, done
from support.refusals import assert_refused

from smolsum.files import to_json
from smolsum.stats.design import Design, PlannedTest, Spread, pilot_spread
from smolsum.stats.power import detectable, power
from smolsum.stats.seeds import compare_runs, margin_p, resample, variance_components
from smolsum.stats.share_studies import realised
from smolsum.stats.shares import share_difference, share_interval, share_p

Found = Callable[..., dict[str, Any]]
N, RUNS, ROUNDS = 24, 3, 2
ASSUMED = ("--assume", "seed-sd=0.01", "--assume", "example-sd=0.1", "--assume", "noise-sd=0.1")


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "stats")


@pytest.fixture
def found(call: Call) -> Found:
    """The document that `smolsum stats --format json` prints."""
    return lambda *args: dict(json.loads(done(call(*args, "--format", "json"))[0]))


@pytest.fixture
def arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two arms of three runs: a judged metric with rounds, one that is 0 or 1, and the document of each example."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    shared, named = rng.normal(scale=0.2, size=N), []
    for arm, shift in (("a", 0.0), ("b", 0.05)):
        for run in range(RUNS):
            rounds = 0.5 + shift + 0.02 * rng.normal() + shared[:, None] + 0.1 * rng.normal(size=(N, ROUNDS))
            rows = [
                {"id": i, "document": f"d{i // 3}", "faith": mine.mean(), "ok": float(mine[0] > 0.3)}
                | {"rounds": {"faith": mine.tolist()}}
                for i, mine in enumerate(rounds)
            ]
            Path(f"{arm}{run}.jsonl").write_bytes(b"".join(to_json(row) for row in rows))
        named.append(f"{arm}=" + ",".join(f"{arm}{run}.jsonl" for run in range(RUNS)))
    return named[0], named[1]


def values(arm: str, metric: str) -> np.ndarray[Any, np.dtype[Any]]:
    files = [Path(f"{arm}{run}.jsonl").read_text().splitlines() for run in range(RUNS)]
    return np.array([[json.loads(line)[metric] for line in lines] for lines in files])


def test_arms_have_every_estimate(found: Found, call: Call, arms: tuple[str, str]) -> None:
    """Crossed test, bootstrap of runs and examples, interquartile means, shares: as the functions compute them."""
    faith, ok = found(*arms)["results"]
    drawn = resample(values("a", "faith"), values("b", "faith"), seed=0)
    for key in ("boot_low", "iqm_a", "iqm_high", "improved", "improved_low"):
        assert faith[key] == pytest.approx(getattr(drawn, key)), key
    assert (faith["wilcoxon_p"], faith["share_low"], faith["exact_a_low"]) == (None, None, None)
    passed = share_interval(values("b", "ok"))
    assert passed is not None
    assert (ok["exact_b_low"], ok["bayes_b_high"]) == pytest.approx((passed.exact_low, passed.bayes_high))
    assert (ok["share_low"], ok["share_high"]) == pytest.approx(share_difference(values("a", "ok"), values("b", "ok")))
    assert ok["share_p"] == pytest.approx(share_p(values("a", "ok"), values("b", "ok"), alternative="two-sided"))
    out = done(call(*arms))[0]
    assert max(map(len, out.splitlines())) <= 80
    for title in ("between runs", "runs and examples drawn anew", "probability of improvement", "shares"):
        assert f"\n{title}\n" in out


def test_documents_are_the_sample(found: Found, arms: tuple[str, str]) -> None:
    """--cluster: clustered errors, of single runs too, without the tests that count examples."""
    documents = [f"d{i // 3}" for i in range(N)]
    row = found(*arms, "--cluster", "document", "--metric", "faith")["results"][0]
    a, b = values("a", "faith"), values("b", "faith")
    assert row["p"] == pytest.approx(compare_runs(a, b, alternative="two-sided", clusters_N=documents).result.p)
    single = found("a0.jsonl", "b0.jsonl", "--cluster", "document")["results"]
    assert single[0]["df"] == N / 3 - 1
    assert [row["mcnemar_p"] for row in single] == [None, None]


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_a_margin_is_tested(alternative: Any, found: Found, call: Call, arms: tuple[str, str]) -> None:
    """--margin: equivalence, or non-inferiority with --alternative; by shares where scores are 0 or 1; adjusted."""
    flags = (*arms, "--margin", "0.2", "--alternative", alternative)
    faith, ok = found(*flags)["results"]
    tested = compare_runs(values("a", "faith"), values("b", "faith"), alternative=alternative).result
    assert faith["p_margin"] == pytest.approx(margin_p(tested, 0.2))
    by_share = share_p(values("a", "ok"), values("b", "ok"), margin=0.2, alternative=alternative)
    assert ok["p_margin"] == pytest.approx(by_share)
    assert faith["p_margin_holm"] >= faith["p_margin"]
    kind = "equivalence" if alternative == "two-sided" else "non-inferiority"
    assert f"{kind}, margin 0.2" in done(call(*flags))[0]
    many = found("--vs-baseline", arms[0], arms[1], "--margin", "0.2", "--alternative", alternative)
    assert [row["p_margin"] for row in many["results"]] == [faith["p_margin"], ok["p_margin"]]


def test_variances_have_their_shares(found: Found, call: Call, arms: tuple[str, str]) -> None:
    """--variance: each argument is a run, its files its completions, their rounds the judge's."""
    rows = found("--variance", "a0.jsonl", "a1.jsonl", "a2.jsonl", "--metric", "faith")["results"]
    table = np.array([rounds["faith"] for rounds in values("a", "rounds").ravel()]).reshape(RUNS, N, ROUNDS)
    for row, one in zip(rows, variance_components(table[:, :, None, :]), strict=True):
        assert row["source"] == one.source
        assert row["share"] == (None if np.isnan(one.share) else pytest.approx(one.share))
    judge = rows[-1]
    assert judge["source"] == "judge"
    assert judge["sd"] == pytest.approx(0.1, rel=0.2)
    several = found("--variance", "one=a0.jsonl,a1.jsonl", "two=b0.jsonl,b1.jsonl", "--metric", "faith")["results"]
    assert [row["share"] is None for row in several] == [False] * 5
    assert_refused(call("--variance", "one=a0.jsonl,a1.jsonl", "b0.jsonl"), "one 2", "b0.jsonl 1")


def test_a_design_in_hand(found: Found, call: Call) -> None:
    """--seeds and --examples without scores: what the design can detect, and the power to find an effect."""
    (row,) = found("--plan", "--seeds", "5", "--examples", "200", *ASSUMED, "--effect", "0.02")["results"]
    spread, design = Spread(0.01, 0.1, 0.1), Design(5, 200)
    assert row["detectable"] == pytest.approx(detectable(spread, design, PlannedTest()))
    assert row["power"] == pytest.approx(power(0.02, spread, design, PlannedTest()))
    (strict,) = found("--plan", "--seeds", "5", "--examples", "200", *ASSUMED, "--assume", "comparisons=5")["results"]
    assert strict["detectable"] > row["detectable"]
    assert strict["power"] is None
    (margin,) = found("--plan", "--seeds", "5", "--examples", "200", *ASSUMED, "--margin", "0.05")["results"]
    assert margin["power"] == pytest.approx(power(0, spread, design, PlannedTest(margin=0.05)))
    assert "not known (-): --assume run-hours=X" in done(call("--plan", "--effect", "0.1", *ASSUMED))[0]


def test_a_pilot_is_planned_from(found: Found, arms: tuple[str, str]) -> None:
    """--effect with a pilot: designs with enough power and their price; what is assumed counts more than the pilot."""
    flags = ("--plan", *arms, "--metric", "faith", "--effect", "0.05")
    prices = ("--assume", "run-hours=2", "--assume", "hour-price=0.5", "--assume", "call-price=0.01")
    page = found(*flags, *prices)
    spread = Spread(**page["spread"])
    assert spread.judge == pytest.approx(0.1, rel=0.2)
    for row in page["results"]:
        assert row["power"] >= 0.8
        assert row["judge_calls"] == 2 * row["seeds"] * row["examples"] * row["rounds"]
        assert row["hours"] == 4 * row["seeds"]
        assert row["dollars"] == pytest.approx(row["hours"] * 0.5 + row["judge_calls"] * 0.01)
    assert found(*flags, "--assume", "seed-sd=0.0123")["spread"]["seed"] == 0.0123
    assert {row["examples"] for row in found(*flags, "--examples", "400")["results"]} == {400}


def test_shares_are_planned_by_simulation(found: Found, call: Call, arms: tuple[str, str]) -> None:
    """A pilot of 0 and 1 shows its share, --assume share states one; what cannot be detected has no number."""
    design = ("--plan", "--seeds", "3", "--examples", "30")
    page = found(*design, *arms, "--metric", "ok", "--effect", "0.05")
    a, b = values("a", "ok"), values("b", "ok")
    spread = replace(pilot_spread(a, b, None, 1, matched=False), shares=(float(a.mean()), float(b.mean())))
    assert page["results"][0]["power"] == power(0.05, spread, Design(3, 30), PlannedTest())
    assert page["spread"].pop("shares") == pytest.approx([a.mean(), a.mean() + 0.05])
    assert page["spread"] == pytest.approx({name: getattr(realised(spread, 0.05), name) for name in page["spread"]})
    stated = ("--assume", "share=0.99", "--assume", "seed-sd=0.01", "--assume", "example-sd=0.03")
    assert found(*design, *stated, "--assume", "noise-sd=0.08")["results"][0]["detectable"] is None
    out = done(call(*design, *stated, "--assume", "noise-sd=0.08"))[0]
    assert "in the first arm 99.0% are 1\nsimulated: seed-sd 0.01, example-sd 0.0" in out
    assert "as a rise" in out


BAD = {
    "--effect 0.1 A B": "--plan",
    "--plan --effect 0.1": "seed-sd",
    "--plan --effect 0.1 A": "not 1",
    "--plan --effect 0.1 a0.jsonl b0.jsonl --metric faith": "--assume seed-sd",
    "--plan --effect 0.1 A B": "faith, ok",
    "--plan A B --metric faith": "--effect",
    "--plan --effect 0.1 --assume seed_sd=1": "seed-sd",
    "--plan --effect 0.1 --assume seed-sd=-1": "-1",
    "--plan --effect 0.1 --assume seed-sd=1 --assume seed-sd=2": "twice",
    "--plan --effect 0.1 --assume rounds=1.5": "whole",
    "--plan --effect 0.1 --assume share=95": "share=0.95",
    "--plan --effect 0.1 --assume share=0.99 ASSUMED": "0.99 x 0.01",
    "--plan --effect 0.1 --assume share=0.5 --assume judge-sd=0.1 ASSUMED": "judge",
    "--plan A B --metric ok --effect 0.1 --assume share=0.5": "pilot",
    "--plan A B --metric ok --effect 0.1 --assume seed-sd=0.6": "do not vary so much",
    "--plan --effect nan ASSUMED": "--effect 0.05",
    "--plan --margin 0 ASSUMED": "--margin 0.05",
    "--plan --effect 0.6 --assume share=0.5 ASSUMED": "cannot change",
    "--plan --seeds 3 --effect 0.1 ASSUMED": "--examples",
    "--plan --seeds 1 --examples 20 ASSUMED": "one seed",
    "--plan --effect 0.1 --power 1 ASSUMED": "--power 0.8",
    "--plan --effect 0.0001 ASSUMED": "--effect",
    "--plan --effect 0.1 --cluster document ASSUMED": "--cluster",
    "--plan --paired A B": "different questions",
    "--variance A --margin 0.1": "--margin",
    "A B --cluster nothing": "'nothing'",
    "A B --margin 0": "margin",
    "--paired A": "not 1",
    "--vs-baseline A": "no scores",
}


@pytest.mark.parametrize(("line", "named"), BAD.items(), ids=BAD)
def test_bad_requests(line: str, named: str, call: Call, arms: tuple[str, str]) -> None:
    """Each wrong question has one error that says what helps."""
    known = {"A": [arms[0]], "B": [arms[1]], "ASSUMED": list(ASSUMED)}
    assert_refused(call(*[word for part in line.split() for word in known.get(part, [part])]), named)
