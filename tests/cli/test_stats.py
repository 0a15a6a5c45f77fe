"""`smolsum stats` as a user meets it: the real command line on files."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.calls import Call
from support.refusals import assert_refused

from smolsum import console
from smolsum.evaluate.storage import write_scores
from smolsum.files import to_json
from smolsum.stats import paired_ttest

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("SMOLSUM_RUNS_DIR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    yield
    console.set_plain(False)


@pytest.fixture
def call(call: Call) -> Call:
    """`smolsum stats` with arguments."""
    return partial(call, "stats")


def lines(path: str, rows: Rows) -> str:
    Path(path).write_bytes(b"".join(to_json(row) for row in rows))
    return path


def judged(seed: int, shift: float = 0.0, n: int = 30) -> Rows:
    """Scores as an evaluation with a judge writes them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        faith, cover = (float(x) for x in np.clip(rng.normal(0.5 + shift, 0.15, 2), 0, 1).round(2))
        rows.append(
            {
                "id": f"post-{i}",
                "text": "a summary",
                "faithfulness": faith,
                "coverage": cover,
                "rounds": {"faithfulness": [faith, faith]},
                "composite": faith + cover,
                "passed": bool(faith > 0.5 and cover > 0.5),
            }
        )
    return rows


def evaluation(run: str, label: str, rows: Rows, *, step: int = 0, test: str = "t1", seed: int = 0, **more: Any) -> str:
    """An evaluation in a run's directory as a training writes it."""
    folder = Path("runs") / run / "eval" / f"{label}-test"
    splits = {
        "train": {"split": "train", "fingerprint": "r1", "prompts": "p"},
        "test": {"split": "test", "fingerprint": test, "prompts": "p"},
    }
    origin = {"label": label, "step": step, "data": splits, "meteor": "wordnet", **more}
    write_scores(folder, rows, {}, origin, "again")
    config = f'[run]\nname = "{run}"\n[train]\nseed = {seed}\nprompts_per_step = 4\n[stages.{run.split("-")[0]}]\n'
    (folder.parents[1] / "config.toml").write_text(config)
    return str(folder)


