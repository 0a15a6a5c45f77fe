"""`smolsum plan`, and what `smolsum report --plan` says of it: the real command line on run directories."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli
from support.calls import Call, done
from support.refusals import assert_refused, refuses
from support.reports import edit
from support.studies import CRITERIA, PATHS, judged, run

from smolsum.grpo.grid import name_suffix, variants
from smolsum.results.analysis_plan import AnalysisPlan, PlanVersion, read_plan, write_plan
from smolsum.stats.seeds import compare_runs, margin_p
from smolsum.stats.several import benjamini_hochberg, holm

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)
ARMS = ("joint=j1,runs/j2", "staged=s1,s2")
PLANNED = PlanVersion(configurations={"joint": ["j1", "j2"], "staged": ["s1", "s2"]}, metrics=["meteor", "composite"])
Shown = dict[str, Any]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two configurations of two runs, and a run that nobody planned."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, signals in {"j1": "rouge", "j2": "rouge", "s1": "meteor", "s2": "meteor", "other": "bleu"}.items():
        shift = 0.1 if signals == "meteor" else 0.0
        columns = {k: np.clip(0.5 + shift + 0.1 * rng.normal(size=12), 0, 1).tolist() for k in CRITERIA}
        columns["composite"] = np.sum(list(columns.values()), axis=0).tolist()
        columns["meteor"] = (0.3 + shift + 0.1 * rng.normal(size=12)).tolist()
        rows = judged(columns)
        means = {key: float(np.mean(values)) for key, values in columns.items()}
        root = run(Path("runs"), name, PATHS["lfm"], {"quality": [signals]}, rows, means, seed=int(name[-1] == "2"))
        edit(root / "run.json", created=(BEGAN + timedelta(hours=len(name))).isoformat())
    return Path("runs")


def report(call: Call, *flags: str) -> tuple[Shown, str]:
    """Table P1 and the text of the plan's section."""
    out, _ = done(call("report", *sorted(map(str, Path("runs").iterdir())), "--format", "json", *flags))
    page = json.loads(Path(out.strip()).read_text())
    (section,) = [one for one in page["sections"] if one["title"] == "What was planned"]
    return section["items"][0], " ".join(section["text"])


