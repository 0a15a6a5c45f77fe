"""`smolsum train --worker`: what is refused before anything is begun, and a run that loses its only worker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.calls import Call
from support.refusals import assert_refused
from support.serving import process
from support.training import arguments, before_update, events

from smolsum.cli.main import main
from smolsum.errors import UnreachableError
from smolsum.files import read_jsonl
from smolsum.policy.sampling import rollout_seed


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a worker answers that no test kills."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with process("--model", "tiny", log=log) as (_, client):
        yield str(client.base_url)


def test_workers_that_will_not_do_are_refused(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not there, one with another model, one with another token: each by URL, and no run is made."""
    asked, nowhere = arguments(data, tmp_path / "runs", "mine"), "http://127.0.0.1:9"
    assert_refused(call(*asked, "--worker", nowhere), nowhere, "smolsum serve-worker", error=UnreachableError)
    assert_refused(call(*asked, "--worker", "127.0.0.1:8100"), "workers.urls", "'127.0.0.1:8100'")
    with process("--model", "tiny-lfm", log=tmp_path / "log", SMOLSUM_WORKER_TOKEN="a") as (_, client):
        url = str(client.base_url).rstrip("/")
        monkeypatch.setenv("SMOLSUM_WORKER_TOKEN", "b")
        monkeypatch.setenv("SMOLSUM_WORKERS", url)
        assert_refused(call(*asked), f"{url} refused (401)", error=UnreachableError)
        monkeypatch.setenv("SMOLSUM_WORKER_TOKEN", "a")
        assert_refused(call(*asked, "--worker", url), url, "lfm2 there, qwen2 here")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_without_workers_waits_stops_and_goes_on(
    worker: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is killed in a step: after the wait it ends with 3, saved; with another worker it goes on to the end,
    each step once, each rollout with the seed of its place."""
    run = tmp_path / "mine"
    settings = {"workers__wait_s": 0.5, "train__checkpoint_every": 100, "stages__length__steps": 6}
    with process("--model", "tiny", log=tmp_path / "log") as (killed, client):

        def lose(update: int) -> None:
            if update == 3:
                killed.kill()
                killed.wait()

        with before_update(lose):
            assert main([*arguments(data, tmp_path, "mine", **settings), "--worker", str(client.base_url)]) == 3
    said = capsys.readouterr().err
    assert "error: no worker came back in" in said
    assert f"smolsum train --resume {run}" in said or "hint" in said
    rows = read_jsonl(run / "metrics.jsonl")
    done = rows[-1]["step"]
    assert (run / "checkpoints" / f"step-{done:06d}").exists()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert "workers_lost" in events(run)
    assert main(["train", "--resume", str(run), "--worker", worker]) == 0
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert all(row["staleness/max"] <= 1 for row in rows)
    assert f"attempt 2 from step {done}" in (run / "events.jsonl").read_text()
    for step in range(1, 10):
        rollouts = read_jsonl(run / f"completions/step-{step:06d}.jsonl")
        names = list(dict.fromkeys(row["prompt_id"] for row in rollouts))
        expected = [rollout_seed(42, step, p, name, g) for p, name in enumerate(names) for g in range(4)]
        assert [row["seed"] for row in rollouts] == expected
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+", row["worker"]) for row in rollouts)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_weights_travel_as_often_as_asked(worker: str, data: Path, tmp_path: Path, every: int) -> None:
    """With weights sent every n steps and nothing sampled ahead, the rollouts of a step are from the last sending."""
    run = tmp_path / "run"
    asked = {
        "stages__length__steps": 7, "stages__quality__steps": 1, "sampling__max_new_tokens": 16,
        "workers__sync_every": every, "workers__max_staleness": every - 1,
    }  # fmt: skip
    assert main([*arguments(data, tmp_path, "run", **asked), "--worker", worker]) == 0
    *rows, last = read_jsonl(run / "metrics.jsonl")
    assert last["staleness/max"] < every  # the next stage's first weights may still be on their way
    for row in rows:
        age = (row["step"] - 1) % every
        rollouts = read_jsonl(run / "completions" / f"step-{row['step']:06d}.jsonl")
        assert {rollout["policy_version"] for rollout in rollouts} == {row["step"] - 1 - age}
        assert (row["staleness/mean"], row["staleness/max"]) == (age, age)