def document(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_json_holds_every_number(call: Call) -> None:
    """--paired gives b - a of every metric, as the functions and SciPy compute it."""
    a, b = judged(1), judged(2, 0.05)
    code, out, err = call("--paired", lines("a.jsonl", a), lines("b.jsonl", b), "--format", "json")
    assert (code, err) == (0, "")
    found = document(out)
    assert (found["schema_version"], found["kind"], found["direction"]) == (1, "paired", "b - a")
    assert (found["alternative"], found["examples"], found["tests"]) == ("two-sided", 30, 4)
    assert found["a"] == {"name": "a.jsonl", "files": ["a.jsonl"]}
    rows = {row["metric"]: row for row in found["results"]}
    assert list(rows) == ["faithfulness", "coverage", "composite", "passed"]
    one, two = ([row["composite"] for row in side] for side in (a, b))
    expected = paired_ttest(one, two)
    row = rows["composite"]
    for key in ("n", "missing", "mean_a", "mean_b", "delta", "sd", "t", "df", "p", "ci_low", "ci_high", "d_z"):
        assert row[key] == pytest.approx(getattr(expected, key)), key
    assert row["wilcoxon_p"] == pytest.approx(stats.wilcoxon(np.round(np.subtract(two, one), 9)).pvalue)
    assert 0 < row["sign_flip_p"] <= 1
    assert row["bootstrap_low"] < row["delta"] < row["bootstrap_high"]
    assert row["p"] < row["p_holm"] <= 1
    assert row["gained"] is None
    flips = [(x["passed"], y["passed"]) for x, y in zip(a, b, strict=True)]
    assert rows["passed"]["gained"] == flips.count((False, True))
    assert rows["passed"]["lost"] == flips.count((True, False))
    assert rows["passed"]["mcnemar_p"] <= 1


def test_two_files_are_a_pair(call: Call) -> None:
    """Two scores without a flag are compared as with --paired, and the ids pair them, not their order."""
    a, b = judged(1), judged(2, 0.05)
    names = lines("a.jsonl", a), lines("b.jsonl", b[::-1])
    assert call(*names)[1] == call("--paired", *names)[1].replace("--paired", "")
    straight = document(call(lines("a.jsonl", a), lines("c.jsonl", b), "--format", "json")[1])
    mixed = document(call(*names, "--format", "json")[1])
    assert straight["results"] == mixed["results"]


def test_ids_may_be_numbers_or_text(call: Call) -> None:
    """1 and "1" are the same id; a last line without its end counts."""
    lines("a.jsonl", [{"id": 1, "x": 1}, {"id": 2, "x": 2}, {"id": 3, "x": 4}])
    Path("b.jsonl").write_text('{"id": "2", "x": 3}\n\n{"id": "1", "x": 3}\n{"id": "3", "x": 5}')
    found = document(call("a.jsonl", "b.jsonl", "--format", "json")[1])
    assert found["results"][0]["n"] == 3
    assert found["results"][0]["delta"] == pytest.approx(4 / 3)


def test_table_fits_eighty_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are plain text of at most 80 columns, and say direction, sides, alternative and number of tests."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    long = [{**row, "repeated_trigrams": 0.01 * i} for i, row in enumerate(judged(1))]
    more = [{**row, "repeated_trigrams": 0.011 * i * i} for i, row in enumerate(judged(2, 0.05))]
    code, out, err = call(lines("a.jsonl", long), lines("b.jsonl", more))
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    said = " ".join(out.split())
    for part in ("a = a.jsonl", "b = b.jsonl", "b - a", "30 examples", "two-sided paired t-test", "all 5 tests"):
        assert part in said


def test_narrow_terminals_drop_columns(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where COLUMNS is smaller, the last columns are left out, and stderr names them."""
    monkeypatch.setenv("COLUMNS", "50")
    code, out, err = call(lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2, 0.05)))
    assert code == 0
    tables = out.split("\n\n")[1:4]
    assert max(len(line) for table in tables for line in table.splitlines()) <= 50
    assert "(not shown in 50 columns: " in err


def test_golden_table(call: Call) -> None:
    """A small comparison, character by character."""
    lines("a.jsonl", [{"id": i, "score": x, "ok": x > 2} for i, x in enumerate([0, 0, 0, 0, 3])])
    lines("b.jsonl", [{"id": i, "score": x, "ok": x > 2} for i, x in enumerate([1, 2, 3, 4, 13])])
    out = call("a.jsonl", "b.jsonl")[1]
    assert out.splitlines()[:16] == [
        "a = a.jsonl",
        "b = b.jsonl",
        "5 examples",
        "",
        "difference",
        "metric       a       b    b - a  95 % interval         t       p",
        "score   0.6000  4.6000  +4.0000  -0.3899, 8.3899  2.5298  0.0647",
        "ok      0.2000  0.6000  +0.4000  -0.2801, 1.0801  1.6330  0.1778",
        "",
        "strength",
        "metric      d_z  p Holm    p BH  Wilcoxon  sign flip     min",
        "score   +1.1314  0.1294  0.1294    0.0625     0.0625  5.9468",
        "ok      +0.7303  0.1778  0.1778    0.5000     0.5000  0.9213",
        "",
        "pairs",
        "metric  n  missing  bootstrap 95 %  gained  lost  McNemar",
    ]


def test_markdown(call: Call) -> None:
    """Markdown has the same tables with every mark escaped."""
    lines("a.jsonl", [{"id": i, "a|b": x} for i, x in enumerate([0, 0, 0, 0, 0])])
    lines("b.jsonl", [{"id": i, "a|b": x} for i, x in enumerate([1, 2, 3, 4, 5])])
    code, out, _ = call("a.jsonl", "b.jsonl", "--format", "md")
    assert code == 0
    assert "| metric | a | b | b - a | 95 % interval | t | p |\n| --- | --- | --- | --- | --- | --- | --- |\n" in out
    assert "| a\\|b | 0.0000 | 3.0000 | +3.0000 | 1.0368, 4.9632 | 4.2426 | 0.0132 \\* |" in out


def test_csv(call: Call) -> None:
    """CSV holds the unrounded rows alone; what else there is to say goes to stderr."""
    names = lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2, 0.05))
    code, out, err = call(*names, "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    results = document(call(*names, "--format", "json")[1])["results"]
    assert [row["metric"] for row in rows] == [row["metric"] for row in results]
    assert [float(row["t"]) for row in rows] == [row["t"] for row in results]
    assert rows[0]["gained"] == ""
    assert "two-sided paired t-test" in err


def test_missing_values_are_counted_gaps(call: Call) -> None:
    """null, NaN, infinity and an absent field leave their pair out of that metric, and the report says so."""
    a, b = judged(1), judged(2, 0.05)
    a[0]["coverage"] = None
    del b[1]["coverage"]
    text = "".join(json.dumps(row) + "\n" for row in b).replace(f'"coverage": {b[2]["coverage"]}', '"coverage": NaN', 1)
    Path("b.jsonl").write_text(text)
    code, out, _ = call(lines("a.jsonl", a), "b.jsonl", "--format", "json")
    assert code == 0
    rows = {row["metric"]: row for row in document(out)["results"]}
    assert rows["coverage"]["missing"] >= 2
    assert rows["coverage"]["n"] + rows["coverage"]["missing"] == 30
    assert rows["faithfulness"]["missing"] == 0
    assert "missing: pairs left out of that metric alone" in call("a.jsonl", "b.jsonl")[1]


def test_no_spread_is_said(call: Call) -> None:
    """Identical scores and constant differences are put in words; JSON has null for what is undefined."""
    a = [{"id": i, "same": 1.0, "more": float(i)} for i in range(5)]
    b = [{**row, "more": row["more"] + 0.1} for row in a]
    names = lines("a.jsonl", a), lines("b.jsonl", b)
    out = call(*names)[1]
    assert "same: a and b are equal in every pair" in out
    assert "more: every pair differs by the same amount" in out
    same, more = document(call(*names, "--format", "json")[1])["results"]
    assert (same["note"], same["t"], same["p"]) == ("identical", None, 1.0)
    assert (more["note"], more["t"], more["p"], more["sign_flip_p"]) == ("constant", None, None, 2 / 32)


def test_one_sided(call: Call) -> None:
    """--alternative is taken and stated; the open end of its interval is null."""
    names = lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2, 0.05))
    two, one = (document(call(*names, "--format", "json", "--alternative", a)[1]) for a in ("two-sided", "greater"))
    assert one["alternative"] == "greater"
    assert one["results"][2]["p"] == pytest.approx(two["results"][2]["p"] / 2)
    assert one["results"][2]["ci_high"] is None
    assert "greater paired t-test: b is greater than a" in " ".join(call(*names, "--alternative", "greater")[1].split())


def test_metric_selects(call: Call) -> None:
    """--metric keeps to what was asked, in that order, and so the number of tests small."""
    names = lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2, 0.05))
    found = document(call(*names, "--metric", "composite", "--metric", "coverage", "--format", "json")[1])
    assert [row["metric"] for row in found["results"]] == ["composite", "coverage"]
    assert found["tests"] == 2


def test_runs_are_found_by_name(call: Call) -> None:
    """A run stands for the evaluation of its last step, which stderr names; its eval folder and each in it work too."""
    evaluation("one", "start", judged(1), step=0)
    last = evaluation("one", "quality", judged(2, 0.1), step=9)
    other = evaluation("two", "quality", judged(3, 0.1), step=9)
    code, out, err = call("one", "two", "--format", "json")
    assert code == 0
    assert "one: quality-test, the evaluation of its last step" in err
    found = document(out)
    assert found["a"] == {"name": "one", "files": [f"{last}/scores.jsonl"]}
    assert (found["split"], found["data"]) == ("test", "t1")
    for reference in ("runs/one", "runs/one/eval", last, f"{last}/scores.jsonl"):
        assert document(call(reference, other, "--format", "json")[1])["results"] == found["results"]
    start = document(call("runs/one/eval/start-test", "runs/one", "--format", "json")[1])
    assert start["a"]["name"] == "one/start-test"


def test_a_run_stands_for_its_own_evaluation(call: Call) -> None:
    """Other data, another split and samples of the last step are not taken, and stderr names them."""
    own = evaluation("one", "quality", judged(2, 0.1), step=9)
    data = {"test": {"split": "test", "fingerprint": "t1", "prompts": "p"}}
    Path("runs/one/run.json").write_text(json.dumps({"data": data}))
    evaluation("one", "zz", judged(3, 0.4), step=9, test="t2", judge="judge-a", sampler="greedy")
    evaluation("one", "warm", judged(4, 0.4), step=9, sampler="temperature 1, seed 0", split="test")
    code, out, err = call("one", lines("b.jsonl", judged(1)), "--format", "json")
    assert code == 0
    assert document(out)["a"] == {"name": "one", "files": [f"{own}/scores.jsonl"]}
    assert "one: quality-test, the evaluation of its last step; not taken: " in err
    assert "warm-test (temperature 1, seed 0), zz-test (other data)" in err
    shutil.rmtree(own)
    assert call("one", "b.jsonl")[0] == 2  # neither of what remains is the run's own
    shutil.rmtree("runs/one/eval/warm-test")
    assert "one: zz-test, the evaluation of its last step (other data)" in call("one", "b.jsonl")[2]


def test_baseline_and_many(call: Call) -> None:
    """--vs-baseline adjusts over all runs and metrics together, and gives each metric a table of runs."""
    base = evaluation("base", "length", judged(0))
    for number in (1, 2, 3):
        evaluation(f"run{number}", "quality", judged(number, 0.04 * number))
    args = ("--vs-baseline", base, "run1", "run2", "run3", "--metric", "composite", "--metric", "coverage")
    code, out, _ = call(*args, "--format", "json")
    found = document(out)
    assert (code, found["kind"], found["tests"]) == (0, "vs-baseline", 6)
    p = np.array([row["p"] for row in found["results"]])
    assert [row["p_bh"] for row in found["results"]] == pytest.approx(stats.false_discovery_control(p).tolist())
    assert min(row["p_holm"] for row in found["results"]) == pytest.approx(6 * p.min())
    one = document(call(base, "run2", "--metric", "coverage", "--format", "json")[1])["results"][0]
    same = next(row for row in found["results"] if (row["run"], row["metric"]) == ("run2", "coverage"))
    assert (same["delta"], same["t"], same["p"]) == (one["delta"], one["t"], one["p"])
    table = call(*args)[1]
    assert "composite, baseline " in table
    assert max(len(line) for line in table.splitlines() if line.startswith("run")) <= 100
    assert "all 6 tests" in table


def test_baseline_and_many_of_yes_and_no(call: Call) -> None:
    """A metric that is 0 or 1 has its changes and McNemar's p for each run, the same as of the two alone."""
    base = evaluation("base", "length", judged(0))
    for number in (1, 2):
        evaluation(f"run{number}", "quality", judged(number, 0.2))
    args = ("--vs-baseline", base, "run1", "run2", "--metric", "passed", "--metric", "composite")
    rows = document(call(*args, "--format", "json")[1])["results"]
    alone = document(call(base, "run2", "--metric", "passed", "--format", "json")[1])["results"][0]
    keys = ("gained", "lost", "mcnemar_p")
    assert [rows[1][key] for key in keys] == [alone[key] for key in keys]
    assert alone["gained"] > alone["lost"]
    assert [row["mcnemar_p"] for row in rows[2:]] == [None, None]
    table = call(*args)[1]
    assert "passed, changes run gained lost McNemar run1" in " ".join(table.split())
    assert "composite, changes" not in table
    assert "McNemar's exact p" in " ".join(table.split())


def test_seeds_of_a_configuration_become_one(call: Call) -> None:
    """Runs that differ in name and seed alone are one row with the spread between them; the same seed twice is not."""
    base = evaluation("base", "length", judged(0))
    for seed in (1, 2, 3):
        evaluation(f"meteor-s{seed}", "quality", judged(seed, 0.1), seed=seed)
    evaluation("rouge-s1", "quality", judged(9, 0.1), seed=1)
    runs = ("meteor-s1", "meteor-s2", "rouge-s1", "meteor-s3")
    code, out, err = call("--vs-baseline", base, *runs, "--metric", "composite", "--format", "json")
    assert code == 0
    assert "meteor-s1 x3: seeds of one configuration: meteor-s1, meteor-s2, meteor-s3" in err
    together, alone = document(out)["results"]
    assert (together["run"], alone["run"]) == ("meteor-s1 x3", "rouge-s1")
    means = [np.mean([row["composite"] for row in judged(seed, 0.1)]) for seed in (1, 2, 3)]
    assert together["mean_b"] == pytest.approx(np.mean(means))
    assert together["run_sd_b"] == pytest.approx(np.std(means, ddof=1))
    assert alone["run_sd_b"] is None
    assert "between runs" in call("--vs-baseline", base, *runs)[1]
    evaluation("meteor-s3", "quality", judged(3, 0.1), seed=2)
    results = document(call("--vs-baseline", base, *runs, "--metric", "composite", "--format", "json")[1])["results"]
    assert [row["run"] for row in results] == ["meteor-s1", "meteor-s2", "meteor-s3", "rouge-s1"]


def test_strategy_against_strategy(call: Call) -> None:
    """Runs joined by commas are a side under its name; --matched pairs them in order."""
    for number in (1, 2, 3):
        evaluation(f"j{number}", "end", judged(number, 0.05 * number))
        evaluation(f"s{number}", "end", judged(number + 10, 0.05 * number + 0.1))
    sides = "joint=j1,j2,j3", "staged=runs/s1,runs/s2,runs/s3"
    code, out, _ = call("--paired", "--matched", *sides, "--metric", "composite", "--format", "json")
    assert code == 0
    found = document(out)
    assert (found["a"]["name"], found["b"][0]["name"], found["matched"]) == ("joint", "staged", True)
    row = found["results"][0]
    deltas = [
        np.mean([r["composite"] for r in judged(k + 10, 0.05 * k + 0.1)])
        - np.mean([r["composite"] for r in judged(k, 0.05 * k)])
        for k in (1, 2, 3)
    ]
    assert row["delta"] == pytest.approx(np.mean(deltas))
    assert row["run_sd_delta"] == pytest.approx(np.std(deltas, ddof=1))
    table = " ".join(call("--matched", *sides)[1].split())
    assert "p these runs" in table
    assert "count runs and examples as samples" in table


@pytest.mark.parametrize("flags", [("--paired",), ("--matched",), ("--vs-baseline", "w=x,y")])
def test_nothing_is_starred_that_forgets_runs(call: Call, flags: tuple[str, ...]) -> None:
    """Runs that vary widely, each far from the others on every example: the test finds nothing, and no column next to
    it may claim more by counting examples only."""
    for number, (x, t) in enumerate([(0.0, 0.05), (0.1, 0.4)]):
        evaluation(f"x{number}", "end", judged(1, x))
        evaluation(f"t{number}", "end", judged(2, t))
    for old, new in (("x0", "x"), ("x1", "y")):
        (Path("runs") / old).rename(Path("runs") / new)
    arms = ["lora=t0,t1"] if flags[0] == "--vs-baseline" else ["whole=x,y", "lora=t0,t1"]
    code, out, _ = call(*flags, *arms, "--metric=composite", "--metric=passed")
    assert code == 0
    shown, notes = out.split("\n* p < 0.05")
    assert "p these runs" in shown
    assert "*" not in shown
    for name in ("Wilcoxon", "sign flip", "bootstrap", "McNemar"):
        assert name not in shown + notes
    for row in document(call(*flags, *arms, "--metric=composite", "--metric=passed", "--format=json")[1])["results"]:
        assert row["p_these_runs"] < 0.05 < row["p"]
        names = ("wilcoxon_p", "sign_flip_p", "bootstrap_low", "bootstrap_high", "gained", "lost", "mcnemar_p")
        assert {row.get(name) for name in names} == {None}


def test_the_head_names_a_judge_that_all_have(call: Call) -> None:
    """With scores of one judge and scores without any, what is compared was not judged."""
    evaluation("one", "end", judged(1), judge="m, 5 rounds")
    evaluation("two", "end", judged(2))
    assert "m, 5 rounds" not in call("one", "two")[1]
    evaluation("two", "end", judged(2), judge="m, 5 rounds")
    assert "m, 5 rounds" in call("one", "two")[1]


def test_correlation(call: Call) -> None:
    """--correlation pools all files, with the caveat next to it."""
    names = lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2, 0.3))
    code, out, _ = call("--correlation", *names, "--format", "json")
    assert code == 0
    found = document(out)
    assert len(found["results"]) == math.comb(4, 2)
    first = found["results"][0]
    rows = judged(1) + judged(2, 0.3)
    r = stats.pearsonr([row["faithfulness"] for row in rows], [row["coverage"] for row in rows]).statistic
    assert (first["x"], first["y"], first["n"]) == ("faithfulness", "coverage", 60)
    assert first["r"] == pytest.approx(r)
    assert first["r_within"] < first["r"]
    assert "not independent" in " ".join(call("--correlation", *names)[1].split())


