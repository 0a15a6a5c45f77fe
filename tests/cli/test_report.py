"""`smolsum report` as a user meets it: the real command line on run directories."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.calls import Call, done
from support.places import GOLDEN
from support.refusals import assert_refused
from support.studies import CRITERIA, PATHS, evaluation, judged, run

from smolsum.errors import SmolsumError

LAST = "eval/included-test"
EXPECTED = GOLDEN / "report"
MODEL = {"dtype": "bfloat16", "weights": "w1"}
BASELINE = "runs/baseline-lfm-50-words-test"
Write = Callable[[str], tuple[int, str, str]]
Report = Callable[[], dict[str, Any]]


def scores(shift: float) -> list[dict[str, Any]]:
    steps = [0.0, 0.05, -0.1, 0.15, 0.1, -0.05]
    columns = {k: [round(0.5 + shift * (i + 1) / 2 + step, 3) for i, step in enumerate(steps)] for k in CRITERIA}
    columns["composite"] = [round(sum(row), 3) for row in zip(*columns.values(), strict=True)]
    columns["passed"] = [float(value > 2.1) for value in columns["composite"]]
    columns |= {"pass_rate": columns["passed"], "tokens": [60 + 10 * shift * i for i in range(6)]}
    columns |= {"meteor": [0.2 + shift, 0.3, 0.25, 0.4, 0.1, 0.35], "copied": [0.1, 0.6, 0.2, 0.0, 0.0, 0.3]}
    return judged(columns, ["A <b>bold</b> | text.", *["A summary."] * 5])


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if isinstance(rows[0][key], float)}
    sizes = {"mean": 62.5, "std": 3.4, "min": 60.0, "p50": 62.0, "p90": 65.0, "p95": 65.0, "p99": 65.0, "max": 65.0}
    found |= {f"completions/{key}_length": value for key, value in sizes.items()}
    return found | {
        "length/within_tol": 0.5,
        "errors/too long": 0.25,
        "errors/copied": 1 / 6,
        "errors/unfaithful": None,
    }


LENGTH, QUALITY = {"length": ["length"]}, {"length": ["length"], "quality": ["meteor"]}


def trained(folder: Path, name: str, stages: dict[str, list[str]], shift: float, **more: Any) -> Path:
    """A run of the study."""
    rows = scores(shift)
    return run(folder, name, PATHS["lfm"], stages, rows, means(rows), **more)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A length-only run, a quality run and a baseline of one model."""
    folder = tmp_path / "runs"
    trained(folder, "length", LENGTH, 0.0)
    trained(folder, "meteor", QUALITY, 0.1)
    rows = scores(-0.05)
    settings = {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5}
    evaluation(Path(BASELINE), rows, means(rows), model=MODEL | {"path": PATHS["lfm"]}, task=settings)
    (folder / "latest").symlink_to("meteor")
    return folder


@pytest.fixture
def write(call: Call, runs: Path) -> Write:
    return lambda form: call("report", *sorted(Path("runs").iterdir()), "--format", form)


@pytest.fixture
def report(write: Write) -> Report:
    """What `smolsum report --format json` of everything in runs/ writes."""

    def made() -> dict[str, Any]:
        done(write("json"))
        return page()

    return made


def page(folder: Path | str = "report") -> dict[str, Any]:
    """The report that was written there as JSON."""
    return dict(json.loads(Path(folder, "report.json").read_text()))


