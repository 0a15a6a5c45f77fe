"""`train --task doc-qa` with a reader behind a real endpoint: what it asks, and a run whose reader goes away."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.calls import Call, done
from support.judge_server import JudgeServer, Reply, answer, failure, score_of, serving
from support.refusals import assert_refused
from support.training import events, learned, weights

from smolsum.config.sections import DataConfig
from smolsum.files import read_jsonl
from smolsum.tasks.data import load_split
from smolsum.tasks.doc_qa.reader_model import clients_of


def brain(prompt: str, before: int) -> Reply:
    """Some answer to everything, the same every time."""
    luck = score_of("judge-a", f"{prompt}Test Case:") % 2
    if prompt.startswith("Somebody was asked"):
        return answer(json.dumps({"right": luck == 1}))
    return answer(json.dumps({"answer": "Noah." if luck else None}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A reader."""
    with serving(mischief=brain) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        yield served


Train = Callable[..., tuple[int, str, str]]


@pytest.fixture
def train(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Train:
    """A run `mine` of four steps in this folder, with its own cache, as in its own process."""
    sets = {
        "task.reader": "judge-a", "task.wait_s": 0.1, "task.attempts": 1, "sampling.rollouts": 4, "task.max_words": 30,
        "sampling.max_new_tokens": 46, "train.prompts_per_step": 2, "train.validate_every": 2, "data.path": str(data),
        "train.validation_prompts": 2, "train.checkpoint_every": 100, "stages.qa.steps": 4,
    }  # fmt: skip

    def run(runs: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-of-{runs}"))
        clients_of.cache_clear()
        given = [f"--set={key}={value}" for key, value in sets.items()]
        return call(
            "train", "--task=doc-qa", "--model=tiny", f"--runs-dir={tmp_path / runs}", "--name=mine", *given, *more
        )

    return run


def test_a_reader_that_goes_away_and_comes_back(server: JudgeServer, train: Train, tmp_path: Path, call: Call) -> None:
    """The run waits, stops saved with 3, and ends, resumed, with the weights of a run whose reader stayed."""
    done(train("whole"), "answered within the limit")
    whole, run = tmp_path / "whole" / "mine", tmp_path / "parted" / "mine"
    rows = read_jsonl(whole / "metrics.jsonl")
    assert all(0 <= row["rewards/answered/mean"] <= 1 and row["rewards/word_limit/mean"] <= 0 for row in rows)
    assert "validation/answered_within" in rows[1]
    assert "words/over_limit" in rows[0]
    asked, before = len(server.asked), [row["step"] for row in rows].index(3)

    def away(prompt: str, asked_before: int) -> Reply | None:
        written = run / "metrics.jsonl"
        gone = written.exists() and len(read_jsonl(written)) > before
        return failure(503, "down") if gone else brain(prompt, asked_before)

    server.mischief = away
    code, printed, said = train("parted")
    assert (code, printed) == (3, f"{run}\n")
    named = ("error: the reader judge-a", f"smolsum train --resume {run}", "waiting up to 0.1 s")
    assert [part for part in named if part not in said] == []
    assert "reader_lost" in events(run)
    assert len(server.asked) > asked
    assert read_jsonl(run / "metrics.jsonl")[-1]["step"] == 3
    assert (run / "checkpoints" / "step-000003" / "meta.json").exists()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    server.mischief = brain
    clients_of.cache_clear()
    config = (run / "config.toml").read_text()  # how the reader is asked may change: no weight depends on it
    (run / "config.toml").write_text(re.sub(r"(?m)^attempts = .*", "attempts = 9", config))
    assert "attempts = 9" in (run / "config.toml").read_text()
    done(call("train", "--resume", run))
    assert learned(run) == learned(whole)
    assert weights(run, 4) == weights(whole, 4)


def test_a_reader_that_fails_for_some_documents(
    data: Path, server: JudgeServer, train: Train, tmp_path: Path, call: Call
) -> None:
    """How many are in no mean stands next to the means, and a validation of the others has no reward and no winner."""
    posts = [load_split(DataConfig(path=str(data)), split).examples[0].source for split in ("validation", "test")]
    failing = list(posts)

    def some(prompt: str, before: int) -> Reply:
        if prompt.startswith("Somebody was asked"):
            refused = any(post in prompt for post in failing)
            return failure(400, "too long") if refused else answer(json.dumps({"right": True}))
        return answer(json.dumps({"answer": "Noah."}))

    server.mischief = some
    short, run = ("--set=stages.qa.steps=2", "--set=sampling.max_new_tokens=24"), tmp_path / "runs" / "mine"
    _, said = done(train("runs", *short), "start: 1 of 4 not read")
    assert re.search(f"qa: 1 of 4 not read.*smolsum eval {run} asks again", said)
    assert re.search("validation after step 2 has no reward.*1 of 2 not read", said)
    rows = read_jsonl(run / "metrics.jsonl")
    assert rows[1]["validation/unread"] == 1.0
    assert not any("validation/reward" in row for row in rows)
    assert_refused(call("eval", run, "--best", "--runs-dir", tmp_path), "mine has no best checkpoint")
    failing.clear()
    clients_of.cache_clear()
    assert "not read" not in done(call("eval", run, "--runs-dir", tmp_path))[1]
    assert json.loads((run / "eval/qa-test/summary.json").read_text())["metrics"]["unread"] == 0.0


def test_a_reader_without_a_key_or_a_url_is_refused(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is learnt, and no request is sent; nor is anything learnt where the endpoint refuses the key."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert_refused(train("runs"), "key", "reader judge-a")
    assert not (tmp_path / "runs").exists()
    with serving(key="a-key") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        code, _, err = train("runs")
    assert (code, "refuses the key" in err) == (2, True), err
