"""Training by a judge and by a preference, asked over HTTP: the offline stand-in, and a judge that goes away."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import rule_judge
from support.judge_server import Reply, answer, failure, serving
from support.rule_judge import rules_served
from support.training import events, included, learned, weights

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.rewards.judge import client_of

SIZES = {"test": 1}


@pytest.fixture(scope="module")
def rules() -> Iterator[str]:
    with rules_served() as url:
        yield url


def judged(data: Path, runs: Path, name: str, reward: str, **changes: object) -> list[str]:
    """The arguments of a run of four steps that rewards length and a judge."""
    judge = {"judge__model": "rules", "judge__wait_s": 0.1, "judge__attempts": 1, "stages__included__steps": 4}
    return [*included(data, runs, name, **(judge | changes)), f"--reward={reward}"]


@pytest.mark.parametrize("reward", ["judge", "preference"])
def test_a_run_is_rewarded_by_the_stand_in(
    data: Path, rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: str
) -> None:
    """Every rollout has a value in [0, 1], some better than others; its weight is in the total."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SMOLSUM_JUDGE_URL", rules)
    client_of.cache_clear()
    assert main(judged(data, tmp_path, "mine", reward)) == 0
    run = tmp_path / "mine"
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row[f"rewards/{reward}/std"] > 0 for row in rows)
    for row in read_jsonl(run / "completions" / "step-000002.jsonl"):
        assert 0 <= row["rewards"][reward] <= 1
        assert row["reward"] == pytest.approx(row["rewards"][reward] + row["rewards"]["length"])
    assert list((tmp_path / "cache" / "smolsum" / "reward-judge").glob("rules-at-*.jsonl"))


def test_a_judge_that_goes_away_and_comes_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run waits, stops saved with 3, and ends, resumed, with the weights of a run whose judge stayed."""
    gone = False

    def judge(prompt: str, before: int) -> Reply:
        return failure(503, "down") if gone else answer(json.dumps(rule_judge.judge(prompt)))

    with serving(mischief=judge) as server:
        monkeypatch.setenv("SMOLSUM_JUDGE_URL", server.url)
        model = {"judge__model": "judge-a", "train__validate_every": 0}
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
        client_of.cache_clear()
        assert main(judged(data, tmp_path / "whole", "mine", "judge", **model)) == 0
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
        client_of.cache_clear()
        rows = [read_jsonl(tmp_path / f"whole/mine/completions/step-{step:06d}.jsonl") for step in (1, 2)]
        asked = len(server.asked) + len({(row["prompt_id"], row["text"]) for own in rows for row in own})

        def leaves(prompt: str, before: int) -> Reply:
            nonlocal gone
            gone = gone or len(server.asked) > asked
            return judge(prompt, before)

        server.mischief = leaves
        assert main(judged(data, tmp_path / "cut", "mine", "judge", **model)) == 3
        assert "reward-judge_lost" in events(tmp_path / "cut" / "mine")
        assert "smolsum train --resume" in capsys.readouterr().err
        done = len(learned(tmp_path / "cut" / "mine"))
        assert done == 2
        gone, server.mischief = False, judge
        client_of.cache_clear()
        assert main(["train", "--resume", "mine", "--runs-dir", str(tmp_path / "cut")]) == 0
    assert learned(tmp_path / "cut" / "mine") == learned(tmp_path / "whole" / "mine")
    assert weights(tmp_path / "cut" / "mine", 4) == weights(tmp_path / "whole" / "mine", 4) != {}


def test_a_run_stops_at_its_cost_and_goes_on_with_more(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer costs 900 tokens in and 50 out, at gpt-5-mini's $0.25 and $2 a million, so the fourth passes $0.001.
    What was paid for is not asked again; a judge without a known price cannot have a limit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = {"judge__model": "gpt-5-mini-2025-08-07", "judge__concurrency": 1, "train__validate_every": 0}
    with serving(mischief=lambda prompt, before: answer(json.dumps(rule_judge.judge(prompt)))) as server:
        monkeypatch.setenv("SMOLSUM_JUDGE_URL", server.url)
        client_of.cache_clear()
        assert main([*judged(data, tmp_path, "unknown", "judge", judge__model="judge-a"), "--max-cost=1"]) == 2
        assert "the price of judge-a is not known" in capsys.readouterr().err
        assert main([*judged(data, tmp_path, "mine", "judge", **known), "--max-cost=0.001"]) == 3
        said = capsys.readouterr().err
        assert "$0.0013 in this command, and --max-cost is 0.001" in said
        assert "--max-cost DOLLARS" in said
        assert len(server.asked) == 4
        client_of.cache_clear()  # another command
        assert main(["train", "--resume", "mine", "--runs-dir", str(tmp_path), "--max-cost=1"]) == 0
        assert set(server.prompts().values()) == {1}
    assert len(learned(tmp_path / "mine")) == 4
