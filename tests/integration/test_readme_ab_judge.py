"""The README's command for judging reaches its numbers: from chance to at least three of four held-out pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats
from support.places import ROOT

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.record_io import read_summary

pytestmark = pytest.mark.slow

COMMAND = "smolsum train --task ab-judge"


def test_judging_is_learnt_from_chance(tmp_path: Path) -> None:
    """Over 200 unseen pairs no better than a coin before (p > 0.05); at least 75 % after, which a coin, and the model
    before, would not reach by luck (p < 0.01); both letters are used, and what can be seen in a text is seen."""
    assert COMMAND in (ROOT / "README.md").read_text(encoding="utf-8")
    assert main([*COMMAND.split()[1:], "--runs-dir", str(tmp_path), "--name", "readme"]) == 0
    start, end = (read_summary(tmp_path / "readme" / "eval" / f"{label}-test").metrics for label in ("start", "judge"))
    rows = [
        {row["id"]: row["right"] for row in read_jsonl(tmp_path / "readme" / "eval" / f"{label}-test" / "scores.jsonl")}
        for label in ("start", "judge")
    ]
    assert len(rows[0]) == len(rows[1]) == 200
    assert start["p_chance"] > 0.05
    assert end["accuracy"] >= 0.75
    assert end["p_chance"] < 0.01
    gained = sum(rows[1][key] > rows[0][key] for key in rows[0])
    lost = sum(rows[1][key] < rows[0][key] for key in rows[0])
    assert gained > lost
    assert stats.binomtest(gained, gained + lost).pvalue < 0.01  # McNemar's test
    assert 0.3 < end["position/said_a"] < 0.7
    assert end["well_formed"] >= 0.95