def test_runs_that_repeat_are_left_out(call: Call) -> None:
    """`runs/*` has the baseline and the link to the newest run in it: neither is compared twice, and stderr says so."""
    evaluation("base", "length", judged(0))
    evaluation("one", "quality", judged(1))
    Path("runs/latest").symlink_to("one")
    args = ("--vs-baseline", "base", "runs/base", "runs/latest", "runs/one", "--format", "json")
    code, out, err = call(*args)
    assert code == 0
    assert {row["run"] for row in document(out)["results"]} == {"one"}
    assert "base: left out, as it is base\none: left out, as it is one\n" in err
    code, _, err = call("--vs-baseline", "base", "runs/base")
    assert code == 2
    assert "nothing to compare with the baseline but itself" in err


def test_different_ids_are_refused(call: Call) -> None:
    """Other examples on a side: both lists, exit 2, nothing on stdout."""
    rows = judged(1)
    code, out, err = call(lines("a.jsonl", rows), lines("b.jsonl", [*rows[8:], {"id": "new", "coverage": 1}]))
    assert (code, out) == (2, "")
    assert err.startswith("error: not scores of the same examples")
    assert "the second lacks 8 ids: post-0, post-1, post-2, post-3, post-4, …" in err
    assert "the first lacks 1 ids: new" in err
    assert "hint: " in err


