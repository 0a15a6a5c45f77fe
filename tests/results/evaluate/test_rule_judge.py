"""The stand-in for a judge, as its users start it: a process, asked by `smolsum eval` over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.calls import Call, done
from support.rule_judge import rules_served
from support.training import PATIENCE_S, make_data

from smolsum.files import read_jsonl
from smolsum.tasks.tldr.criteria import CLARITY, CONCISENESS, COVERAGE, FAITHFULNESS


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with rules_served() as url:
        yield url


def ask(url: str, *, post: str, summary: str, steps: str) -> int:
    """The score of a question as G-Eval words it."""
    shown = f"Input:\n{post} \n\n" if post else ""
    prompt = f"Evaluation Steps:\n{steps}\n\nTest Case:\n{shown}Actual Output:\n{summary} \n\n\n\nParameters:\nall\n"
    body = {"model": "rules", "messages": [{"role": "user", "content": prompt}]}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=PATIENCE_S).json()
    return int(json.loads(answer["choices"][0]["message"]["content"])["score"])


def test_rules(url: str) -> None:
    """Each rule tells a fair summary from one that has its fault."""
    post = "My brother Noah asked Emma for $300 last Friday. He wants to repair the garage. " * 3
    good = "Noah asked Emma for $300 to repair the garage."
    for criterion, bad in (
        (FAITHFULNESS, "Olivia stole twelve elephants from Berlin."),
        (COVERAGE, "Somebody wants something."),
        (CONCISENESS, post),
        (CLARITY, "the the the the Noah Noah and and"),
    ):
        scores = [ask(url, post=post, summary=text, steps=f"1. {criterion.steps[0]}") for text in (good, bad)]
        assert scores[0] >= 7, criterion.name
        assert scores[1] <= 4, criterion.name


def test_what_is_no_question(url: str) -> None:
    """Anything else is a 400 that says so, not a score."""
    body = {"model": "rules", "messages": [{"role": "user", "content": "Hello?"}]}
    assert httpx.post(f"{url}/chat/completions", json=body, timeout=PATIENCE_S).status_code == 400
    assert httpx.post(f"{url}/chat/completions", content=b"{", timeout=PATIENCE_S).status_code == 400
    assert httpx.get(f"{url}/models", timeout=PATIENCE_S).json()["data"][0]["id"] == "rules"


def test_an_evaluation(url: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four scores of every example, none missing."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    data = f"--set=data.path={make_data(tmp_path / 'data')}"
    done(call("eval", "tiny", data, "--judge", "rules", "--rounds", "1", "--quiet"))
    rows = read_jsonl(Path("runs/eval-tiny-test/scores.jsonl"))
    assert all(0 <= row["composite"] <= 4 for row in rows)
    assert len({row["composite"] for row in rows}) > 1
