"""`smolsum stats` as a user meets it: the real command line on files."""

import csv
import io
import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.calls import Call, done
from support.refusals import assert_refused

from smolsum.files import to_json
from smolsum.results.evaluate.storage import write_scores
from smolsum.stats import paired_ttest

Rows = list[dict[str, Any]]
Found = Callable[..., dict[str, Any]]


@pytest.fixture
def call(call: Call) -> Call:
    return partial(call, "stats")


@pytest.fixture
def found(call: Call) -> Found:
    """The document that `smolsum stats --format json` prints."""
    return lambda *args: dict(json.loads(done(call(*args, "--format", "json"))[0]))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Files with the scores A and B."""
    monkeypatch.delenv("COLUMNS", raising=False)
    return lines("a.jsonl", A), lines("b.jsonl", B)


def lines(path: str, rows: Rows) -> str:
    Path(path).write_bytes(b"".join(to_json(row) for row in rows))
    return path


def judged(seed: int, shift: float = 0.0, n: int = 30) -> Rows:
    """Scores as an evaluation with a judge writes them."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        faith, cover = (float(x) for x in np.clip(rng.normal(0.5 + shift, 0.15, 2), 0, 1).round(2))
        row = {"id": f"post-{i}", "text": "a summary", "faithfulness": faith, "coverage": cover}
        row |= {"rounds": {"faithfulness": [faith, faith]}, "composite": faith + cover}
        rows.append(row | {"passed": bool(faith > 0.5 and cover > 0.5)})
    return rows


A, B = judged(1), judged(2, 0.05)


def column(rows: Rows, metric: str = "composite") -> list[float]:
    return [row[metric] for row in rows]


def evaluation(run: str, label: str, rows: Rows, *, step: int = 0, test: str = "t1", seed: int = 0, **more: Any) -> str:
    """An evaluation in a run's directory as a training writes it."""
    folder = Path("runs") / run / "eval" / f"{label}-test"
    splits = {k: {"split": k, "fingerprint": v, "prompts": "p"} for k, v in (("train", "r1"), ("test", test))}
    origin = {"label": label, "step": step, "data": splits, "meteor": "wordnet", **more}
    write_scores(folder, rows, {}, origin, "again")
    config = f'[run]\nname = "{run}"\n[train]\nseed = {seed}\nprompts_per_step = 4\n[stages.{run.split("-")[0]}]\n'
    (folder.parents[1] / "config.toml").write_text(config)
    return str(folder)


def test_json_holds_every_number(found: Found, pair: tuple[str, str]) -> None:
    """--paired gives b - a of every metric, as the functions and SciPy compute it."""
    page = found("--paired", *pair)
    assert (page["schema_version"], page["kind"], page["direction"]) == (1, "paired", "b - a")
    assert (page["alternative"], page["examples"], page["tests"]) == ("two-sided", 30, 4)
    assert page["a"] == {"name": "a.jsonl", "files": ["a.jsonl"]}
    rows = {row["metric"]: row for row in page["results"]}
    assert list(rows) == ["faithfulness", "coverage", "composite", "passed"]
    one, two = column(A), column(B)
    expected = paired_ttest(one, two)
    row = rows["composite"]
    for key in ("n", "missing", "mean_a", "mean_b", "delta", "sd", "t", "df", "p", "ci_low", "ci_high", "d_z"):
        assert row[key] == pytest.approx(getattr(expected, key)), key
    assert row["wilcoxon_p"] == pytest.approx(stats.wilcoxon(np.round(np.subtract(two, one), 9)).pvalue)
    assert 0 < row["sign_flip_p"] <= 1
    assert row["bootstrap_low"] < row["delta"] < row["bootstrap_high"]
    assert row["p"] < row["p_holm"] <= 1
    assert row["gained"] is None
    flips = list(zip(column(A, "passed"), column(B, "passed"), strict=True))
    assert rows["passed"]["gained"] == flips.count((False, True))
    assert rows["passed"]["lost"] == flips.count((True, False))
    assert rows["passed"]["mcnemar_p"] <= 1


def test_two_files_are_a_pair(call: Call, found: Found, pair: tuple[str, str]) -> None:
    """Two scores without a flag are compared as with --paired, and the ids pair them, not their order."""
    assert call(*pair)[1] == call("--paired", *pair)[1].replace("--paired", "")
    assert found("a.jsonl", lines("c.jsonl", B[::-1]))["results"] == found(*pair)["results"]