def test_different_origins_are_refused(call: Call) -> None:
    """Another split, data or judge: every difference is listed."""
    a = evaluation("a", "end", judged(1), judge="gpt, 5 rounds")
    b = evaluation("b", "end", judged(1), test="t2", judge="local, 5 rounds", split="test")
    code, out, err = call(a, b)
    assert (code, out) == (2, "")
    assert "data t1 against t2; judge gpt, 5 rounds against local, 5 rounds" in err
    rows = [{**row, "split": "validation"} for row in judged(1)]
    assert "split test against validation" in call(b, lines("c.jsonl", rows))[2]


def test_unstated_origin_is_warned_about(call: Call) -> None:
    """A file that does not state its split or data is compared with a warning; METEOR matched otherwise too."""
    a = evaluation("a", "end", judged(1))
    code, _, err = call(a, lines("b.jsonl", judged(2)))
    assert code == 0
    assert "warning: b.jsonl does not state its split, so that could not be compared" in err
    assert "warning: b.jsonl does not state its data" in err
    _, _, err = call(a, evaluation("c", "end", judged(2), meteor="exact", tokenizer="t", sampler="greedy"))
    assert "matched METEOR's synonyms by different means: wordnet against exact" in err


@pytest.mark.parametrize(("key", "values"), [("tokenizer", "ab"), ("max_new_tokens", (9, 80)), ("sampler", "st")])
def test_what_else_differs_is_warned_about(key: str, values: Any, call: Call) -> None:
    """Other tokens, another limit or another sampler make no other examples, but the reader has to know."""
    one, two = (evaluation(name, "end", judged(1), **{key: value}) for name, value in zip("ab", values, strict=True))
    code, _, err = call(one, two)
    assert code == 0
    assert err.count("warning: ") == 1
    assert f": {values[0]} against {values[1]}" in err


