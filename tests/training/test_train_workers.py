"""`smolsum train --worker`: what is refused before anything is begun, and a run that loses its only worker."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from support.serving import process
from support.training import arguments, events, make_data, start

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.policy.sampling import rollout_seed


def test_workers_that_will_not_do_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not there, one with another model, one with another token: each by URL, and no run is made."""
    data, runs = make_data(tmp_path / "data"), tmp_path / "runs"
    asked = arguments(data, runs, "mine")
    assert main([*asked, "--worker", "http://127.0.0.1:9"]) == 3
    said = capsys.readouterr().err
    assert "error: cannot reach http://127.0.0.1:9" in said
    assert "hint: start it: smolsum serve-worker" in said
    assert main([*asked, "--worker", "127.0.0.1:8100"]) == 2
    assert "workers.urls must be URLs of workers, each once, got '127.0.0.1:8100'" in capsys.readouterr().err
    with process("--model", "tiny-lfm", log=tmp_path / "log", SMOLSUM_WORKER_TOKEN="a") as (_, client):
        url = str(client.base_url).rstrip("/")
        monkeypatch.setenv("SMOLSUM_WORKER_TOKEN", "b")
        monkeypatch.setenv("SMOLSUM_WORKERS", url)
        assert main(asked) == 3
        assert f"{url} refused (401)" in capsys.readouterr().err
        monkeypatch.setenv("SMOLSUM_WORKER_TOKEN", "a")
        assert main([*asked, "--worker", url]) == 2
        assert f"{url} serves another architecture: lfm2 there, qwen2 here" in capsys.readouterr().err
    assert not runs.exists()


@pytest.mark.slow
def test_a_run_without_workers_waits_stops_and_goes_on(tmp_path: Path) -> None:
    """Its worker is killed: after the wait it ends with 3, saved; with another worker it goes on to the end, each step
    once, each rollout with the seed of its place."""
    data, runs = make_data(tmp_path / "data"), tmp_path / "runs"
    run = runs / "mine"
    settings = {"workers__wait_s": 1.0, "train__checkpoint_every": 100, "stages__length__steps": 6}
    with process("--model", "tiny", log=tmp_path / "log") as (worker, client):
        training = start([*arguments(data, runs, "mine", **settings), "--worker", str(client.base_url)])
        until_step(run, 2, training)
        worker.kill()
        _, said = training.communicate(timeout=120)
    assert training.returncode == 3, said
    assert "error: no worker came back in" in said
    assert f"smolsum train --resume {run}" in said or "hint" in said
    rows = read_jsonl(run / "metrics.jsonl")
    done = rows[-1]["step"]
    assert (run / "checkpoints" / f"step-{done:06d}").exists()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    assert "workers_lost" in events(run)
    with process("--model", "tiny", log=tmp_path / "log") as (_, client):
        assert main(["train", "--resume", str(run), "--worker", str(client.base_url)]) == 0
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


@pytest.mark.slow
def test_weights_travel_as_often_as_asked(tmp_path: Path) -> None:
    """With weights sent every n steps and nothing sampled ahead, the rollouts of a step are from the last sending."""
    data, runs = make_data(tmp_path / "data"), tmp_path / "runs"
    settings = {"stages__length__steps": 7, "stages__quality__steps": 1, "sampling__max_new_tokens": 16}
    with process("--model", "tiny", log=tmp_path / "log") as (_, client):
        for every in (1, 2, 5):
            asked = {**settings, "workers__sync_every": every, "workers__max_staleness": every - 1}
            name = f"every-{every}"
            assert main([*arguments(data, runs, name, **asked), "--worker", str(client.base_url)]) == 0
            *rows, last = read_jsonl(runs / name / "metrics.jsonl")
            assert last["staleness/max"] < every  # the next stage's first weights may still be on their way
            for row in rows:
                age = (row["step"] - 1) % every
                rollouts = read_jsonl(runs / name / "completions" / f"step-{row['step']:06d}.jsonl")
                assert {rollout["policy_version"] for rollout in rollouts} == {row["step"] - 1 - age}
                assert (row["staleness/mean"], row["staleness/max"]) == (age, age)


def until_step(run: Path, step: int, training: subprocess.Popen[str]) -> None:
    """Wait until that many steps are written."""
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < step:
        assert training.poll() is None, training.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
