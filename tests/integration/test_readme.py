"""The README's commands reach its numbers: length is learnt, text stays text, quality rises, JSON fits its schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.places import ROOT

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.record_io import read_summary
from smolsum.stats.paired import mcnemar

pytestmark = pytest.mark.slow


def arguments(page: str, command: str) -> list[str]:
    """The arguments of a `smolsum` command that a page of the documentation shows."""
    assert command in (ROOT / page).read_text(encoding="utf-8")
    return command.split()[1:]


def scores(run: Path, label: str, metric: str) -> list[float]:
    """A metric of every test post, in order of id."""
    rows = sorted(read_jsonl(run / "eval" / f"{label}-test" / "scores.jsonl"), key=lambda row: row["id"])
    return [row[metric] for row in rows]


def test_finetuned_meteor(tmp_path: Path) -> None:
    """Under 25 % on target before, 90 % after the length stage, with at most 5 points more repetition and wrong facts;
    the quality stage then raises METEOR (paired t-test over 200 test posts, p < 0.01)."""
    command = arguments("README.md", "smolsum train --model tiny --strategy finetuned --reward meteor")
    assert main([*command, "--runs-dir", str(tmp_path), "--name", "readme"]) == 0
    run = tmp_path / "readme"
    start, length = (read_summary(run / "eval" / f"{label}-test").metrics for label in ("start", "length"))
    assert start["length/within_tol"] < 0.25
    assert length["length/within_tol"] >= 0.90
    assert length["repeated_trigrams"] <= start["repeated_trigrams"] + 0.05
    assert length["facts/wrong_share"] <= start["facts/wrong_share"] + 0.05
    after, before = scores(run, "quality", "meteor"), scores(run, "length", "meteor")
    result = stats.ttest_rel(after, before)
    assert len(after) == 200
    assert result.statistic > 0
    assert result.pvalue < 0.01


def test_included_meteor(tmp_path: Path) -> None:
    """Both at once keep 80 % on target while METEOR rises over the start."""
    command = arguments("docs/tldr.md", "smolsum train --model tiny --strategy included --reward meteor")
    assert main([*command, "--runs-dir", str(tmp_path), "--name", "readme"]) == 0
    run = tmp_path / "readme"
    after = read_summary(run / "eval" / "included-test").metrics
    assert after["length/within_tol"] >= 0.80
    assert after["meteor"] > read_summary(run / "eval" / "start-test").metrics["meteor"]


def test_strict_json(tmp_path: Path) -> None:
    """The share of the 300 test prompts whose answer satisfies its schema rises by at least 20 points, p < 0.01 by
    McNemar's test; none of these prompts was trained on, here or when the built-in model was made."""
    command = arguments("README.md", "smolsum train --task strict-json")
    assert main([*command, "--runs-dir", str(tmp_path), "--name", "readme"]) == 0
    run = tmp_path / "readme"
    before, after = (np.array(scores(run, label, "passed")) for label in ("start", "standard"))
    assert len(before) == len(after) == 300
    assert after.mean() - before.mean() >= 0.20
    flips = mcnemar(before, after, alternative="two-sided")
    assert flips.gained > flips.lost
    assert flips.p < 0.01
