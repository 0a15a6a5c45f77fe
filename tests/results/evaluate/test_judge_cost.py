"""What the judges of a command may cost: shown for all evaluations, asked once, limited by --max-cost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.calls import Call
from support.judge_server import JudgeServer, answer, serving
from support.refusals import assert_refused, refuses

from smolsum import console
from smolsum.files import read_jsonl
from smolsum.llm.endpoints import DEFAULT_JUDGE
from smolsum.results.evaluate.judge_cost import CostLimitError, Estimate, JudgeCost

EXAMPLES = 3
A_DOLLAR = Estimate(calls=100, input_tokens=1000, output_tokens=100, dollars=1.0)
NO_PRICE = Estimate(calls=100, input_tokens=1000, output_tokens=100, dollars=None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge, which the environment names."""
    with serving() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions asked on a terminal whose user agrees."""
    questions: list[str] = []
    monkeypatch.setattr(console, "can_ask", lambda: True)
    monkeypatch.setattr(console, "agree", lambda question: questions.append(question) or True)  # type: ignore[func-returns-value]
    return questions


def test_one_question_covers_all_evaluations(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The total is shown before it, and it comes again only where later evaluations are dearer than was agreed."""
    cost = JudgeCost(None, agreed=False, quiet=False)
    for left in (4, 3, 2):
        cost.evaluations_left = left
        cost.approve("judge-a", A_DOLLAR)
    assert len(asked) == 1
    assert "up to 400 calls in 4 evaluations, about $4.00" in capsys.readouterr().err
    cost.evaluations_left = 1
    cost.approve("judge-a", Estimate(1000, 10_000, 1000, dollars=10.0))
    assert len(asked) == 2


def test_each_judge_is_agreed_to_once(asked: list[str]) -> None:
    JudgeCost(None, agreed=True, quiet=True).approve("judge-a", A_DOLLAR)
    assert not asked
    cost = JudgeCost(None, agreed=False, quiet=True)
    for judge in ("judge-a", "judge-b", "judge-a"):
        cost.approve(judge, NO_PRICE)
    assert len(asked) == 2


def test_the_limit_holds_for_all_evaluations_and_judges() -> None:
    cost = JudgeCost(3.0, agreed=True, quiet=True)
    with refuses("--max-cost", "judge-a"):
        cost.approve("judge-a", NO_PRICE)
    cost.evaluations_left = 4
    with refuses("$4.00", "--max-cost", error=CostLimitError):
        cost.approve("judge-a", A_DOLLAR)
    cost.evaluations_left = 3
    cost.approve("judge-a", A_DOLLAR)
    cost.pay(2.5)
    cost.evaluations_left = 1
    with refuses("$3.50", error=CostLimitError):
        cost.approve("judge-b", A_DOLLAR)
    cost.pay(0.5)
    with refuses("$3.25", error=CostLimitError):
        cost.pay(0.25)


def command(folder: Path, max_cost: str) -> list[object]:
    few = ["--set=task.target_tokens=8", "--set=sampling.max_new_tokens=4", f"--set=data.test_rows={EXAMPLES}"]
    judged = ["--judge", DEFAULT_JUDGE, "--rounds", 2, "--concurrency", 1, "--max-cost", max_cost]
    return ["baseline", *judged, *few, "--runs-dir", folder]


def test_nothing_is_asked_above_the_limit(server: JudgeServer, tmp_path: Path, call: Call) -> None:
    """All evaluations of the command together are above it; what needs no judge is saved."""
    assert_refused(call(*command(tmp_path, "0.001")), "--max-cost", error=CostLimitError)
    assert not server.asked
    assert len(list(tmp_path.glob("*/generations.jsonl"))) == 1


def test_judging_stops_once_it_has_cost_too_much(server: JudgeServer, tmp_path: Path, call: Call) -> None:
    """Answers longer than estimated do not pass the limit by more than one question; they are kept."""
    server.mischief = lambda prompt, before: answer('{"reason": "long", "score": 5}', tokens=100_000)
    assert_refused(call(*command(tmp_path, "0.5")), "--max-cost", error=CostLimitError)
    assert len(server.asked) == 3  # at $2 for a million tokens
    (judgements,) = tmp_path.glob("*/judgements.jsonl")
    assert len(read_jsonl(judgements)) == 3
    assert (judgements.parent / "scores.jsonl").exists()
