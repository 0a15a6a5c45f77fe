"""Runs with one thing wrong: each is named or does no harm, and never stops the report of the others."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli
import tomli_w
from support.calls import Call, done
from support.reports import edit, edit_lines, read, tables
from support.studies import JUDGE, PATHS, evaluation, judged, run

from smolsum.results.report.build import build
from smolsum.results.report.collect import ReportInputs, gather
from smolsum.results.report.compatibility import comparable
from smolsum.results.report.document import Table
from smolsum.results.report.sections.training import change_tables
from smolsum.results.report.write import to_html

WEIGHTS = {"path": PATHS["lfm"], "dtype": "bfloat16", "weights": "w1"}
SWAPS = (None, 7, -1, 1e300, math.nan, "x", [1], [], {"x": 1}, True)
"""what a field becomes"""
FILES = {
    "summary": "eval/quality-test/summary.json",
    "run": "run.json",
    "status": "status.json",
    "scores": "eval/quality-test/scores.jsonl",
    "metrics": "metrics.jsonl",
    "asked": "completions/step-000001.jsonl",
}


def columns(shift: float) -> dict[str, list[float]]:
    """Judged scores of four examples."""
    steps = [0.0, 0.1 + shift, -0.1 - shift * shift, 0.2 - shift]
    found = {k: [0.5 + shift + step for step in steps] for k in ("faithfulness", "coverage", "conciseness", "clarity")}
    found["composite"] = [2 + 4 * (shift + step) for step in steps]
    return found | {"passed": [0.0, 1.0, 0.0, 1.0], "meteor": [0.3 + shift + step for step in steps]}


def metrics(shift: float) -> dict[str, Any]:
    """Their means."""
    found: dict[str, Any] = {key: math.fsum(values) / 4 for key, values in columns(shift).items()}
    return found | {"completions/mean_length": 60.0, "length/within_tol": 0.5, "errors/copied": None}


def trained(folder: Path, name: str, shift: float, stages: dict[str, list[str]], **more: Any) -> Path:
    """A run of one or two stages."""
    return run(folder, name, PATHS["lfm"], stages, judged(columns(shift)), metrics(shift), **more)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of one model: length only, one whose files are damaged, another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMOLSUM_RUNS_DIR", raising=False)
    folder = tmp_path / "runs"
    trained(folder, "length", 0.0, {"length": ["length"]})
    trained(folder, "odd", 0.1, {"length": ["length"], "quality": ["meteor"]})
    trained(folder, "other", 0.05, {"length": ["length"], "quality": ["bleu"]})
    return folder


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field; of a list of its first entry."""
    if before:
        yield before
    inside = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*before, key))


