"""`smolsum eval --suite` as a user meets it: on a model and on a run, then compared, reported and exported."""

import json
from pathlib import Path

import pytest
from support.calls import Call, done
from support.data_files import lines
from support.refusals import assert_refused
from support.training import arguments, make_data

from smolsum.cli import main
from smolsum.files import read_jsonl

TASK = "Say what a tree is. It must be {word_count_type} {word_count} words long."
FEW = ("--set=task.lengths=4,8", "--set=sampling.max_new_tokens=16")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two steps, and a file of the benchmark next to it."""
    root = tmp_path_factory.mktemp("runs")
    units = [{"id": n, "category": "qa", "type": "What", "lang": "en", "task": f"{n}. {TASK}"} for n in range(1, 4)]
    lines(root / "data.jsonl", units)
    small = {"stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": 16}
    assert main.main(arguments(make_data(root / "data"), root, "mine", **small)) == 0
    return root


def test_a_model_and_a_run_compare(root: Path, call: Call) -> None:
    """Both are evaluations outside of runs, of the same 18 prompts, and paired by the unit that they share."""
    suite = ("--suite", "lifebench", "--suite-path", root / "data.jsonl", "--runs-dir", root, *FEW)
    out, _ = done(call("eval", "tiny", *suite), "Length Score by control method")
    before = Path(out.splitlines()[-1])
    out, _ = done(call("eval", root / "mine", *suite))
    after = Path(out.splitlines()[-1])
    assert (before.name, after.name) == ("eval-lifebench-tiny-test", "eval-lifebench-mine-step-000002-test")
    rows, summary = read_jsonl(after / "scores.jsonl"), json.loads((after / "summary.json").read_bytes())
    assert len(rows) == 3 * 2 * 3
    assert {"passed", "length_score", "deviation", "answered", "words", "unit", "tokens", "truncated"} <= rows[0].keys()
    assert summary["model"]["path"] == "mine-step-000002"
    assert summary["model"]["weights"] != json.loads((before / "summary.json").read_bytes())["model"]["weights"]
    assert "step" not in summary
    assert summary["task"] == {"name": "lifebench", "system_prompt": ""}
    assert not (root / "mine" / "eval" / after.name).exists()
    out, _ = done(call("stats", "--paired", before, after, "--cluster", "unit"))
    assert "length_score" in out
    assert "target" not in out
    out, _ = done(call("report", before, after, "--format", "md", "--output", root / "report"))
    page = Path(out.strip()).read_text(encoding="utf-8")
    assert "Length Score by control method" in page
    assert "mine-step-000002" in page
    for form in ("inspect", "every-eval-ever", "csv"):
        done(call("report", before, after, "--format", form, "--output", root / form))


def test_what_is_left_out_is_kept_and_reported(tmp_path: Path, call: Call) -> None:
    """How many schemas could not be used, and why: on the screen, in the summary and in the report."""
    folder = tmp_path / "Snowplow"
    folder.mkdir()
    (folder / "a.json").write_text('{"type": "object"}')
    (folder / "b.json").write_text('{"type": "objekt"}')
    said = "1 of 2 schemas cannot be used: 1 break the rules of their draft"
    suite = ("--suite", "jsonschemabench", "--suite-path", folder, "--runs-dir", tmp_path, *FEW[1:])
    out, _ = done(call("eval", "tiny", *suite), said, "Snowplow")
    summary = json.loads((Path(out.strip()) / "summary.json").read_bytes())
    assert summary["left_out"] == said
    assert "email" in summary["task"]["formats"]
    out, err = done(call("report", out.strip(), "--format", "md", "--output", tmp_path / "report"))
    assert said in Path(out.strip()).read_text(encoding="utf-8") + err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--suite", "ifbemch"), ("ifbemch", "did you mean ifbench?")),
        (("--suite", "lifebench", "--task", "tldr"), ("--task", "--suite")),
        (("--suite-path", "data.jsonl"), ("--suite-path is for --suite",)),
        (("--suite", "lifebench"), ("lifebench needs the files", "--suite-path PATH")),
        (("--suite", "lifebench", "--split", "train"), ("no train split",)),
    ],
)
def test_wrong_flags(tmp_path: Path, call: Call, flags: tuple[str, ...], named: tuple[str, ...]) -> None:
    assert_refused(call("eval", "tiny", "--runs-dir", tmp_path, *flags), *named)


def test_a_suite_trains_nothing(root: Path, call: Call) -> None:
    """Training on a benchmark's prompts would spoil it."""
    result = call("train", "--task", "lifebench", "--runs-dir", root, f"--set=data.path={root / 'data.jsonl'}")
    assert_refused(result, "no train split", "smolsum eval MODEL --suite lifebench")