def scores(arm: list[str], metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    paths = [Path("runs") / name / "eval" / "quality-test" / "scores.jsonl" for name in arm]
    return np.array([[json.loads(line)[metric] for line in path.read_text().splitlines()] for path in paths])


def test_a_plan_is_written_with_its_hash(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout is the hash, which the file has too; runs may be still to come, and may be named by their path."""
    monkeypatch.chdir(tmp_path)
    out, _ = done(call("plan", "p.toml", *ARMS, "--metric", "meteor", "--margin", "0.02"), "1 test is planned")
    (version,) = tomli.loads(Path("p.toml").read_text())["versions"]
    assert version["hash"] == out.strip()
    assert version["configurations"] == {"joint": ["j1", "j2"], "staged": ["s1", "s2"]}
    assert (version["metrics"], version["margin"]) == (["meteor"], 0.02)
    assert read_plan(Path("p.toml")).problems([]) == []


def test_runs_of_a_grid_are_told_by_their_seeds(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that differ only in their seed are one configuration, by its seeds, however `smolsum train` came to write
    them; a name without a seed is one of its own."""
    monkeypatch.chdir(tmp_path)
    layers: dict[str, Any] = {"config_file": None, "flags": {"train.seed": 9}}
    first, second = (name_suffix(varied) for _, varied in variants(2, sets=[], **layers))
    names = (f"runs/length{second}", f"length{first}", f"length-rouge{first}", f"length-rouge{second}", "start")
    done(
        call("plan", "p.toml", *names, "other=o2,o1", "--metric", "meteor"), "length-rouge: length-rouge-seed9, length"
    )
    assert read_plan(Path("p.toml")).current.configurations == {
        "length": ["length-seed9", "length-seed10"],
        "length-rouge": ["length-rouge-seed9", "length-rouge-seed10"],
        "start": ["start"],
        "other": ["o2", "o1"],
    }


@pytest.mark.parametrize("correction", ["holm", "bh", "none"])
@pytest.mark.parametrize("margin", [None, 0.3])
def test_the_report_has_the_planned_tests_alone(correction: Any, margin: float | None, runs: Path, call: Call) -> None:
    """Table P1: b - a of each planned metric as `smolsum stats` tests it, with the planned correction."""
    planned = PlanVersion(
        configurations=PLANNED.configurations, metrics=PLANNED.metrics, correction=correction, margin=margin
    )
    write_plan(Path("p.toml"), planned, now=BEGAN)
    shown, text = report(call, "--plan", "p.toml")
    tests = [
        compare_runs(scores(["j1", "j2"], metric), scores(["s1", "s2"], metric), alternative="two-sided").result
        for metric in PLANNED.metrics
    ]
    p = [test.p if margin is None else margin_p(test, margin) for test in tests]
    decided = {"holm": holm, "bh": benjamini_hochberg, "none": list}[correction](p)
    for row, test, mine, adjusted in zip(shown["rows"], tests, p, decided, strict=True):
        cells = dict(zip(shown["columns"], row, strict=True))
        assert cells["Comparison"]["text"] == "staged - joint"
        assert cells["Δ"]["value"] == pytest.approx(test.delta)
        assert cells["p"]["value"] == pytest.approx(mine)
        assert cells["Shown"]["text"] == ("yes" if adjusted < 0.05 else "no")
    assert "before the first of its runs, and has not been changed" in text
    assert "Looked at afterwards" in text
    assert "the runs other" in text
    assert "faithfulness" in text
    assert "meteor" not in text.partition("Looked")[2]


@pytest.mark.parametrize("form", ["html", "md", "latex"])
def test_every_format_has_the_plan(form: str, runs: Path, call: Call) -> None:
    write_plan(Path("p.toml"), PLANNED, now=BEGAN)
    flags = ("--plan", "p.toml", "--format", form)
    page = Path(done(call("report", *sorted(map(str, runs.iterdir())), *flags))[0].strip()).read_text()
    for said in ("Planned tests", "Looked at afterwards", "staged"):
        assert said in page


def test_a_plan_after_the_first_run_is_said(runs: Path, call: Call) -> None:
    """Written too late, changed too late with what changed and why, and edited by hand: the report says each."""
    path = Path("p.toml")
    write_plan(path, PLANNED, now=BEGAN + timedelta(days=1))
    assert (
        "The plan was written on 2026-03-02T12:00:00+00:00, after the first of its runs"
        in report(call, "--plan", "p.toml")[1]
    )
    path.unlink()
    write_plan(path, PLANNED, now=BEGAN)
    fewer = PlanVersion(configurations=PLANNED.configurations, metrics=["meteor"], reason="the judge was replaced")
    write_plan(path, fewer, now=BEGAN + timedelta(days=2))
    text = report(call, "--plan", "p.toml")[1]
    assert "changed (metrics: meteor, composite -> meteor) on 2026-03-03" in text
    assert "Reason: the judge was replaced." in text
    path.write_text(path.read_text().replace('correction = "holm"', "").replace('"composite"', '"coverage"'))
    assert "Version 1 was edited by hand" in report(call, "--plan", "p.toml")[1]


def test_a_change_before_the_first_run_is_no_matter(runs: Path, call: Call) -> None:
    path = Path("p.toml")
    write_plan(path, PLANNED, now=BEGAN - timedelta(days=2))
    fewer = PlanVersion(configurations=PLANNED.configurations, metrics=["meteor"], reason="fewer tests")
    plan = write_plan(path, fewer, now=BEGAN - timedelta(days=1))
    assert [len(one.metrics) for one in plan.versions] == [2, 1]
    assert plan.problems([BEGAN]) == []
    assert "version 2" in report(call, "--plan", "p.toml")[1]


def test_the_order_of_versions_is_hashed() -> None:
    """Each hash follows on the one before: a version that is taken out is noticed."""
    first = PlanVersion(configurations=PLANNED.configurations, metrics=["a"], created=BEGAN.isoformat()).with_hash("")
    second = PlanVersion(configurations=PLANNED.configurations, metrics=["b"], created=BEGAN.isoformat())
    second = second.with_hash(first.hash)
    assert AnalysisPlan([first, second]).problems([]) == []
    assert len(AnalysisPlan([second]).problems([])) == 1


def test_what_was_not_run_is_said(runs: Path, call: Call) -> None:
    """A planned run that is not in the report, and a metric that the scores lack, leave their row without numbers."""
    arms = {**PLANNED.configurations, "third": ["t1"]}
    write_plan(Path("p.toml"), PlanVersion(configurations=arms, metrics=["meteor", "nothing"]), now=BEGAN)
    shown, text = report(call, "--plan", "p.toml")
    states = [row[-1]["text"] for row in shown["rows"]]
    assert states[0] in ("yes", "no")
    assert states[1:] == ["not run"] * 3
    assert "Planned, and not in this report: t1." in text
    for name in ("j1", "j2", "s1", "s2"):
        edit(runs / name / "run.json", created="")
    assert "it is not known whether the plan came first" in report(call, "--plan", "p.toml")[1]


BAD = {
    "p.toml joint=j1 staged=s1": "metric",
    "p.toml joint=j1 --metric m": "two configurations",
    "p.toml joint=j1 staged= --metric m": "'staged='",
    "p.toml joint=j1 joint=s1 --metric m": "twice",
    "p.toml a-seed1 a-seed1 b --metric m": "twice",
    "p.toml a-seed1 a=x b --metric m": "twice",
    "p.toml a,b c --metric m": "no name",
    "p.toml a-seed1 a-seed2 b-seed2 b-seed3 --metric m --matched": "b has the seeds 2, 3",
    "p.toml joint=j1 staged=j1 --metric m": "'j1'",
    "p.toml joint=j1 staged=s1 --metric m --margin 0": "--margin",
    "p.toml joint=j1,j2 staged=s1 --metric m --matched": "equally many",
    "p.toml joint=j1 staged=s1 --metric m --reason why": "--reason",
    "old.toml joint=j1,j2 staged=s1,s2 --metric meteor --metric composite": "already",
    "old.toml joint=j1 staged=s1 --metric m": "--reason",
}


@pytest.mark.parametrize(("line", "named"), BAD.items(), ids=BAD)
def test_bad_requests(line: str, named: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wrong plan has one error that says what helps, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    write_plan(Path("old.toml"), PLANNED, now=BEGAN)
    before = Path("old.toml").read_bytes()
    assert_refused(call("plan", *line.split()), named)
    assert not Path("p.toml").exists()
    assert Path("old.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "p.toml"),
        ("[", "p.toml"),
        ("versions = []", "no version"),
        ("a = 1", "versions"),
        ("[[versions]]\nmetrics = 1", "p.toml"),
        ('[[versions]]\nmetrics = ["m"]\nconfigurations = {a = ["x"], b = ["y"]}\ncreated = "soon"', "'soon'"),
    ],
)
def test_damaged_plans(content: str | None, named: str, tmp_path: Path) -> None:
    """A file that is no plan is refused, with its name."""
    path = tmp_path / "p.toml"
    if content is not None:
        path.write_text(content)
    with refuses(named):
        read_plan(path)