def items_of(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables and figures of a report by their number."""
    items = [item for section in page["sections"] for item in section["items"]]
    return {item.get("table", item.get("figure")): item for item in items}


@pytest.mark.parametrize(("form", "name"), [("html", "report.html"), ("md", "report.md"), ("json", "report.json")])
def test_golden_bytes(write: Write, form: str, name: str) -> None:
    """The same runs give the same bytes. SMOLSUM_GOLDEN=1 writes the golden files anew."""
    assert write(form) == (0, f"report/{name}\n", "")
    content = Path("report", name).read_bytes()
    if os.environ.get("SMOLSUM_GOLDEN"):
        EXPECTED.mkdir(exist_ok=True)
        (EXPECTED / name).write_bytes(content)
    assert content == (EXPECTED / name).read_bytes()


def test_every_value_leads_to_its_file(report: Report) -> None:
    """A value with a source is what that file has in that field."""
    cells = [cell for item in items_of(report()).values() for row in item.get("rows", []) for cell in row]
    checked = 0
    for cell in cells:
        if cell.get("file", "").endswith("summary.json") and cell["field"].startswith("metrics."):
            summary = json.loads((Path("report") / cell["file"]).read_text())
            assert summary["metrics"][cell["field"].removeprefix("metrics.")] == pytest.approx(cell["value"])
            checked += 1
        if "file" in cell:
            assert (Path("report") / cell["file"]).exists()
    assert checked > 30


def test_empty_cells_have_their_command(report: Report) -> None:
    cells = [cell for item in items_of(report()).values() for row in item.get("rows", []) for cell in row]
    assert {cell.get("command") for cell in cells} >= {
        "smolsum train --model lfm --strategy included --reward meteor-rouge --set task.target_tokens=64 --set "
        "stages.included.steps=4",
        "smolsum train --model lfm --strategy finetuned --reward rouge --set stages.quality.steps=4 --set "
        "task.target_tokens=64",
        "smolsum baseline --model lfm --prompt 64-tokens --set task.target_tokens=64 --judge judge-a",
    }


def test_markdown_brings_its_figures(write: Write) -> None:
    """Each figure is a well-formed SVG with a title, and the text of a completion cannot leave its cell."""
    write("md")
    text = Path("report/report.md").read_text()
    figures = sorted(Path("report").glob("*.svg"))
    assert len(figures) >= 5
    for figure in figures:
        assert f"]({figure.name})" in text
        assert ElementTree.fromstring(figure.read_text()).find("{*}title") is not None
    assert "A \\<b\\>bold\\</b\\> \\| text." in text
    assert "<b>bold" not in text


def test_html_is_whole_and_safe(write: Write) -> None:
    """The page is well formed, has no script except its own, and shows a completion's markup as text."""
    write("html")
    text = Path("report/report.html").read_text()
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert text.count("<script") == text.count("<script>") == 1
    ElementTree.fromstring(
        text.partition("\n")[2].replace('<meta charset="utf-8">', "").replace('initial-scale=1">', 'initial-scale=1"/>')
    )


def test_latex_has_every_table(write: Write, report: Report) -> None:
    """Each table of the JSON that some run fills, under its number, closed, with special letters escaped."""
    write("latex")
    text = Path("report/report.tex").read_text()
    found = [item for section in report()["sections"] for item in section["items"]]
    filled = {
        i["table"] for i in found if "table" in i and any("value" in c or "file" in c for r in i["rows"] for c in r)
    }
    numbers = re.findall(r"\\renewcommand\{\\thetable\}\{(\w+)\}", text)
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == len(numbers)
    assert filled <= set(numbers)
    assert len(filled) > 15
    figures = re.findall(r"\\renewcommand\{\\thefigure\}\{(\w+)\}", text)
    assert figures == [item["figure"] for item in found if "figure" in item]
    assert r"100\%" in text or r"50.0\%" in text
    assert all("\N{MINUS SIGN}" not in line for line in text.splitlines() if not line.startswith("%"))


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def with_keys(**changes: Any) -> Callable[[str], str]:
    """A change of a JSON file: its tables get these keys, and other values are replaced."""

    def changed(text: str) -> str:
        found = json.loads(text)
        return json.dumps(found | {k: found[k] | v if isinstance(v, dict) else v for k, v in changes.items()})

    return changed


def judged_by_another(folder: Path) -> None:
    for name in ("summary.json", "scores.jsonl"):
        edit(folder / name, lambda text: text.replace("judge-a", "judge-b"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (lambda root: (root / "status.json").write_text('{"state": "interrupted", "step": 2}'),
             "half-finished: is interrupted at step 2 (smolsum train --resume odd)"),
    "unevaluated": (lambda root: shutil.rmtree(root / LAST), "half-finished: no evaluation of its last step, 4"),
    "line": (lambda root: (root / LAST / "scores.jsonl").write_text('{"id": "test-0000"\n'), "malformed: "),
    "short": (lambda root: edit(root / LAST / "scores.jsonl", lambda t: "".join(t.splitlines(keepends=True)[:4])),
              "malformed: "),
    "config": (lambda root: (root / "config.toml").write_text("[stages\n"), "malformed: "),
    "metric": (lambda root: edit(root / LAST / "summary.json", with_keys(metrics={"composite": "high"})),
               "malformed: "),
    "task": (lambda root: edit(root / "config.toml", lambda text: text.replace("target_tokens", "goal")),
             "mixed: how it was measured is not that of the other runs: task.goal 64, theirs not set, "),
    "other task": (lambda root: edit(root / "config.toml", lambda text: text.replace('"tldr"', '"poems"')),
                   "mixed: its task"),
    "data": (lambda root: edit(root / LAST / "scores.jsonl", lambda text: text.replace('"d1"', '"d2"')),
             "mixed: the fingerprint of its test split"),
    "judge": (lambda root: judged_by_another(root / LAST), "mixed: its judge"),
    "weights": (lambda root: edit(root / "run.json", with_keys(model={"weights": "w2"})),
                "mixed: the fingerprint of its base model"),
}  # fmt: skip


def damage(runs: Path, kind: str) -> str:
    """A third run of the given kind of trouble; returns what is said of it."""
    spoil, reason = DAMAGE[kind]
    spoil(trained(runs, "odd", {"included": ["length", "bleu"]}, 0.3))
    return reason


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_bad_run_is_named_and_left_out(write: Write, report: Report, runs: Path, kind: str) -> None:
    """It is said on stderr and in the report; no other cell changes except for empty ones, which say so too."""
    before = {s["title"]: s for s in report()["sections"]}
    reason = damage(runs, kind)
    done(write("json"), f"odd is left out: {reason}")
    after = {s["title"]: s for s in page()["sections"]}
    (named,) = after.pop("Left out")["items"][0]["rows"]
    assert named[0]["text"] == "odd"
    assert list(after) == list(before)
    for title, section in after.items():
        for was, now in zip(before[title].pop("items"), section.pop("items"), strict=True):
            for old, new in zip(was.pop("rows", []), now.pop("rows", []), strict=True):
                assert all(a == b or "command" in a for a, b in zip(old, new, strict=True))
            assert now == was
    assert after == before


def test_a_trained_run_is_not_to_be_trained(report: Report, runs: Path) -> None:
    """Of one left out for its judge the cells have the evaluation by the others' judge, else why it is left out."""
    damage(runs, "judge")
    tables = items_of(report())
    command = "smolsum eval odd --judge judge-a"
    assert {cell.get("command") for cell in tables["11"]["rows"][3][1:]} == {command}
    assert tables["8"]["rows"][2][3]["command"] == command
    shutil.rmtree(runs / "odd")
    damage(runs, "weights")
    tables = items_of(report())
    assert "left out: mixed: the fingerprint of its base model" in tables["11"]["rows"][3][1]["text"]
    assert not any("command" in cell for cell in tables["11"]["rows"][3])
    assert "left out: " in tables["8"]["rows"][2][3]["text"]


def test_cells_that_no_command_fills(report: Report, runs: Path) -> None:
    """Facts that the data lack, and damaged completions of all runs, are not to be had by a command."""
    for path in runs.glob("*/eval/*/summary.json"):
        edit(path, with_keys(metrics={"errors/wrong facts": None}))
    for name in ("length", "meteor"):
        (runs / name / "completions" / "step-000001.jsonl").write_text('{"prompt_id"\n')
    tables = items_of(report())
    assert [row[-1]["text"] for row in tables["S6"]["rows"][:2]] == ["not known: data without facts"] * 2
    assert tables["2"]["rows"][0][0]["text"].startswith("not known: ")


def test_no_length_only_run_vanishes(report: Report, runs: Path) -> None:
    """Seeds of the baseline are pooled; one of other settings has its own row."""
    trained(runs, "length-s1", LENGTH, 0.02, seed=1)
    trained(runs, "length-joint", {"included": ["length"]}, 0.02)
    tables = items_of(report())
    assert tables["10"]["rows"][0][0]["text"] == "length-only (GRPO baseline) x2"
    composites = [sum(row["composite"] for row in scores(shift)) / 6 for shift in (0.0, 0.02)]
    assert tables["10"]["rows"][0][1]["value"] == pytest.approx(sum(composites) / 2)
    assert tables["11a"]["rows"][0][0]["text"] == "length-only (baseline) x2"
    assert {"length-only x2", "length-only · length-joint"} <= {row[1]["text"] for row in tables["S6"]["rows"]}
    assert tables["S1"]["rows"][0][1]["text"] == "length-only · length-joint"


def test_seeds_are_one_row(report: Report, runs: Path) -> None:
    """Runs that differ in name and seed alone are one configuration; the same seed twice stays two."""
    trained(runs, "meteor-s1", QUALITY, 0.12, seed=1)
    assert '"quality-meteor x2"' in json.dumps(report())
    trained(runs, "meteor-s1-again", QUALITY, 0.12, seed=1)
    text = json.dumps(report(), ensure_ascii=False)
    assert "x2" not in text
    assert '"quality-meteor · meteor-s1-again"' in text


def test_nothing_to_report(call: Call, runs: Path) -> None:
    """A run that is not there, and runs of which none can be used, are usage errors."""
    assert_refused(call("report", "absent"), "'absent'")
    (runs / "meteor" / "run.json").write_text("{")
    assert_refused(call("report", "meteor"), "nothing to report: meteor: malformed")
    assert not Path("report").exists()


def test_baselines_alone(call: Call, runs: Path) -> None:
    """Without any training there are still the baseline's rows, and commands for all the rest: where only baselines are
    judged it is training that lacks, not a judge. A run with length alone is a baseline too."""
    assert call("report", BASELINE, "--format", "json") == (0, "report/report.json\n", "")
    tables = {number: item["rows"] for number, item in items_of(page()).items() if "table" in item}
    assert all(tables.values())
    assert tables["4"][0][1]["text"] == "baseline-50-words"
    assert tables["4"][0][2]["value"] == pytest.approx(1.75)
    assert tables["10"][1][1]["command"].startswith("smolsum train --model lfm")
    assert page()["verdict"] == "LFM2.5-350M: no trained configuration yet."
    done(call("report", BASELINE, "runs/length", "--format", "json"))
    assert page()["verdict"] == (
        "LFM2.5-350M, length-only: composite (of 4, by the judge judge-a) 2.100; on target 50.0%. "
        "Price: 4.0 minutes of training."
    )


def test_latex_has_letters_for_all(write: Write, runs: Path) -> None:
    """What pdflatex has no letter for is shown by its code point."""
    foul = "Ça va \U0001f600 \u65e5 \u2014 ě"
    edit(runs / "meteor" / "eval/quality-test/scores.jsonl", lambda text: text.replace("A summary.", foul, 1))
    write("latex")
    assert "Ça va [U+1F600] [U+65E5] \u2014 ě" in Path("report/report.tex").read_text()


def test_one_run_reports_into_itself(call: Call, runs: Path) -> None:
    """A report of a single run is in its directory; its empty cells name what a comparison lacks."""
    assert done(call("report", "meteor"))[0] == "runs/meteor/report/report.html\n"
    assert (runs / "meteor" / "report" / "report.html").exists()


def test_a_report_is_checked_against_its_runs(call: Call, runs: Path) -> None:
    """A digit that was changed in any format is found and shown with what the runs give; a report of other runs is not
    of these, and one that is not there is missing."""
    for form, name in (("html", "report.html"), ("md", "report.md"), ("json", "report.json"), ("latex", "report.tex")):
        asked = ("report", "meteor", f"--format={form}")
        done(call(*asked))
        path = Path("runs/meteor/report", name)
        assert done(call(*asked, "--check"))[0] == f"{path}\n"
        text = path.read_text()
        place = text.index("0.", len(text) // 2) + 2
        changed = f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}"
        path.write_text(changed)
        assert_refused(call(*asked, "--check"), f"{path} is not what these runs give: 1 difference", error=SmolsumError)
        assert path.read_text() == changed
        path.unlink()
        assert_refused(call(*asked, "--check"), f"{path} is missing", error=SmolsumError)


def poems(root: Path, name: str, verse: list[dict[str, Any]], start: list[dict[str, Any]], **meant: Any) -> str:
    """A run of a task that is not the study's, with evaluations before and after its stage; returns its folder."""
    run(root, name, PATHS["qwen"], {"verse": ["rhymes"]}, verse, {})
    shutil.rmtree(root / name / "eval" / "verse-test")
    said = {"model": MODEL | {"path": PATHS["qwen"]}, "task": {"name": "poems"}, "criteria": [], "judge": None}
    for label, step, rows in (("start", 0, start), ("verse", 4, verse)):
        metrics = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if isinstance(rows[0][key], float)}
        folder = root / name / "eval" / f"{label}-test"
        evaluation(folder, rows, metrics, step=step, **said, **({"judging": None, "headlines": []} | meant))
    edit(root / name / "config.toml", lambda text: re.sub("t(arget|olerance)_tokens = .*\n", "", text))
    edit(root / name / "config.toml", lambda text: text.replace('name = "tldr"', 'name = "poems"'))
    return str(root / name)


def test_right_and_wrong_have_one_test(tmp_path: Path, call: Call) -> None:
    """Of a score that is 0 or 1 every p is McNemar's: five gained and none lost of six are 2 / 32, where a t-test would
    say 0.004."""
    rows = [{"id": str(i), "split": "test", "data": "d1", "text": "", "passed": 0.0} for i in range(6)]
    better = [{**row, "passed": float(i > 0)} for i, row in enumerate(rows)]
    one = poems(tmp_path / "runs", "one", better, rows, score="passed", errors={})
    done(call("report", one, "--output", tmp_path, "--format", "json"))
    found = page(tmp_path)
    items = items_of(found)
    (row,) = items["S11"]["rows"]
    assert [cell["text"] for cell in row[5:9]] == ["-", "0.0625", "✗", "0.0625"]
    assert "McNemar's exact test" in items["S11"]["notes"][0]
    assert items["S5"]["rows"][0][4]["text"] == items["S14"]["rows"][1][5]["text"] == "0.0625"
    assert "no significant difference" in found["verdict"]


def rhymes(gain: float) -> list[dict[str, Any]]:
    """Six poems, measured."""
    rows = [{k: row[k] for k in ("id", "split", "data", "text")} for row in scores(0.0)]
    return [
        row | {"rhymes": found, "passed": float(found > 0.25), "errors/prose": 0.5 - gain / 2}
        for row, found in zip(rows, [0.1 * i % 0.4 + gain for i in range(6)], strict=True)
    ]


def test_a_task_that_is_not_the_study_s(tmp_path: Path, call: Call) -> None:
    """Runs of another task are described by its score, headlines and errors, and without the study: no length, no table
    of its configurations, no command for them."""
    headline = {"metric": "rhymes", "title": "it rhymes", "text": "50%"}
    meant = {"score": "rhymes", "headlines": [headline], "errors": {"prose": "no verse"}}
    folders = [poems(tmp_path / "runs", n, rhymes(g), rhymes(0.0), **meant) for n, g in (("short", 0.1), ("long", 0.6))]
    done(call("report", *folders, "--output", tmp_path, "--format", "json"))
    found = page(tmp_path)
    assert "of 2 configurations verse with rhymes · long ends best in it rhymes, 0.717" in found["verdict"]
    assert "; against the untrained model, 0.117" in found["verdict"]
    items = items_of(found)
    assert not {"4", "5", "6", "8", "10", "10a", "11", "14", "S4"} & set(items)
    assert "table" not in items["S1"]
    assert [row[4]["value"] for row in items["S11"]["rows"]] == pytest.approx([0.6, 0.1])
    assert [row[1]["text"] for row in items["S10"]["rows"]] == ["71.7%", "21.7%"]
    shown = [[cell["text"] for cell in row[1:4]] for row in items["S5"]["rows"]]
    assert shown == [["long", "5", "0"], ["short", "1", "0"]]
    assert "the task has no judge" in json.dumps(items["S3"])
    assert (items["S6"]["columns"], items["S6"]["notes"]) == (["Model", "Configuration", "Prose"], ["Prose: no verse."])
    assert "--reward meteor" not in json.dumps(found)
    for form in ("html", "md", "latex"):
        done(call("report", folders[0], "--output", tmp_path, "--format", form))
    assert "summaries" not in (tmp_path / "report.html").read_text()


def test_a_folder_where_the_report_would_be(runs: Path, call: Call) -> None:
    Path("out/report.html").mkdir(parents=True)
    again = call("report", runs / "length", "--output", "out")
    assert_refused(again, "cannot write out/report.html: Is a directory", error=SmolsumError)