def test_ids_may_be_numbers_or_text(found: Found) -> None:
    """1 and "1" are the same id; a last line without its end counts."""
    lines("a.jsonl", [{"id": 1, "x": 1}, {"id": 2, "x": 2}, {"id": 3, "x": 4}])
    Path("b.jsonl").write_text('{"id": "2", "x": 3}\n\n{"id": "1", "x": 3}\n{"id": "3", "x": 5}')
    (row,) = found("a.jsonl", "b.jsonl")["results"]
    assert (row["n"], row["delta"]) == (3, pytest.approx(4 / 3))


def test_tables_fit_their_columns(call: Call, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are plain text of at most 80 columns, and say direction, sides, alternative and number of tests. Where
    COLUMNS is smaller, the last columns are left out, and stderr names them."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines("a.jsonl", [{**row, "repeated_trigrams": 0.01 * i} for i, row in enumerate(A)])
    lines("b.jsonl", [{**row, "repeated_trigrams": 0.011 * i * i} for i, row in enumerate(B)])
    code, out, err = call(*pair)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    said = " ".join(out.split())
    parts = ("a = a.jsonl", "b = b.jsonl", "b - a", "30 examples", "two-sided paired t-test", "all 5 tests")
    assert [part for part in parts if part not in said] == []
    monkeypatch.setenv("COLUMNS", "50")
    out, _ = done(call(*pair), "(not shown in 50 columns: ")
    assert max(len(line) for table in out.split("\n\n")[1:4] for line in table.splitlines()) <= 50


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
        "ok      0.2000  0.6000  +0.4000  -0.2801, 1.0000  1.6330  0.1778",
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
    lines("a.jsonl", [{"id": i, "a|b": x} for i, x in enumerate([0, 0, 0, 0, 0])])
    lines("b.jsonl", [{"id": i, "a|b": x} for i, x in enumerate([1, 2, 3, 4, 5])])
    out, _ = done(call("a.jsonl", "b.jsonl", "--format", "md"))
    assert "| metric | a | b | b - a | 95 % interval | t | p |\n| --- | --- | --- | --- | --- | --- | --- |\n" in out
    assert "| a\\|b | 0.0000 | 3.0000 | +3.0000 | 1.0368, 4.9632 | 4.2426 | 0.0132 \\* |" in out


def test_csv(call: Call, found: Found, pair: tuple[str, str]) -> None:
    """CSV holds the unrounded rows alone; what else there is to say goes to stderr."""
    out, _ = done(call(*pair, "--format", "csv"), "two-sided paired t-test")
    rows = list(csv.DictReader(io.StringIO(out)))
    results = found(*pair)["results"]
    assert [(row["metric"], float(row["t"])) for row in rows] == [(row["metric"], row["t"]) for row in results]
    assert rows[0]["gained"] == ""


def test_missing_values_are_counted_gaps(call: Call, found: Found) -> None:
    """null, NaN, infinity and an absent field leave their pair out of that metric, and the report says so."""
    a, b = judged(1), judged(2, 0.05)
    a[0]["coverage"] = None
    del b[1]["coverage"]
    text = "".join(json.dumps(row) + "\n" for row in b).replace(f'"coverage": {b[2]["coverage"]}', '"coverage": NaN', 1)
    Path("b.jsonl").write_text(text)
    rows = {row["metric"]: row for row in found(lines("a.jsonl", a), "b.jsonl")["results"]}
    assert rows["coverage"]["missing"] >= 2
    assert rows["coverage"]["n"] + rows["coverage"]["missing"] == 30
    assert rows["faithfulness"]["missing"] == 0
    assert "missing: pairs left out of that metric alone" in call("a.jsonl", "b.jsonl")[1]


def test_no_spread_is_said(call: Call, found: Found) -> None:
    """Identical scores and constant differences are put in words; JSON has null for what is undefined."""
    a = [{"id": i, "same": 1.0, "more": float(i)} for i in range(5)]
    names = lines("a.jsonl", a), lines("b.jsonl", [{**row, "more": row["more"] + 0.1} for row in a])
    out = call(*names)[1]
    assert "same: a and b are equal in every pair" in out
    assert "more: every pair differs by the same amount" in out
    same, more = found(*names)["results"]
    assert (same["note"], same["t"], same["p"]) == ("identical", None, 1.0)
    assert (more["note"], more["t"], more["p"], more["sign_flip_p"]) == ("constant", None, None, 2 / 32)


def test_one_sided(call: Call, found: Found, pair: tuple[str, str]) -> None:
    """--alternative is taken and stated; the open end of its interval is null."""
    two, one = (found(*pair, "--alternative", side) for side in ("two-sided", "greater"))
    assert one["alternative"] == "greater"
    assert one["results"][2]["p"] == pytest.approx(two["results"][2]["p"] / 2)
    assert one["results"][2]["ci_high"] is None
    assert "greater paired t-test: b is greater than a" in " ".join(call(*pair, "--alternative", "greater")[1].split())


def test_metric_selects(found: Found, pair: tuple[str, str]) -> None:
    """--metric keeps to what was asked, in that order, and so the number of tests small."""
    page = found(*pair, "--metric", "composite", "--metric", "coverage")
    assert ([row["metric"] for row in page["results"]], page["tests"]) == (["composite", "coverage"], 2)


def test_runs_are_found_by_name(call: Call, found: Found) -> None:
    """A run stands for the evaluation of its last step, which stderr names; its eval folder and each in it work too."""
    evaluation("one", "start", A, step=0)
    last = evaluation("one", "quality", judged(2, 0.1), step=9)
    other = evaluation("two", "quality", judged(3, 0.1), step=9)
    page = found("one", "two")
    done(call("one", "two"), "one: quality-test")
    assert page["a"] == {"name": "one", "files": [f"{last}/scores.jsonl"]}
    assert (page["split"], page["data"]) == ("test", "t1")
    for reference in ("runs/one", "runs/one/eval", last, f"{last}/scores.jsonl"):
        assert found(reference, other)["results"] == page["results"]
    assert found("runs/one/eval/start-test", "runs/one")["a"]["name"] == "one/start-test"


def test_a_run_stands_for_its_own_evaluation(call: Call, found: Found) -> None:
    """Other data, another split and samples of the last step are not taken, and stderr names them."""
    own = evaluation("one", "quality", judged(2, 0.1), step=9)
    data = {"test": {"split": "test", "fingerprint": "t1", "prompts": "p"}}
    Path("runs/one/run.json").write_text(json.dumps({"data": data}))
    evaluation("one", "zz", judged(3, 0.4), step=9, test="t2", judge="judge-a", sampler="greedy")
    evaluation("one", "warm", judged(4, 0.4), step=9, sampler="temperature 1, seed 0", split="test")
    assert found("one", lines("b.jsonl", A))["a"] == {"name": "one", "files": [f"{own}/scores.jsonl"]}
    named = ("one: quality-test", "not taken: ", "warm-test (temperature 1, seed 0), zz-test (other data)")
    done(call("one", "b.jsonl"), *named)
    shutil.rmtree(own)
    assert_refused(call("one", "b.jsonl"), "warm-test", "zz-test")  # neither of what remains is the run's own
    shutil.rmtree("runs/one/eval/warm-test")
    assert "one: zz-test, the evaluation of its last step (other data)" in call("one", "b.jsonl")[2]


def test_baseline_and_many(call: Call, found: Found) -> None:
    """--vs-baseline adjusts over all runs and metrics together, and gives each metric a table of runs. One that is 0 or
    1 has its changes and McNemar's p for each run; all as with the two alone."""
    base = evaluation("base", "length", judged(0))
    for number in (1, 2, 3):
        evaluation(f"run{number}", "quality", judged(number, 0.06 * number))
    metrics = [flag for name in ("coverage", "passed") for flag in ("--metric", name)]
    args = ("--vs-baseline", base, "run1", "run2", "run3", *metrics)
    page = found(*args)
    assert (page["kind"], page["tests"]) == ("vs-baseline", 6)
    p = np.array([row["p"] for row in page["results"]])
    assert [row["p_bh"] for row in page["results"]] == pytest.approx(stats.false_discovery_control(p).tolist())
    assert min(row["p_holm"] for row in page["results"]) == pytest.approx(6 * p.min())
    keys = ("metric", "delta", "t", "p", "gained", "lost", "mcnemar_p")
    alone, many = (
        [[row[key] for key in keys] for row in rows]
        for rows in (found(base, "run2", *metrics)["results"], page["results"])
    )
    assert [row for row in many if row in alone] == alone
    assert alone[1][4] > alone[1][5]  # more passed than before
    assert alone[0][4:] == [None] * 3
    table = call(*args)[1]
    assert max(len(line) for line in table.splitlines() if line.startswith("run")) <= 100
    said = " ".join(table.split())
    parts = ("coverage, baseline ", "all 6 tests", "passed, changes run gained lost McNemar run1", "McNemar's exact p")
    assert [part for part in parts if part not in said] == []
    assert "coverage, changes" not in said


def test_seeds_of_a_configuration_become_one(call: Call, found: Found) -> None:
    """Runs that differ in name and seed alone are one row with the spread between them; the same seed twice is not."""
    base = evaluation("base", "length", judged(0))
    for seed in (1, 2, 3):
        evaluation(f"meteor-s{seed}", "quality", judged(seed, 0.1), seed=seed)
    evaluation("rouge-s1", "quality", judged(9, 0.1), seed=1)
    args = ("--vs-baseline", base, "meteor-s1", "meteor-s2", "rouge-s1", "meteor-s3", "--metric", "composite")
    out, _ = done(call(*args), "meteor-s1 x3: ", ": meteor-s1, meteor-s2, meteor-s3")
    assert "between runs" in out
    together, alone = found(*args)["results"]
    assert (together["run"], alone["run"]) == ("meteor-s1 x3", "rouge-s1")
    means = [np.mean(column(judged(seed, 0.1))) for seed in (1, 2, 3)]
    assert together["mean_b"] == pytest.approx(np.mean(means))
    assert together["run_sd_b"] == pytest.approx(np.std(means, ddof=1))
    assert alone["run_sd_b"] is None
    evaluation("meteor-s3", "quality", judged(3, 0.1), seed=2)
    assert [row["run"] for row in found(*args)["results"]] == ["meteor-s1", "meteor-s2", "meteor-s3", "rouge-s1"]


def test_strategy_against_strategy(call: Call, found: Found) -> None:
    """Runs joined by commas are a side under its name; --matched pairs them in order."""
    for number in (1, 2, 3):
        evaluation(f"j{number}", "end", judged(number, 0.05 * number))
        evaluation(f"s{number}", "end", judged(number + 10, 0.05 * number + 0.1))
    sides = "joint=j1,j2,j3", "staged=runs/s1,runs/s2,runs/s3"
    page = found("--paired", "--matched", *sides, "--metric", "composite")
    assert (page["a"]["name"], page["b"][0]["name"], page["matched"]) == ("joint", "staged", True)
    row = page["results"][0]
    deltas = [np.mean(column(judged(k + 10, 0.05 * k + 0.1))) - np.mean(column(judged(k, 0.05 * k))) for k in (1, 2, 3)]
    assert row["delta"] == pytest.approx(np.mean(deltas))
    assert row["run_sd_delta"] == pytest.approx(np.std(deltas, ddof=1))
    table = " ".join(call("--matched", *sides)[1].split())
    assert "p these runs" in table
    assert "count runs and examples as samples" in table


@pytest.mark.parametrize("flags", [("--paired",), ("--matched",), ("--vs-baseline", "w=x,y")])
def test_nothing_is_starred_that_forgets_runs(call: Call, found: Found, flags: tuple[str, ...]) -> None:
    """Runs that vary widely, each far from the others on every example: the test finds nothing, and no column next to
    it may claim more by counting examples only."""
    for run, seed, shift in (("x", 1, 0.0), ("y", 1, 0.1), ("t0", 2, 0.05), ("t1", 2, 0.4)):
        evaluation(run, "end", judged(seed, shift))
    whole = [] if flags[0] == "--vs-baseline" else ["whole=x,y"]
    args = (*flags, *whole, "lora=t0,t1", "--metric=composite", "--metric=passed")
    shown, notes = done(call(*args))[0].split("\n* p < 0.05")
    assert "p these runs" in shown
    assert "*" not in shown
    assert not [name for name in ("Wilcoxon", "sign flip", "bootstrap", "McNemar") if name in shown + notes]
    for row in found(*args)["results"]:
        assert row["p_these_runs"] < 0.05 < row["p"]
        names = ("wilcoxon_p", "sign_flip_p", "bootstrap_low", "bootstrap_high", "gained", "lost", "mcnemar_p")
        assert {row.get(name) for name in names} == {None}


def test_the_head_names_a_judge_that_all_have(call: Call) -> None:
    """With scores of one judge and scores without any, what is compared was not judged."""
    evaluation("one", "end", A, judge="m, 5 rounds")
    evaluation("two", "end", B)
    assert "m, 5 rounds" not in call("one", "two")[1]
    evaluation("two", "end", B, judge="m, 5 rounds")
    assert "m, 5 rounds" in call("one", "two")[1]


def test_correlation(call: Call, found: Found, pair: tuple[str, str]) -> None:
    """--correlation pools all files, with the caveat next to it."""
    lines("b.jsonl", judged(2, 0.3))
    rows = A + judged(2, 0.3)
    results = found("--correlation", *pair)["results"]
    assert len(results) == math.comb(4, 2)
    first = results[0]
    assert (first["x"], first["y"], first["n"]) == ("faithfulness", "coverage", 60)
    assert first["r"] == pytest.approx(stats.pearsonr(column(rows, "faithfulness"), column(rows, "coverage")).statistic)
    assert first["r_within"] < first["r"]
    assert "not independent" in " ".join(call("--correlation", *pair)[1].split())


def test_runs_that_repeat_are_left_out(call: Call, found: Found) -> None:
    """`runs/*` has the baseline and the link to the newest run in it: neither is compared twice, and stderr says so."""
    evaluation("base", "length", judged(0))
    evaluation("one", "quality", A)
    Path("runs/latest").symlink_to("one")
    args = ("--vs-baseline", "base", "runs/base", "runs/latest", "runs/one")
    done(call(*args), "base: left out, as it is base\none: left out, as it is one\n")
    assert {row["run"] for row in found(*args)["results"]} == {"one"}
    assert_refused(call("--vs-baseline", "base", "runs/base"), "nothing to compare", "itself")


def test_scores_of_other_examples_are_refused(call: Call, pair: tuple[str, str]) -> None:
    """With the ids that each side lacks; another split, data, judge or target of the task: every difference is named.
    Another prompt is a fair question."""
    lines("b.jsonl", [*A[8:], {"id": "new", "coverage": 1}])
    assert_refused(call(*pair), "lacks 8 ids: post-0, post-1, post-2, post-3, post-4, …", "lacks 1 ids: new")
    task = {"name": "any", "system_prompt": "Do it.", "target": 64, "width": 5}
    a = evaluation("a", "end", A, judge="gpt, 5 rounds", task=task)
    b = evaluation("b", "end", A, test="t2", judge="local, 5 rounds", split="test", task=task | {"target": 40})
    differences = ("t1 against t2", "gpt, 5 rounds against local, 5 rounds", "target 64 against target 40")
    assert_refused(call(a, b), *differences)
    other_split = lines("c.jsonl", [{**row, "split": "validation"} for row in A])
    assert_refused(call(b, other_split), "split test against validation")
    done(call(a, evaluation("c", "end", B, judge="gpt, 5 rounds", task=task | {"system_prompt": "Do it well."})))


def test_what_is_not_known_of_both_sides_is_warned_about(call: Call) -> None:
    """A file that does not state its split or data, and metrics in one file only, which are left out."""
    a = evaluation("a", "end", A)
    done(call(a, lines("b.jsonl", B)), "warning: b.jsonl does not state its split", "b.jsonl does not state its data")
    with_more = lines("c.jsonl", [{**row, "extra": 1.0} for row in B])
    done(call("b.jsonl", with_more), "not compared: extra")


@pytest.mark.parametrize(
    ("key", "values"),
    [("tokenizer", "ab"), ("max_new_tokens", (9, 80)), ("sampler", "st"), ("meteor", ("wordnet", "exact"))],
)
def test_what_else_differs_is_warned_about(key: str, values: Any, call: Call) -> None:
    """Other tokens, another limit, sampler or match of METEOR make no other examples, but the reader has to know."""
    one, two = (evaluation(name, "end", A, **{key: value}) for name, value in zip("ab", values, strict=True))
    _, err = done(call(one, two), f": {values[0]} against {values[1]}")
    assert err.count("warning: ") == 1


BAD_FILES = [
    ('{"id": 1, "x": 1}\n{"id": 2, "x": }\n', "bad.jsonl:2"),
    ('{"id": 1, "x": 1}\n[1]\n', "bad.jsonl:2"),
    ('{"id": 1, "x": 1}\n{"x": 2}\n', "bad.jsonl:2 is damaged: it has no id"),
    ('{"id": 1, "x": 1}\n{"id": true, "x": 2}\n', "bad.jsonl:2 is damaged: id is 'True'"),
    ('{"id": 1, "x": 1}\n{"id": 2, "x": 1}\n{"id": "1", "x": 2}\n', "bad.jsonl:3 has the id '1' again"),
    ('{"id": 1, "x": 1}\n{"id": 2, "x": "one"}\n', "bad.jsonl:2 has \"one\" in 'x'"),
    ('{"id": 1, "x": "one"}\n', "bad.jsonl has no numeric field"),
    ("\n \n", "bad.jsonl has no lines"),
    ('{"id": 1, "x": 1, "split": "a"}\n{"id": 2, "x": 1, "split": "b"}\n', "split: a, b"),
    ('{"id": 1, "x": 1e308}\n', "bad.jsonl:1 has a number in 'x'"),
    ('{"id": 1, "x": 1' + "0" * 400 + "}\n", "bad.jsonl:1 has a number in 'x'"),
    ("\ufeff[", "bad.jsonl:1"),
    ("[" * 100_000, "bad.jsonl:1"),
]


@pytest.mark.parametrize(("content", "named"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(content: str, named: str, call: Call) -> None:
    Path("bad.jsonl").write_text(content)
    assert_refused(call("bad.jsonl", lines("b.jsonl", A)), "bad.jsonl", named)


def test_a_document_that_is_not_json_lines(call: Call) -> None:
    """Another tool's results, such as the study's: what was expected is shown."""
    Path("rollouts.json").write_text(json.dumps([{"idx": 0, "geval_composite": 0.5}], indent=1))
    assert_refused(call("rollouts.json", lines("b.jsonl", A)), "rollouts.json", '{"id": "post-1", "meteor": 0.31}')


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("a.jsonl none.jsonl", "'none.jsonl'"),
        ("a.jsonl", "two scores, not 1"),
        ("a.jsonl b.jsonl a.jsonl", "two scores, not 3"),
        ("a.jsonl b.jsonl --paired --correlation", "--paired and --correlation"),
        ("a.jsonl b.jsonl --correlation --matched", "--matched"),
        ("a.jsonl b.jsonl --metric compsite", "'compsite'\n\nhint: did you mean composite?"),
        ("a.jsonl s=b.jsonl,b.jsonl", "the same scores twice"),
        ("a.jsonl s=b.jsonl,c.jsonl --matched", "1 against 2"),
        ("a.jsonl empty", "scores.jsonl"),
        ("a.jsonl x.jsonl", "no metric is in all files"),
        ("a.jsonl runs/two", "x-test, y-test"),
        ("a.jsonl runs/broken", "summary.json"),
        ("a.jsonl b.jsonl --format xml", "'--format'"),
        ("a.jsonl b.jsonl --alternative more", "'--alternative'"),
        ("", "no scores"),
    ],
)
def test_bad_requests(line: str, named: str, call: Call, pair: tuple[str, str]) -> None:
    """A request that cannot be meant exits with 2, says why and what to do."""
    lines("c.jsonl", judged(3))
    lines("x.jsonl", [{"id": f"post-{i}", "x": i} for i in range(30)])
    Path("empty").mkdir()
    evaluation("two", "x", A)
    evaluation("two", "y", B)
    (Path(evaluation("broken", "x", A)) / "summary.json").write_text("{")
    assert_refused(call(*line.split()), named)


def test_a_checkpoint_stands_for_the_evaluation_of_its_step(call: Call, found: Found) -> None:
    """Its own, not that of the last step; without one the command that makes it is named."""
    first = evaluation("one", "length", judged(1), step=4)
    evaluation("one", "quality", judged(2, 0.1), step=9)
    other = evaluation("two", "quality", judged(3, 0.1), step=9)
    for step in (4, 7):
        Path(f"runs/one/checkpoints/step-{step:06d}").mkdir(parents=True)
    Path("runs/one/checkpoints/best").symlink_to("step-000004")
    for reference in ("runs/one/checkpoints/step-000004", "runs/one/checkpoints/best"):
        assert found(reference, other)["a"] == {"name": "one/length-test", "files": [f"{first}/scores.jsonl"]}
    assert_refused(call("runs/one/checkpoints/step-000007", other), "smolsum eval runs/one/checkpoints/step-000007")
