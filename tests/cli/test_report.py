"""`smolsum report` as a user meets it: the real command line on run directories."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.calls import Call
from support.places import GOLDEN
from support.studies import CRITERIA, PATHS, evaluation, judged, run

from smolsum.cli import main

EXPECTED = GOLDEN / "report"


def scores(shift: float) -> list[dict[str, Any]]:
    """Six judged examples."""
    steps = [0.0, 0.05, -0.1, 0.15, 0.1, -0.05]
    columns = {k: [round(0.5 + shift * (i + 1) / 2 + step, 3) for i, step in enumerate(steps)] for k in CRITERIA}
    columns["composite"] = [round(sum(row), 3) for row in zip(*columns.values(), strict=True)]
    columns["passed"] = [float(value > 2.1) for value in columns["composite"]]
    columns |= {"pass_rate": columns["passed"], "tokens": [60 + 10 * shift * i for i in range(6)]}
    columns |= {"meteor": [0.2 + shift, 0.3, 0.25, 0.4, 0.1, 0.35], "copied": [0.1, 0.6, 0.2, 0.0, 0.0, 0.3]}
    return judged(columns, ["A <b>bold</b> | text.", *["A summary."] * 5])


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The summary of rows."""
    found = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0] if isinstance(rows[0][key], float)}
    sizes = {"mean": 62.5, "std": 3.4, "min": 60.0, "p50": 62.0, "p90": 65.0, "p95": 65.0, "p99": 65.0, "max": 65.0}
    return (
        found
        | {f"completions/{key}_length": value for key, value in sizes.items()}
        | {"length/within_tol": 0.5, "errors/too long": 0.25, "errors/copied": 1 / 6, "errors/unfaithful": None}
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A length-only run, a quality run and a baseline of one model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMOLSUM_RUNS_DIR", raising=False)
    folder = tmp_path / "runs"
    for name, stages, shift in (
        ("length", {"length": ["length"]}, 0.0),
        ("meteor", {"length": ["length"], "quality": ["meteor"]}, 0.1),
    ):
        rows = scores(shift)
        run(folder, name, PATHS["lfm"], stages, rows, means(rows))
    rows = scores(-0.05)
    weights = {"path": PATHS["lfm"], "dtype": "bfloat16", "weights": "w1"}
    settings = {"name": "tldr", "target_tokens": 64, "tolerance_tokens": 5}
    evaluation(folder / "baseline-lfm-50-words-test", rows, means(rows), model=weights, task=settings)
    (folder / "latest").symlink_to("meteor")
    return folder


@pytest.fixture
def call(call: Call, runs: Path) -> Call:
    """`smolsum report` of everything in runs/."""
    return lambda *args: call("report", *(Path("runs") / path.name for path in sorted(runs.iterdir())), *args)


@pytest.mark.parametrize(("form", "name"), [("html", "report.html"), ("md", "report.md"), ("json", "report.json")])
def test_golden_bytes(call: Call, form: str, name: str) -> None:
    """The same runs give the same bytes. SMOLSUM_GOLDEN=1 writes the golden files anew."""
    code, out, err = call("--format", form)
    assert (code, out, err) == (0, f"report/{name}\n", "")
    content = Path("report", name).read_bytes()
    if os.environ.get("SMOLSUM_GOLDEN"):
        EXPECTED.mkdir(exist_ok=True)
        (EXPECTED / name).write_bytes(content)
    assert content == (EXPECTED / name).read_bytes()


def test_every_value_leads_to_its_file(call: Call) -> None:
    """A value with a source is what that file has in that field."""
    call("--format", "json")
    found = json.loads(Path("report/report.json").read_text())
    cells = [cell for s in found["sections"] for i in s["items"] for row in i.get("rows", []) for cell in row]
    checked = 0
    for cell in cells:
        if cell.get("file", "").endswith("summary.json") and cell["field"].startswith("metrics."):
            summary = json.loads((Path("report") / cell["file"]).read_text())
            assert summary["metrics"][cell["field"].removeprefix("metrics.")] == pytest.approx(cell["value"])
            checked += 1
        if "file" in cell:
            assert (Path("report") / cell["file"]).exists()
    assert checked > 30


def test_empty_cells_have_their_command(call: Call) -> None:
    """What no run fills says what would."""
    call("--format", "json")
    text = Path("report/report.json").read_text()
    for command in (
        "smolsum train --model lfm --strategy included --reward meteor-rouge --set task.target_tokens=64 --set "
        "stages.included.steps=4",
        "smolsum train --model lfm --strategy finetuned --reward rouge --set stages.quality.steps=4 --set "
        "task.target_tokens=64",
        "smolsum baseline --model lfm --prompt 64-tokens --set task.target_tokens=64 --judge judge-a",
    ):
        assert f'"command": "{command}"' in text


def test_markdown_brings_its_figures(call: Call) -> None:
    """Each figure is a well-formed SVG with a title, and the text of a completion cannot leave its cell."""
    call("--format", "md")
    text = Path("report/report.md").read_text()
    figures = sorted(Path("report").glob("*.svg"))
    assert len(figures) >= 5
    for figure in figures:
        assert f"]({figure.name})" in text
        assert ElementTree.fromstring(figure.read_text()).find("{*}title") is not None
    assert "A \\<b\\>bold\\</b\\> \\| text." in text
    assert "<b>bold" not in text


def test_html_is_whole_and_safe(call: Call) -> None:
    """The page is well formed, has no script except its own, and shows a completion's markup as text."""
    call()
    text = Path("report/report.html").read_text()
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert text.count("<script") == text.count("<script>") == 1
    ElementTree.fromstring(
        text.partition("\n")[2].replace('<meta charset="utf-8">', "").replace('initial-scale=1">', 'initial-scale=1"/>')
    )


def test_latex_has_every_table(call: Call) -> None:
    """Each table of the JSON that some run fills, under its number, closed, with special letters escaped."""
    call("--format", "latex")
    call("--format", "json")
    text = Path("report/report.tex").read_text()
    found = [item for s in json.loads(Path("report/report.json").read_text())["sections"] for item in s["items"]]
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


def damage(runs: Path, kind: str) -> str:
    """A third run of the given kind of trouble; returns what is said of it."""
    rows = scores(0.3)
    root = run(runs, "odd", PATHS["lfm"], {"included": ["length", "bleu"]}, rows, means(rows))
    folder = root / "eval" / "included-test"
    summary = json.loads((folder / "summary.json").read_text())
    if kind == "half":
        (root / "status.json").write_text('{"state": "interrupted", "step": 2}')
        return "half-finished: is interrupted at step 2 (smolsum train --resume odd)"
    if kind == "unevaluated":
        shutil.rmtree(folder)
        return "half-finished: no evaluation of its last step, 4"
    if kind == "line":
        (folder / "scores.jsonl").write_text('{"id": "test-0000"\n')
        return "malformed: "
    if kind == "short":
        lines = (folder / "scores.jsonl").read_text().splitlines(keepends=True)
        (folder / "scores.jsonl").write_text("".join(lines[:4]))
        return "malformed: "
    if kind == "config":
        (root / "config.toml").write_text("[stages\n")
        return "malformed: "
    if kind == "task":
        config = (root / "config.toml").read_text()
        (root / "config.toml").write_text(config.replace("target_tokens", "goal"))
        return "mixed: how it was measured is not that of the other runs: task.goal 64, theirs not set, "
    if kind == "other task":
        config = (root / "config.toml").read_text()
        (root / "config.toml").write_text(config.replace('name = "tldr"', 'name = "poems"'))
        return "mixed: its task"
    if kind == "metric":
        summary["metrics"]["composite"] = "high"
        (folder / "summary.json").write_text(json.dumps(summary))
        return "malformed: "
    if kind == "data":
        changed = (folder / "scores.jsonl").read_text().replace('"d1"', '"d2"')
        (folder / "scores.jsonl").write_text(changed)
        return "mixed: the fingerprint of its test split"
    if kind == "judge":
        (folder / "summary.json").write_text(json.dumps(summary | {"judge": "judge-b"}))
        (folder / "scores.jsonl").write_text((folder / "scores.jsonl").read_text().replace("judge-a", "judge-b"))
        return "mixed: its judge"
    info = json.loads((root / "run.json").read_text())
    info["model"]["weights"] = "w2"
    (root / "run.json").write_text(json.dumps(info))
    return "mixed: the fingerprint of its base model"


@pytest.mark.parametrize(
    "kind",
    ["half", "unevaluated", "line", "short", "config", "task", "other task", "metric", "data", "judge", "weights"],
)
def test_a_bad_run_is_named_and_left_out(call: Call, runs: Path, kind: str) -> None:
    """It is said on stderr and in the report; no other cell changes except for empty ones, which say so too."""
    call("--format", "json")
    before = {s["title"]: s for s in json.loads(Path("report/report.json").read_text())["sections"]}
    reason = damage(runs, kind)
    code, _, err = call("--format", "json")
    after = {s["title"]: s for s in json.loads(Path("report/report.json").read_text())["sections"]}
    assert code == 0
    assert f"odd is left out: {reason}" in err
    (named,) = after.pop("Left out")["items"][0]["rows"]
    assert named[0]["text"] == "odd"
    assert list(after) == list(before)
    for title, section in after.items():
        for was, now in zip(before[title].pop("items"), section.pop("items"), strict=True):
            for old, new in zip(was.pop("rows", []), now.pop("rows", []), strict=True):
                assert all(a == b or "command" in a for a, b in zip(old, new, strict=True))
            assert now == was
    assert after == before


def table(number: str) -> list[list[dict[str, Any]]]:
    """The rows of a table of the report in report/."""
    sections = json.loads(Path("report/report.json").read_text())["sections"]
    return next(item["rows"] for s in sections for item in s["items"] if item.get("table") == number)


def test_a_trained_run_is_not_to_be_trained(call: Call, runs: Path) -> None:
    """Of one left out for its judge the cells have the evaluation by the others' judge, else why it is left out."""
    damage(runs, "judge")
    call("--format", "json")
    command = "smolsum eval odd --judge judge-a"
    assert {cell.get("command") for cell in table("11")[3][1:]} == {command}
    assert table("8")[2][3]["command"] == command
    shutil.rmtree(runs / "odd")
    damage(runs, "weights")
    call("--format", "json")
    assert "left out: mixed: the fingerprint of its base model" in table("11")[3][1]["text"]
    assert not any("command" in cell for cell in table("11")[3])
    assert "left out: " in table("8")[2][3]["text"]


def test_cells_that_no_command_fills(call: Call, runs: Path) -> None:
    """Facts that the data lack, and damaged completions of all runs, are not to be had by a command."""
    for path in runs.glob("*/eval/*/summary.json"):
        summary = json.loads(path.read_text())
        summary["metrics"]["errors/wrong facts"] = None
        path.write_text(json.dumps(summary))
    for name in ("length", "meteor"):
        (runs / name / "completions" / "step-000001.jsonl").write_text('{"prompt_id"\n')
    call("--format", "json")
    assert [row[-1]["text"] for row in table("S6")[:2]] == ["not known: data without facts"] * 2
    assert table("2")[0][0]["text"].startswith("not known: ")


def test_no_length_only_run_vanishes(call: Call, runs: Path) -> None:
    """Seeds of the baseline are pooled; one of other settings has its own row."""
    rows = scores(0.02)
    run(runs, "length-s1", PATHS["lfm"], {"length": ["length"]}, rows, means(rows), seed=1)
    run(runs, "length-joint", PATHS["lfm"], {"included": ["length"]}, rows, means(rows))
    call("--format", "json")
    assert table("10")[0][0]["text"] == "length-only (GRPO baseline) x2"
    composites = [sum(row["composite"] for row in scores(shift)) / 6 for shift in (0.0, 0.02)]
    assert table("10")[0][1]["value"] == pytest.approx(sum(composites) / 2)
    assert table("11a")[0][0]["text"] == "length-only (baseline) x2"
    names = [row[1]["text"] for row in table("S6")]
    assert {"length-only x2", "length-only · length-joint"} <= set(names)
    assert table("S1")[0][1]["text"] == "length-only · length-joint"


def test_seeds_are_one_row(call: Call, runs: Path) -> None:
    """Runs that differ in name and seed alone are one configuration; the same seed twice stays two."""
    rows = scores(0.12)
    stages = {"length": ["length"], "quality": ["meteor"]}
    run(runs, "meteor-s1", PATHS["lfm"], stages, rows, means(rows), seed=1)
    call("--format", "json")
    assert '"quality-meteor x2"' in Path("report/report.json").read_text()
    run(runs, "meteor-s1-again", PATHS["lfm"], stages, rows, means(rows), seed=1)
    call("--format", "json")
    text = Path("report/report.json").read_text()
    assert "x2" not in text
    assert '"quality-meteor · meteor-s1-again"' in text


def test_nothing_to_report(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    """A run that is not there, and runs of which none can be used, are usage errors."""
    assert main.main(["report", "absent"]) == 2
    assert "no run 'absent'" in capsys.readouterr().err
    (runs / "meteor" / "run.json").write_text("{")
    assert main.main(["report", "meteor"]) == 2
    assert "nothing to report: meteor: malformed" in capsys.readouterr().err
    assert not Path("report").exists()


def test_a_baseline_alone(call: Call, capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    """Without any training there are still the baseline's rows, and commands for all the rest."""
    assert main.main(["report", str(runs / "baseline-lfm-50-words-test"), "--format", "json"]) == 0
    found = json.loads(Path("report/report.json").read_text())
    tables = {item["table"]: item for section in found["sections"] for item in section["items"] if "table" in item}
    assert all(table["rows"] for table in tables.values())
    assert tables["4"]["rows"][0][1]["text"] == "baseline-50-words"
    assert tables["4"]["rows"][0][2]["value"] == pytest.approx(1.75)
    assert tables["10"]["rows"][1][1]["command"].startswith("smolsum train --model lfm")
    assert capsys.readouterr().err == ""


def test_judged_baselines_are_judged(runs: Path) -> None:
    """Where only baselines are judged it is training that lacks, not a judge; a run with length alone is one."""
    for names, verdict in (
        (["baseline-lfm-50-words-test"], "LFM2.5-350M: no trained configuration yet."),
        (
            ["baseline-lfm-50-words-test", "length"],
            "LFM2.5-350M, length-only: composite (of 4, by the judge judge-a) 2.100; on target 50.0%. "
            "Price: 4.0 minutes of training.",
        ),
    ):
        assert main.main(["report", *(str(runs / name) for name in names), "--format", "json"]) == 0
        assert json.loads(next(Path().rglob("report.json")).read_text())["verdict"] == verdict


def test_latex_has_letters_for_all(call: Call, runs: Path) -> None:
    """What pdflatex has no letter for is shown by its code point."""
    scores = runs / "meteor" / "eval" / "quality-test" / "scores.jsonl"
    text = scores.read_text().replace("A summary.", "Ça va \U0001f600 \u65e5 \u2014 ě", 1)
    scores.write_text(text)
    call("--format", "latex")
    assert "Ça va [U+1F600] [U+65E5] \u2014 ě" in Path("report/report.tex").read_text()


def test_one_run_reports_into_itself(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    """A report of a single run is in its directory; its empty cells name what a comparison lacks."""
    assert main.main(["report", "meteor"]) == 0
    assert capsys.readouterr().out == "runs/meteor/report/report.html\n"
    assert (runs / "meteor" / "report" / "report.html").exists()


def test_the_earlier_name_of_a_flag_works(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    """Scripts may have `--out`, which the help no longer shows; with both it is not clear which counts."""
    command = ["report", "runs/length", "--format", "md", "--out", "there"]
    assert main.main(command) == 0
    assert capsys.readouterr().out == "there/report.md\n"
    assert main.main([*command, "--output", "here"]) == 2
    assert capsys.readouterr().err.startswith("error: --out is the earlier name of --output, and both are given")
    assert not Path("here").exists()
    assert main.main(["report", "--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert ("--output" in shown, "--out" in shown) == (True, False)


def test_right_and_wrong_have_one_test(tmp_path: Path) -> None:
    """Of a score that is 0 or 1 every p is McNemar's: five gained and none lost of six are 2 / 32, where a t-test would
    say 0.004."""
    root, task = tmp_path / "runs", {"name": "poems"}
    meant = {"criteria": [], "score": "passed", "judge": None, "judging": None, "headlines": [], "errors": {}}
    rows = [{"id": str(i), "split": "test", "data": "d1", "text": "", "passed": 0.0} for i in range(6)]
    better = [{**row, "passed": float(i > 0)} for i, row in enumerate(rows)]
    run(root, "one", PATHS["qwen"], {"verse": ["rhymes"]}, better, {})
    model = {"path": PATHS["qwen"], "dtype": "bfloat16", "weights": "w1"}
    for label, step, found in (("start", 0, rows), ("verse", 4, better)):
        share = sum(float(row["passed"]) for row in found) / 6
        evaluation(root / "one" / "eval" / f"{label}-test", found, {"passed": share}, model=model, step=step, task=task,
                   **meant)  # fmt: skip
    config = (root / "one" / "config.toml").read_text().replace('name = "tldr"', 'name = "poems"')
    config = config.replace("target_tokens = 64\n", "").replace("tolerance_tokens = 5\n", "")
    (root / "one" / "config.toml").write_text(config)
    assert main.main(["report", str(root / "one"), "--output", str(tmp_path), "--format", "json"]) == 0
    page = json.loads((tmp_path / "report.json").read_text())
    items = {item.get("table"): item for s in page["sections"] for item in s["items"]}
    (row,) = items["S11"]["rows"]
    assert [cell["text"] for cell in row[5:9]] == ["-", "0.0625", "✗", "0.0625"]
    assert "McNemar's exact test" in items["S11"]["notes"][0]
    assert items["S5"]["rows"][0][4]["text"] == items["S14"]["rows"][1][5]["text"] == "0.0625"
    assert "no significant difference" in page["verdict"]


def test_a_task_that_is_not_the_study_s(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Runs of another task are described by its score, headlines and errors, and without the study: no length, no table
    of its configurations, no command for them."""
    settings = {"name": "poems"}
    meant = {"criteria": [], "score": "rhymes", "judge": None, "judging": None}
    shown = {"headlines": [{"metric": "rhymes", "title": "it rhymes", "text": "50%"}], "errors": {"prose": "no verse"}}
    root = tmp_path / "runs"
    for name, shift in (("short", 0.1), ("long", 0.6)):
        for label, step, gain in (("start", 0, 0.0), ("verse", 4, shift)):
            rows = [{**row, "rhymes": 0.1 * i % 0.4 + gain} for i, row in enumerate(scores(0.0))]
            rows = [{k: row[k] for k in ("id", "split", "data", "text", "rhymes")} for row in rows]
            rows = [{**row, "passed": float(row["rhymes"] > 0.25)} for row in rows]
            mean = sum(row["rhymes"] for row in rows) / len(rows)
            if label == "start":
                run(root, name, PATHS["qwen"], {"verse": ["rhymes"]}, rows, {})
                shutil.rmtree(root / name / "eval" / "verse-test")
            model = {"path": PATHS["qwen"], "dtype": "bfloat16", "weights": "w1"}
            metrics = {"rhymes": mean, "errors/prose": 0.5 - gain / 2}
            folder = root / name / "eval" / f"{label}-test"
            evaluation(folder, rows, metrics, model=model, step=step, task=settings, **meant, **shown)
        config = (root / name / "config.toml").read_text()
        for line in ("target_tokens = 64\n", "tolerance_tokens = 5\n"):
            config = config.replace(line, "")
        (root / name / "config.toml").write_text(config.replace('name = "tldr"', 'name = "poems"'))
    assert (
        main.main(["report", str(root / "short"), str(root / "long"), "--output", str(tmp_path), "--format", "json"])
        == 0
    )
    found = json.loads((tmp_path / "report.json").read_text())
    assert "of 2 configurations verse with rhymes · long ends best in it rhymes, 0.717" in found["verdict"]
    assert "; against the untrained model, 0.117" in found["verdict"]
    items = {item.get("table", item.get("figure")): item for s in found["sections"] for item in s["items"]}
    assert not {"4", "5", "6", "8", "10", "10a", "11", "14", "S4"} & set(items)
    assert "table" not in items["S1"]
    assert [row[4]["value"] for row in items["S11"]["rows"]] == pytest.approx([0.6, 0.1])
    assert [row[1]["text"] for row in items["S10"]["rows"]] == ["71.7%", "21.7%"]
    assert [[cell["text"] for cell in row[1:4]] for row in items["S5"]["rows"]] == [
        ["long", "5", "0"],
        ["short", "1", "0"],
    ]
    assert "the task has no judge" in json.dumps(items["S3"])
    assert items["S6"]["columns"] == ["Model", "Configuration", "Prose"]
    assert items["S6"]["notes"] == ["Prose: no verse."]
    assert "--reward meteor" not in (tmp_path / "report.json").read_text()
    for form in ("html", "md", "latex"):
        assert main.main(["report", str(root / "short"), "--output", str(tmp_path), "--format", form]) == 0
    assert "summaries" not in (tmp_path / "report.html").read_text()
    capsys.readouterr()