def test_other_settings_of_the_task_are_refused(call: Call) -> None:
    """Metrics that measure another target are not compared, whatever the task; another prompt is a fair question."""
    task = {"name": "any", "system_prompt": "Do it.", "target": 64, "width": 5}
    a = evaluation("a", "end", judged(1), task=task)
    code, out, err = call(a, evaluation("b", "end", judged(2), task=task | {"target": 40}))
    assert (code, out) == (2, "")
    assert "task target 64 against target 40" in err
    assert call(a, evaluation("c", "end", judged(2), task=task | {"system_prompt": "Do it well."}))[0] == 0


def test_metric_that_one_side_lacks_is_warned_about(call: Call) -> None:
    """Metrics in one file only are named and left out."""
    b = [{**row, "extra": 1.0} for row in judged(2)]
    code, _, err = call(lines("a.jsonl", judged(1)), lines("b.jsonl", b))
    assert code == 0
    assert "not in every file, so not compared: extra" in err


BAD_FILES = [
    ('{"id": 1, "x": 1}\n{"id": 2, "x": }\n', "bad.jsonl:2 is damaged: it is not a JSON object"),
    ('{"id": 1, "x": 1}\n[1]\n', "bad.jsonl:2 is damaged: it is not a JSON object"),
    ('{"id": 1, "x": 1}\n{"x": 2}\n', "bad.jsonl:2 is damaged: it has no id"),
    ('{"id": 1, "x": 1}\n{"id": true, "x": 2}\n', "bad.jsonl:2 is damaged: id is 'True': expected int | str"),
    ('{"id": 1, "x": 1}\n{"id": 2, "x": 1}\n{"id": "1", "x": 2}\n', "bad.jsonl:3 has the id '1' again, first seen in "),
    ('{"id": 1, "x": 1}\n{"id": 2, "x": "one"}\n', "bad.jsonl:2 has \"one\" in 'x', which is a number elsewhere"),
    ('{"id": 1, "x": "one"}\n', "bad.jsonl has no numeric field"),
    ("\n \n", "bad.jsonl has no lines"),
    ('{"id": 1, "x": 1, "split": "a"}\n{"id": 2, "x": 1, "split": "b"}\n', "mixes scores of 2 kinds of split: a, b"),
    ('{"id": 1, "x": 1e308}\n', "bad.jsonl:1 has a number in 'x' that is too large"),
    ('{"id": 1, "x": 1' + "0" * 400 + "}\n", "bad.jsonl:1 has a number in 'x' that is too large"),
    ("\ufeff[", "bad.jsonl:1 is damaged: it is not a JSON object"),
    ("[" * 100_000, "bad.jsonl:1 is damaged: it is not a JSON object"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(content: str, message: str, call: Call) -> None:
    """A file that cannot be meant is refused with its line and a remedy."""
    Path("bad.jsonl").write_text(content)
    code, out, err = call("bad.jsonl", lines("b.jsonl", judged(1)))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "\n\nhint: " in err


def test_a_document_that_is_not_json_lines(call: Call) -> None:
    """Another tool's results, such as the study's: what was expected is said, and the file is not called damaged."""
    Path("rollouts.json").write_text(json.dumps([{"idx": 0, "geval_composite": 0.5}], indent=1))
    code, _, err = call("rollouts.json", lines("b.jsonl", judged(1)))
    assert code == 2
    assert err.startswith("error: rollouts.json does not have the scores of an example on each of its lines")
    assert '{"id": "post-1", "meteor": 0.31}' in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.jsonl", "none.jsonl"], "no scores at 'none.jsonl'"),
        (["a.jsonl"], "--paired compares two scores, not 1"),
        (["a.jsonl", "b.jsonl", "a.jsonl"], "--paired compares two scores, not 3"),
        (["a.jsonl", "b.jsonl", "--paired", "--correlation"], "--paired and --correlation are different questions"),
        (["a.jsonl", "b.jsonl", "--correlation", "--matched"], "takes no --matched"),
        (["a.jsonl", "b.jsonl", "--metric", "compsite"], "has no metric 'compsite'"),
        (["a.jsonl", "s=b.jsonl,b.jsonl"], "has the same scores twice"),
        (["a.jsonl", "s=b.jsonl,c.jsonl", "--matched"], "matched runs come in pairs, not 1 against 2"),
        (["a.jsonl", "empty"], "empty holds no scores.jsonl"),
        (["a.jsonl", "x.jsonl"], "no metric is in all files"),
        (["a.jsonl", "runs/two"], "holds 2 evaluations of its last step: x-test, y-test"),
        (["a.jsonl", "runs/broken"], "summary.json"),
        (["a.jsonl", "b.jsonl", "--format", "xml"], "invalid value for '--format'"),
        (["a.jsonl", "b.jsonl", "--alternative", "more"], "invalid value for '--alternative'"),
        ([], "missing argument"),
    ],
)
def test_bad_requests(args: list[str], message: str, call: Call) -> None:
    """A request that cannot be meant exits with 2, says why and what to do."""
    lines("a.jsonl", judged(1))
    lines("b.jsonl", judged(2))
    lines("c.jsonl", judged(3))
    lines("x.jsonl", [{"id": f"post-{i}", "x": i} for i in range(30)])
    Path("empty").mkdir()
    evaluation("two", "x", judged(1))
    evaluation("two", "y", judged(2))
    (Path(evaluation("broken", "x", judged(1))) / "summary.json").write_text("{")
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "\n\nhint: " in err


def test_misspelt_metric_is_guessed(call: Call) -> None:
    """The hint names the nearest metric."""
    _, _, err = call(lines("a.jsonl", judged(1)), lines("b.jsonl", judged(2)), "--metric", "compsite")
    assert "hint: did you mean composite?" in err


def test_a_checkpoint_stands_for_the_evaluation_of_its_step(call: Call) -> None:
    """Its own, not that of the last step; without one the command that makes it is named."""
    first = evaluation("one", "length", judged(1), step=4)
    evaluation("one", "quality", judged(2, 0.1), step=9)
    other = evaluation("two", "quality", judged(3, 0.1), step=9)
    for step in (4, 7):
        Path(f"runs/one/checkpoints/step-{step:06d}").mkdir(parents=True)
    Path("runs/one/checkpoints/best").symlink_to("step-000004")
    for reference in ("runs/one/checkpoints/step-000004", "runs/one/checkpoints/best"):
        code, out, err = call(reference, other, "--format", "json")
        assert code == 0, err
        assert document(out)["a"] == {"name": "one/length-test", "files": [f"{first}/scores.jsonl"]}
    assert_refused(call("runs/one/checkpoints/step-000007", other), "smolsum eval runs/one/checkpoints/step-000007")
