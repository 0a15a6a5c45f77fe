"""The commands of README and docs teach what they say, by paired tests on examples that were never trained on. Two
seeds, and no level that another processor's rounding would miss."""

from pathlib import Path

import pytest
from scipy import stats
from support.places import ROOT

from smolsum.cli.main import main
from smolsum.files import read_jsonl

pytestmark = pytest.mark.slow

COMMANDS = {
    "finetuned": ("README.md", "smolsum train --model tiny --strategy finetuned --reward meteor"),
    "included": ("docs/tldr.md", "smolsum train --model tiny --strategy included --reward meteor"),
    "strict-json": ("README.md", "smolsum train --task strict-json"),
    "doc-qa": ("README.md", "smolsum train --task doc-qa"),
    "ab-judge": ("README.md", "smolsum train --task ab-judge"),
}
IMPROVEMENTS = {
    "finetuned": [("start", "length", "off_target", "less"), ("length", "quality", "meteor", "greater")],
    "included": [("start", "included", "off_target", "less"), ("start", "included", "meteor", "greater")],
    "strict-json": [("start", "standard", "passed", "greater")],
    "doc-qa": [("start", "qa", "answered_within", "greater"), ("start", "qa", "words", "less")],
    "ab-judge": [("start", "judge", "right", "greater")],
}
"""for each command the evaluations before and after, the column of their scores, and where it goes"""


@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_the_docs_teaches_what_it_says(name: str, seed: int, tmp_path: Path) -> None:
    """Each improvement has p < 0.01 in a paired t-test on the test split, and texts repeat themselves no more."""
    page, command = COMMANDS[name]
    assert command in (ROOT / page).read_text(encoding="utf-8")
    assert main([*command.split()[1:], f"--seed={seed}", f"--runs-dir={tmp_path}", "--name=readme"]) == 0
    for before, after, metric, direction in IMPROVEMENTS[name]:
        start, end = (scores(tmp_path / "readme", label) for label in (before, after))
        assert start.keys() == end.keys()
        assert len(start) >= 200
        pairs = [[rows[key][metric] for key in start] for rows in (end, start)]
        assert stats.ttest_rel(*pairs, alternative=direction).pvalue < 0.01, (metric, before, after)
        if "repeated_trigrams" in end[next(iter(end))]:
            repeated = [mean([row["repeated_trigrams"] for row in rows.values()]) for rows in (start, end)]
            assert repeated[1] <= repeated[0] + 0.05


def scores(run: Path, label: str) -> dict[str, dict[str, float]]:
    """The scores of every test example, by id."""
    return {row["id"]: row for row in read_jsonl(run / "eval" / f"{label}-test" / "scores.jsonl")}


def mean(values: list[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
