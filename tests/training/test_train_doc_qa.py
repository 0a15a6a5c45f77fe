"""`train --task doc-qa` with a reader behind a real endpoint: what it asks, and a run whose reader goes away."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.judge_server import JudgeServer, Reply, answer, failure, score_of, serving
from support.refusals import assert_refused
from support.training import events, learned, weights

from smolsum.cli.main import main
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


def train(data: Path, runs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """A run of four steps, with its own cache, as in its own process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    clients_of.cache_clear()
    sets = {
        "task.reader": "judge-a", "task.wait_s": 0.1, "task.attempts": 1, "sampling.rollouts": 4, "task.max_words": 30,
        "sampling.max_new_tokens": 46, "train.prompts_per_step": 2, "train.validate_every": 2, "data.path": str(data),
        "train.validation_prompts": 2, "train.checkpoint_every": 100, "stages.qa.steps": 4,
    }  # fmt: skip
    given = [f"--set={key}={value}" for key, value in sets.items()]
    return main(["train", "--task=doc-qa", "--model=tiny", "--runs-dir", str(runs), "--name=mine", *given, *more])


def test_a_reader_that_goes_away_and_comes_back(
    data: Path, server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run waits, stops saved with 3, and ends, resumed, with the weights of a run whose reader stayed."""
    assert train(data, tmp_path / "whole", tmp_path / "a", monkeypatch) == 0
    whole, run = tmp_path / "whole" / "mine", tmp_path / "parted" / "mine"
    rows = read_jsonl(whole / "metrics.jsonl")
    assert all(0 <= row["rewards/answered/mean"] <= 1 and row["rewards/word_limit/mean"] <= 0 for row in rows)
    assert "validation/answered_within" in rows[1]
    assert "words/over_limit" in rows[0]
    assert "answered within the limit" in capsys.readouterr().err
    asked, before = len(server.asked), [row["step"] for row in rows].index(3)

    def away(prompt: str, asked_before: int) -> Reply | None:
        written = run / "metrics.jsonl"
        gone = written.exists() and len(read_jsonl(written)) > before
        return failure(503, "down") if gone else brain(prompt, asked_before)

    server.mischief = away
    assert train(data, tmp_path / "parted", tmp_path / "b", monkeypatch) == 3
    printed, said = capsys.readouterr()
    assert printed == f"{run}\n"
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
    assert main(["train", "--resume", str(run)]) == 0
    assert learned(run) == learned(whole)
    assert weights(run, 4) == weights(whole, 4)


def test_a_reader_that_fails_for_some_documents(
    data: Path, server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    short = ("--set=stages.qa.steps=2", "--set=sampling.max_new_tokens=24")
    assert train(data, tmp_path, tmp_path / "a", monkeypatch, *short) == 0
    said, run = capsys.readouterr().err, tmp_path / "mine"
    assert "start: 1 of 4 not read" in said
    assert re.search(f"qa: 1 of 4 not read.*smolsum eval {run} asks again", said)
    assert re.search("validation after step 2 has no reward.*1 of 2 not read", said)
    rows = read_jsonl(run / "metrics.jsonl")
    assert rows[1]["validation/unread"] == 1.0
    assert not any("validation/reward" in row for row in rows)
    refused = (main(["eval", str(run), "--best", "--runs-dir", str(tmp_path)]), *capsys.readouterr())
    assert_refused(refused, "mine has no best checkpoint")
    failing.clear()
    clients_of.cache_clear()
    assert main(["eval", str(run), "--runs-dir", str(tmp_path)]) == 0
    assert "not read" not in capsys.readouterr().err
    assert json.loads((run / "eval/qa-test/summary.json").read_text())["metrics"]["unread"] == 0.0


def test_a_reader_that_refuses_the_key(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence with a remedy, before anything is learnt; and without a key or URL no request is sent."""
    with serving(key="a-key") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        assert train(data, tmp_path / "runs", tmp_path / "a", monkeypatch) == 2
        assert "refuses the key" in capsys.readouterr().err
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    code = train(data, tmp_path / "others", tmp_path / "a", monkeypatch)
    assert_refused((code, *capsys.readouterr()), "key", "reader judge-a")
    assert not (tmp_path / "others").exists()
