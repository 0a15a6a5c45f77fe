"""The commands of README and docs teach what they say, by paired tests on examples that were never trained on, and an
evaluation is a matter of seconds. Two seeds, and no level that another processor's rounding would miss."""

import os
import resource
from pathlib import Path
from statistics import mean

import pytest
from scipy import stats
from support.calls import done
from support.places import ROOT
from support.processes import python

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.typed_json import read_summary

COMMANDS = {
    "constrained": ("README.md", "smolsum train --model tiny --reward meteor"),
    "finetuned": ("docs/tldr.md", "smolsum train --model tiny --strategy finetuned --reward meteor"),
    "included": ("docs/tldr.md", "smolsum train --model tiny --strategy included --reward meteor"),
    "strict-json": ("README.md", "smolsum train --task strict-json"),
    "doc-qa": ("README.md", "smolsum train --task doc-qa"),
    "ab-judge": ("README.md", "smolsum train --task ab-judge"),
}
IMPROVEMENTS = {
    "constrained": [("start", "constrained", "off_target", "less"), ("start", "constrained", "meteor", "greater")],
    "finetuned": [("start", "length", "off_target", "less"), ("length", "quality", "meteor", "greater")],
    "included": [("start", "included", "off_target", "less"), ("start", "included", "meteor", "greater")],
    "strict-json": [("start", "standard", "passed", "greater")],
    "doc-qa": [("start", "qa", "answered_within", "greater"), ("start", "qa", "words", "less")],
    "ab-judge": [("start", "judge", "right", "greater")],
}
"""for each command the evaluations before and after, the column of their scores, and where it goes"""


def scores(run: Path, label: str) -> dict[str, dict[str, float]]:
    """The scores of every test example, by id."""
    return {row["id"]: row for row in read_jsonl(run / "eval" / f"{label}-test" / "scores.jsonl")}


@pytest.mark.slow
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


def test_forty_steps_move_the_length_to_its_target_and_text_stays_text(tmp_path: Path) -> None:
    """Lengths are nearer to the target than the untrained model's, METEOR has not fallen, and nothing is repeated
    instead of said."""
    command = ["train", "--model=tiny", "--strategy=included", "--reward=meteor", "--set=stages.included.steps=40"]
    assert main([*command, "--set=data.test_rows=100", f"--runs-dir={tmp_path}", "--name=short"]) == 0
    start, end = (read_summary(tmp_path / "short/eval" / f"{label}-test") for label in ("start", "included"))
    assert start.n == end.n == 100
    before, after = start.metrics, end.metrics
    assert after["length/off_target"] < before["length/off_target"]
    assert after["meteor"] > before["meteor"]
    assert after["repeated_trigrams"] < before["repeated_trigrams"] + 0.05


@pytest.mark.slow
def test_200_posts_are_evaluated_in_a_minute(tmp_path: Path) -> None:
    """The built-in model's test split takes under a minute, start of the process included: in time on the processor,
    as the clock on the wall measures the neighbours too."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out, _ = done(python("-m", "smolsum", "eval", "tiny", "--runs-dir", tmp_path, environ=environ))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert read_summary(Path(out.strip())).n == 200
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
