"""A person's labels as one of the judges, more than two judges, and the share that passes, corrected for errors."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from support.calls import Call, done
from support.judge_server import JudgeServer, serving
from support.refusals import assert_refused
from support.training import make_data

from smolsum.files import read_jsonl
from smolsum.runs.typed_json import read_object
from smolsum.stats.judged_share import JudgeErrors, corrected_share

CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
FOLDER = Path("runs/eval-tiny-test")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    with serving() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


@pytest.fixture
def evaluate(tmp_path: Path, call: Call, server: JudgeServer) -> Any:
    """`smolsum eval tiny` on a few posts, with more flags."""
    data = f"--set=data.path={make_data(tmp_path / 'data')}"
    return lambda *flags: call(
        "eval", "tiny", data, "--set=sampling.max_new_tokens=16", "--judge", "judge-a", "--rounds", 1, *flags
    )


def label(rows: Sequence[dict[str, Any]], scores: Sequence[float], head: str = "id,criterion,score") -> None:
    """Write labels.csv with one score for all criteria of each row."""
    lines = [f"{row['id']},{name},{score}" for row, score in zip(rows, scores, strict=True) for name in CRITERIA]
    Path("labels.csv").write_text("\n".join([head, *lines]) + "\n")


def judging() -> dict[str, Any]:
    return dict(read_object(FOLDER / "summary.json")["judging"])


def test_labels_are_a_judge(evaluate: Any) -> None:
    """They agree with the first judge as they say, without a request; unlabelled examples are not missing; they stay
    when the command names no other judge, and follow the file."""
    done(evaluate())
    rows = read_jsonl(FOLDER / "scores.jsonl")
    label(rows[:4], [0.0, 1.0, 0.25, 0.75])
    _, err = done(evaluate("--second-judge", "labels.csv"))
    assert "agreement with labels.csv" in err
    assert "missing" not in err
    second = judging()["second"]
    for name in CRITERIA:
        agreed = second["agreement"][name]
        assert agreed["n"] == 4
        assert agreed["difference"] == pytest.approx(fmean([0.0, 1.0, 0.25, 0.75]) - fmean(r[name] for r in rows[:4]))
    assert second["kappa"]["n"] == 4
    assert second["usage"]["calls"] == 0
    done(evaluate())
    assert judging()["second"]["agreement"] == second["agreement"]
    label(rows[:3], [0.5] * 3)
    done(evaluate("--second-judge", "labels.csv"))
    assert judging()["second"]["agreement"]["clarity"]["n"] == 3


def test_three_judges(evaluate: Any) -> None:
    """Each is compared with the first, and alpha is of all."""
    done(evaluate())
    label(read_jsonl(FOLDER / "scores.jsonl"), [0.5] * len(read_jsonl(FOLDER / "scores.jsonl")))
    _, err = done(evaluate("--second-judge", "judge-b", "--second-judge", "labels.csv"))
    assert "Krippendorff" in err
    facts = judging()
    assert [facts["second"]["model"], *(one["model"] for one in facts["others"])] == ["judge-b", "labels.csv"]
    assert set(facts["alpha"]) == {*CRITERIA, "composite"}
    done(evaluate())
    assert [one["model"] for one in judging()["others"]] == ["labels.csv"]


def test_the_share_that_passes_is_corrected_by_labels(evaluate: Any, server: JudgeServer) -> None:
    """With the judge's errors on the labelled examples, of the others; by hand from the judge's verdicts."""
    done(evaluate())
    rows = read_jsonl(FOLDER / "scores.jsonl")
    label(rows[:3], [1.0, 0.0, 1.0])
    done(evaluate("--second-judge", "labels.csv"))
    (found,) = judging()["corrected"]
    rates = [row["pass_rate"] for row in rows]
    errors = JudgeErrors(fmean([rates[0], rates[2]]), 2, 1 - rates[1], 1)
    share = corrected_share(fmean(rates[3:]), len(rates) - 3, errors)
    assert (found["source"], found["n"]) == ("labels.csv", len(rates) - 3)
    assert (found["sensitivity"], found["specificity"]) == (errors.sensitivity, errors.specificity)
    assert found["share"] == (None if share is None else pytest.approx(share.share))


def test_a_validation_corrects_too(evaluate: Any, call: Call) -> None:
    """An evaluation finds it in the directory of runs; one of another judge is not taken."""
    for judge in ("judge-a", "judge-b"):
        done(call("eval", "--validate-judge", "--judge", judge, "--examples", 3, "--rounds", 1))
    _, err = done(evaluate())
    assert "passed, corrected for the judge's errors" in err
    (found,) = judging()["corrected"]
    assert found["source"] == "runs/judge-judge-a-tldr-test"


BAD = {
    "id,criterion\nID,clarity": "has no column 'score'",
    "id,criterion,score\npost,kindness,0.5": "no criterion 'kindness'",
    "id,criterion,score\nID,clarity,7": "divide scores from 0 to 10 by 10",
    "id,criterion,score\nID,clarity,good": "is not a number",
    "id,criterion,score\nID,clarity,nan": "is not from 0 to 1",
    "id,criterion,score\nID,clarity,": "is not a number",
    "id,criterion,score\nID,clarity,1\nID,clarity,0": "has a second label for clarity",
    "id,criterion,score\nelse,clarity,1": "none of the 1 labels is of an example",
    "id,criterion,score,text\nID,clarity,1,another text": "is for another text",
    "id,criterion,score\nID,clarity": "has 2 of 3 columns",
    "": "no label of any example",
}


def test_labels_that_cannot_be_read(evaluate: Any, server: JudgeServer) -> None:
    """One error with the line and a remedy, before a judge is paid; the first judge's scores stay."""
    assert_refused(evaluate("--second-judge", "none.csv"), "cannot read the labels none.csv")
    assert not server.asked
    done(evaluate())
    before = (FOLDER / "scores.jsonl").read_bytes()
    key = read_jsonl(FOLDER / "scores.jsonl")[0]["id"]
    for text, named in BAD.items():
        Path("labels.csv").write_text(text.replace("ID", key))
        assert_refused(evaluate("--second-judge", "labels.csv"), named)
        assert (FOLDER / "scores.jsonl").read_bytes() == before
    assert_refused(evaluate("--second-judge", "none.csv"), "cannot read the labels none.csv")
    assert_refused(evaluate("--second-judge", "labels.csv", "--second-judge", "labels.csv"), "twice")
