"""`smolsum runs` on real directories."""

import itertools
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.reports import edit
from support.studies import CRITERIA, PATHS, evaluation, judged, run
from support.watching import make_run

from smolsum.runs import reader
from smolsum.runs.paths import RunPaths


@pytest.fixture
def listed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMOLSUM_RUNS_DIR", raising=False)
    return partial(call, "runs")


def fill(folder: Path) -> None:
    """A finished run, an interrupted one, and a baseline."""
    rows = judged({**{name: [0.5, 0.7] for name in CRITERIA}, "composite": [2.0, 2.8]})
    metrics = {"length/within_tol": 0.25, "composite": 2.4}
    stages = {"length": ["length"], "quality": ["meteor", "bleu"]}
    first = run(folder, "first", PATHS["lfm"], stages, rows, metrics)
    second = run(folder, "second", PATHS["qwen"], {"length": ["length"]}, rows, metrics, state="interrupted")
    for seconds, root in enumerate((first, second)):
        os.utime(RunPaths(root).config, (seconds, seconds))
    evaluation(folder / "baseline-lfm", rows, metrics, model={"path": PATHS["lfm"]})
    (folder / "latest").symlink_to("second")
    (folder / "notes").mkdir()


def test_list(listed: Call) -> None:
    """Runs by time, then evaluations; a run that can go on has its command on stderr. All that is known is one
    document."""
    fill(Path("runs"))
    out, err = done(listed())
    assert [line.split() for line in out.splitlines()] == [
        ["name", "state", "step", "on", "target", "composite", "rewards", "model"],
        ["first", "finished", "8/8", "0.250", "2.400", "length", ">", "meteor+bleu", PATHS["lfm"]],
        ["second", "interrupted", "4/4", "0.250", "2.400", "length", PATHS["qwen"]],
        ["baseline-lfm", "finished", "-", "0.250", "2.400", "-", PATHS["lfm"]],
    ]
    assert err == "second: smolsum train --resume second\n"
    found: dict[str, Any] = json.loads(listed("--json")[1])
    assert found["schema_version"] == 1
    assert [one["kind"] for one in found["runs"]] == ["run", "run", "evaluation"]
    first = found["runs"][0]
    assert (first["path"], first["step"], first["metrics"]["composite"]) == ("runs/first", 8, 2.4)


def test_a_run_shows_its_own_evaluation(listed: Call) -> None:
    """Samples of its last step, and other data with a judge, change none of its figures."""
    fill(Path("runs"))
    rows = judged({"composite": [3.9, 3.9]})
    path = Path("runs/first/run.json")
    edit(path, data={"test": {"split": "test", "fingerprint": "d1", "prompts": "p1"}})
    other = {"test": {"split": "test", "fingerprint": "d2", "prompts": "p2"}}
    metrics = {"length/within_tol": 0.9, "composite": 3.9, "one": 1.0, "more": 1.0}
    evaluation(path.parent / "eval" / "aa-test", rows, metrics, step=8, data=other)
    evaluation(path.parent / "eval" / "zz-test", rows, metrics, step=8, sampler="temperature 1, seed 0")
    assert listed()[1].splitlines()[1].split()[3:5] == ["0.250", "2.400"]


def test_a_long_file_is_read_to_its_end(listed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk: the step is the last one, and not the last of the time that a view gives to a look."""
    make_run(Path("runs"), "long", steps=200)
    monkeypatch.setattr(reader, "CHUNK", 1000)
    monkeypatch.setattr(reader.time, "monotonic", itertools.count().__next__)
    _, out, _ = listed("--json")
    assert json.loads(out)["runs"][0]["step"] == 200


@pytest.mark.parametrize(
    ("evaluations", "shown"),
    [
        # something else shows its own headlines, all of them
        (
            {"json": {"parses": 0.9, "passed": 0.5, "easy": 0.8, "hard": 0.25}},
            ["name state step parses passed easy hard", "json finished - 0.900 0.500 0.800 0.250"],
        ),
        # two tasks have no column in common: each has its own table, headed by its name
        (
            {"strict-json": {"passed": 0.25}, "ab-judge": {"accuracy": 0.25}},
            [
                "ab-judge state step accuracy rewards model",
                "ab-judge finished - 0.250 - -",
                "strict-json state step passed rewards model",
                "strict-json finished - 0.250 - -",
            ],
        ),
    ],
)
def test_another_task(listed: Call, evaluations: dict[str, dict[str, float]], shown: list[str]) -> None:
    for name, metrics in evaluations.items():
        headlines = [{"metric": key, "title": key, "text": "?"} for key in metrics]
        task = {"name": name} if len(evaluations) > 1 else None
        rows = judged({"composite": [2.0]})
        evaluation(Path(f"runs/{name}"), rows, {"meteor": 0.0}, headlines=headlines, task=task)
        edit(Path(f"runs/{name}/summary.json"), metrics=metrics)
    lines = [" ".join(line.split()) for line in listed()[1].splitlines()]
    assert all(line.startswith(start) for line, start in zip(lines, shown, strict=True)), lines


def test_no_runs(listed: Call) -> None:
    code, out, err = listed()
    assert (code, out) == (0, "")
    assert "smolsum train --model tiny" in err
    assert json.loads(listed("--json")[1]) | {"now": ""} == {"schema_version": 1, "now": "", "runs": []}


def test_damage_is_a_row(listed: Call) -> None:
    fill(Path("runs"))
    for name, content in (("first/config.toml", "["), ("first/status.json", "no"), ("baseline-lfm/summary.json", "{")):
        (Path("runs") / name).write_text(content)
    out, _ = done(listed(), "baseline-lfm: remove runs/baseline-lfm and evaluate again\n")
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()}
    assert rows.keys() >= {"first"}
    assert (rows["second"], rows["baseline-lfm"]) == ("interrupted", "damaged")


def test_a_run_whose_process_is_gone(listed: Call) -> None:
    """A run that claims to run is described by the view's own rules, with the command that goes on."""
    make_run(Path("runs"), "mine", state="running")
    _, out, err = listed()
    assert out.splitlines()[1].split()[:2] == ["mine", "STALE"]
    assert err == "mine: smolsum train --resume mine\n"
