"""The README's command for document QA reaches its numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.places import ROOT

COMMAND = "smolsum train --task doc-qa"


@pytest.mark.slow
def test_more_questions_are_answered_within_the_limit(tmp_path: Path) -> None:
    """Trained by the README's one command, offline: of the questions about 200 documents that it never saw the reader
    answers at least 10 points more from as many words, p < 0.01 by `smolsum stats --paired`; fewer summaries pass the
    limit, and they have fewer words."""
    assert COMMAND in (ROOT / "README.md").read_text()
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "SMOLSUM_RUNS_DIR": str(tmp_path)}
    smolsum = [sys.executable, "-m", "smolsum"]
    trained = subprocess.run([*smolsum, *COMMAND.split()[1:]], capture_output=True, text=True, env=offline, check=False)
    assert trained.returncode == 0, trained.stderr
    run = Path(trained.stdout.strip())
    start, after = (json.loads((run / "eval" / f"{of}-test" / "summary.json").read_text()) for of in ("start", "qa"))
    before, now = start["metrics"], after["metrics"]
    assert start["n"] == after["n"] == 200
    assert now["answered_within"] - before["answered_within"] >= 0.10, (before, now)
    assert now["over_limit"] < before["over_limit"]
    assert now["words"] < before["words"]
    assert now["ceiling"] == before["ceiling"] > 0.95
    assert now["repeated_trigrams"] < 0.05
    compared = subprocess.run(
        [*smolsum, "stats", "--paired", str(run / "eval" / "start-test"), str(run), "--format", "json"],
        capture_output=True, text=True, env=offline, check=True,
    )  # fmt: skip
    (found,) = (row for row in json.loads(compared.stdout)["results"] if row["metric"] == "answered_within")
    assert found["n"] == 200
    assert found["p"] < 0.01