def swapped(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    """The same with another value at a place."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = by
    return changed


def draw(inputs: ReportInputs, folder: Path) -> None:
    """Write a report to nowhere; no number in it is NaN."""
    text = to_html(build(inputs), folder)
    assert "+nan" not in text
    assert ">nan<" not in text


def report(folder: Path) -> ReportInputs:
    """Read all runs, and write a report that has all of them to nowhere."""
    inputs = read(folder)
    if not inputs.left_out:  # what is left out is in no table
        draw(inputs, folder)
    return inputs


@pytest.fixture
def written(runs: Path, call: Call) -> Callable[[str], str]:
    """What the command says on stderr that reports all runs in a format."""
    return lambda form: done(call("report", *sorted(runs.iterdir()), "--format", form))[1]


def items() -> list[dict[str, Any]]:
    """All that the report has, as JSON."""
    sections = json.loads(Path("report/report.json").read_text())["sections"]
    return [item for section in sections for item in section["items"]]


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some reports", "all reports"]
)
@pytest.mark.parametrize("name", FILES)
def test_any_field_of_another_type(runs: Path, name: str, every: bool) -> None:
    """One field at a time: the run is in the report, or it alone is named. Every change is read. Drawing takes time:
    the slow test draws every change, the other one change of each field, and of every third field inside another."""
    path = runs / "odd" / FILES[name]
    first, *rest = path.read_bytes().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_bytes()]
    content = json.loads(first)
    others = gather([str(runs / "length"), str(runs / "other")], runs)
    named = 0
    for number, place in enumerate(places(content)):
        swaps = SWAPS if len(place) == 1 else SWAPS[len(str(place)) % 3 :: 3]
        begin, wanted = number % len(swaps), every or len(place) == 1 or number % 3 == 0
        for by in swaps[begin:] + swaps[:begin]:
            path.write_bytes(json.dumps(swapped(content, place, by)).encode() + b"\n" + b"".join(rest))
            try:
                odd = gather([str(runs / "odd")], runs)
                trained_runs = sorted((*others.trained, *odd.trained), key=lambda one: one.name)
                inputs = comparable(replace(odd, trained=tuple(trained_runs)))
                if not inputs.left_out and wanted:
                    draw(inputs, runs)
                    wanted = every
            except Exception as error:
                raise AssertionError(f"{name}: {place} = {by!r}") from error
            out = [one for one in inputs.left_out if "odd" in one.name]
            assert len(inputs.trained) == 3 - len(out), (place, by)
            assert len(out) == len(inputs.left_out) or not out, (place, by)
            named += len(out)
    assert named or name in ("metrics", "asked")


@pytest.mark.parametrize("name", ["config.toml", "status.json", "run.json", "metrics.jsonl"])
def test_a_file_that_cannot_be_read(runs: Path, name: str) -> None:
    (runs / "odd" / name).unlink()
    (runs / "odd" / name).mkdir()
    (out,) = report(runs).left_out
    assert (out.name, out.reason.startswith("malformed: "), name in out.reason) == ("odd", True, True)


def test_a_section_of_the_settings_that_is_not_a_table(runs: Path) -> None:
    path = runs / "odd" / "config.toml"
    config = tomli.loads(path.read_text())
    for section in config:
        path.write_text(tomli_w.dumps({**config, section: 7}))
        (out,) = read(runs).left_out
        assert (out.name, f"malformed: {path}" in out.reason) == ("odd", True), section


def test_scores_that_are_no_numbers(runs: Path) -> None:
    path = runs / "odd" / FILES["scores"]
    path.write_text(path.read_text().replace('"composite":', '"composite":NaN,"was":'))
    (out,) = report(runs).left_out
    assert "scores.jsonl:1 has nan in 'composite', which is not a finite number" in out.reason


def test_one_more_judge_costs_no_run(runs: Path) -> None:
    """The judge of most runs is that of the report, whatever else judged one of them."""
    rows = [{**row, "judge": "zeta, 1 round"} for row in judged(columns(0.4))]
    folder = runs / "odd" / "eval" / "zeta-test"
    evaluation(folder, rows, metrics(0.4), model=WEIGHTS, step=8, judge="zeta, 1 round")
    inputs = report(runs)
    assert not inputs.left_out
    assert {one.last.judge for one in inputs.trained} == {JUDGE}


def test_an_evaluation_of_other_data_costs_no_run(runs: Path, written: Callable[[str], str]) -> None:
    """The run is represented by its own data whatever sorts last; the other has a table, with its figures."""
    for name in ("length", "other", "odd"):
        edit(runs / name / "run.json", data={"test": {"split": "test", "fingerprint": "d1", "prompts": "p1"}})
    before = [run.last.folder for run in report(runs).trained]
    rows = [{**row, "data": "d2"} for row in judged(columns(0.4))]
    theirs = {"test": {"split": "test", "fingerprint": "d2", "prompts": "p2"}}
    for name, more in (("zz-test", {"data": theirs}), ("zz-validation", {"split": "validation", "data": {}})):
        evaluation(runs / "odd" / "eval" / name, rows, metrics(0.4), model=WEIGHTS, step=8, **more)
    inputs = report(runs)
    assert not inputs.left_out
    assert [run.last.folder for run in inputs.trained] == before
    assert "left out" not in written("json")
    (table,) = [item for item in items() if item.get("table") == "S10a"]
    named = [[cell["text"] for cell in row[:4]] for row in table["rows"]]
    assert named == [["odd/zz-test", "8", "other data", "4"], ["odd/zz-validation", "8", "validation split", "4"]]


@pytest.mark.parametrize(("kept", "reason"), [(0, "has no steps of 8"), (5, "ends at step 5 of 8")])
def test_metrics_that_were_cut(runs: Path, written: Callable[[str], str], kept: int, reason: str) -> None:
    """The run stays in the tables of scores, is in no curve, and that is said on stderr and in the report."""
    path = runs / "odd" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    if not kept:
        path.unlink()
    assert f"metrics.jsonl of odd {reason}: the run is in no curve, its cost unknown" in written("md")
    assert reason in Path("report/report.md").read_text()


def test_what_differs_aside_is_named(runs: Path) -> None:
    data = {"test": {"split": "test", "fingerprint": "d1", "prompts": "p2"}}
    edit(runs / "odd" / FILES["summary"], max_new_tokens=32, meteor="exact+stem", data=data)
    edit(runs / "other" / FILES["summary"], max_new_tokens=128)
    inputs = report(runs)
    assert len(inputs.trained) == 3
    assert len(inputs.notices) == 3
    assert "32 in odd; 128 in other" in inputs.notices[0]
    assert "exact+stem in odd; wordnet in length, other" in inputs.notices[1]
    assert "p2 in odd; p1 in length, other" in inputs.notices[2]


def set_task(folder: Path, **task: Any) -> Path:
    """Let the evaluation of a run, or one in a folder, say what its measures depend on; the evaluation's folder."""
    (path,) = [*folder.glob("eval/*/summary.json"), *folder.glob("summary.json")]
    settings = {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5, "system_prompt": "Be brief."} | task
    edit(path, task=settings)
    return path.parent


def test_what_is_measured_otherwise_is_left_out(runs: Path) -> None:
    """Another reader or word limit is named, of a run and of a baseline; another prompt is no other measure."""
    for name in ("length", "other", "odd"):
        set_task(runs / name, reader="a", system_prompt=name)
    assert not report(runs).left_out
    shutil.copytree(runs / "other" / "eval" / "quality-test", runs / "baseline")
    set_task(runs / "baseline", reader="b")
    edit(runs / "baseline" / "summary.json", step=None)
    set_task(runs / "odd", reader="a", max_words=9)
    baseline, odd = sorted(report(runs).left_out, key=lambda one: one.name)
    assert (odd.name, baseline.name) == ("odd", "baseline")
    assert odd.reason.startswith("mixed: ")
    assert odd.reason.endswith(": task.max_words 9, theirs not set")
    assert baseline.reason.endswith(": task.reader b, theirs a")


def test_an_evaluation_of_a_run_that_is_measured_otherwise(runs: Path) -> None:
    """Nothing of a run is compared with what another reader said of it; the run stays."""
    for name in ("length", "other", "odd"):
        own = set_task(runs / name, reader="a")
    shutil.copytree(own, again := own.with_name("again-test"))
    set_task(again, reader="b")
    inputs = report(runs)
    assert [(one.name, "task.reader b, theirs a" in one.reason) for one in inputs.left_out] == [
        ("odd/again-test", True)
    ]
    (run,) = [run for run in inputs.trained if run.paths.name == "odd"]
    assert [e.folder.name for e in run.evaluations] == [own.name]


def test_a_tie_is_called_one(runs: Path) -> None:
    shutil.rmtree(runs / "length")
    path = runs / "other" / "config.toml"
    path.write_text(path.read_text().replace("target_tokens = 64", "target_tokens = 32"))
    (out,) = report(runs).left_out
    assert "task.target_tokens 32, theirs 64" in out.reason
    assert "a tie, 1 to 1" in out.reason


@pytest.mark.parametrize(
    ("form", "name", "signs"),
    [
        ("html", "report.html", "a\\x1b[31mb\\x00c\\u202ed"),
        ("md", "report.md", "a\\\\x1b\\[31mb\\\\x00c\\\\u202ed"),
        ("latex", "report.tex", "a\\textbackslash{}x1b[31mb\\textbackslash{}x00c\\textbackslash{}u202ed"),
    ],
)
def test_control_characters_are_signs(
    runs: Path, written: Callable[[str], str], form: str, name: str, signs: str
) -> None:
    """Nothing that a completion holds steers a terminal, a browser or LaTeX; JSON has it whole."""
    path, text = runs / "odd" / FILES["scores"], "a\x1b[31mb\x00c\u202ed"
    path.write_text(path.read_text().replace('"summary 0"', json.dumps(text)))
    written(form)
    found = Path("report", name).read_text()
    assert signs in found
    assert not {"\x1b", "\x00", "\u202e"} & set(found)
    written("json")
    assert text in [cell["text"] for item in items() for row in item.get("rows", []) for cell in row]


def judge_half(path: Path, half: int) -> None:
    """Keep the composite of every other example of a scores file."""
    edit_lines(path, lambda place, row: row if place % 2 == half else {**row, "composite": None})


def test_prompts_without_a_common_example_are_not_compared(runs: Path) -> None:
    """Both baselines were judged, but on different examples: the row of the composite is empty, and no cell is NaN."""
    for half, prompt in enumerate(("50-words", "64-tokens")):
        folder = runs / f"baseline-{prompt}"
        evaluation(folder, judged(columns(0.1)), metrics(0.1), model=WEIGHTS)
        judge_half(folder / "scores.jsonl", half)
    inputs = report(runs)
    rows = {row[0].text: row[1:] for row in tables(build(inputs))["5"].rows}
    assert all(cell.command for cell in rows["Composite"])
    assert not any(cell.command for cell in rows["Clarity"])


def test_strategies_without_a_common_example_are_not_tested(runs: Path) -> None:
    """The best of both strategies were judged, but on different examples: no test, and the cells say why."""
    trained(runs, "joint", 0.2, {"included": ["length", "meteor"]})
    judge_half(runs / "odd/eval/quality-test/scores.jsonl", 0)
    judge_half(runs / "joint/eval/included-test/scores.jsonl", 1)
    shutil.rmtree(runs / "other")
    (row,) = tables(build(read(runs)))["14"].rows
    tested = row[3:]
    assert [cell.text for cell in row[:3]] == [
        "LFM2.5-350M", "2.590 (quality-meteor)", "2.960 (length-quality-meteor)"
    ]  # fmt: skip
    assert {cell.text for cell in tested} == {"no example has both scores"}
    assert all("smolsum eval" in cell.command and "--judge judge-a" in cell.command for cell in tested)
    report(runs)


def test_a_run_whose_evaluations_share_no_example_says_so(runs: Path) -> None:
    """Its first and last evaluation were judged, each on other examples: Table S11 has no test of them."""
    start = shutil.copytree(runs / "other/eval/quality-test", runs / "other/eval/start-test")
    edit(start / "summary.json", step=0)
    for half, stage in enumerate(("start", "quality")):
        judge_half(runs / f"other/eval/{stage}-test/scores.jsonl", half)
    table = change_tables(read(runs))[0]
    rows = {name.text: [cell.text for cell in rest] for _, name, *rest in table.rows}
    assert set(rows["other"]) == {"no example has both scores"}


def test_every_table_has_its_own_number(runs: Path) -> None:
    """Also those of a third and a fourth model; S1 to S15, S18 and S19 are other tables, some only in reports of
    other tasks."""
    for name in ("b", "c", "d"):
        run(runs, name, f"models/{name}", {"length": ["length"]}, judged(columns(0.0)), metrics(0.0))
    items = [item for section in build(read(runs)).sections for item in section.items]
    numbers = [item.number for item in items if isinstance(item, Table)]
    assert len(numbers) == len(set(numbers))
    assert [number for number in numbers if number[:2] in ("10", "11", "12", "13")] == [
        f"{number}{kind}" for number in range(10, 14) for kind in ("", "a")
    ]
    assert {f"S{number}{kind}" for number in (16, 17, 20, 21) for kind in ("", "a")} <= set(numbers)
    assert not {f"S{number}{kind}" for number in (14, 15, 18) for kind in ("", "a")} & set(numbers)
