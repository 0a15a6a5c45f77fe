"""The task on the page that says how to add one: a module and its name, tried as they stand there."""

import re
from pathlib import Path

import pytest
from support.places import ROOT

from smolsum.cli import main
from smolsum.files import read_jsonl
from smolsum.runs.record_io import read_summary
from smolsum.tasks.plugins import use_plugins

PAGE = ROOT / "docs" / "plugins.md"


def test_the_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --task the page's file trains; its data, signals and metrics are its own."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if "TASK = " in block)
    assert len(found.splitlines()) <= 40
    path = tmp_path / "capitals.py"
    path.write_text(found.replace(" 200", " 8"), encoding="utf-8")
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(tmp_path / "runs"))
    small = ["--set=stages.capitals.steps=2", "--set=sampling.rollouts=2", "--set=train.validate_every=0"]
    assert main.main(["train", "--task", str(path), "--name", "toy", "--set=task.letters=3", *small, "--plain"]) == 0
    run = tmp_path / "runs" / "toy"
    steps = read_jsonl(run / "metrics.jsonl")
    assert all("rewards/upper/mean" in step for step in steps)
    assert all("length/within_tol" not in step for step in steps)
    summary = read_summary(run / "eval" / "capitals-test")
    assert set(summary.metrics) == {"upper", "passed", "errors/lower case"}
    assert main.main(["eval", str(run), "--plugin", str(path), "--split", "validation", "--plain"]) == 0
    capsys.readouterr()
    assert main.main(["train", "--task", str(path), "--set=task.target_tokens=3", "--dry-run"]) == 2
    assert "unknown key 'task.target_tokens' of task capitals" in capsys.readouterr().err
    use_plugins()
