"""`smolsum eval --worker`: the same completions as here, whatever becomes of the workers."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.serving import process
from support.training import PATIENCE_S, SIZES, start, trained

from smolsum.cli.main import main
from smolsum.files import read_jsonl

LORA = {"lora__rank": 4, "lora__keys": "self_attn.q_proj"}


@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="whole"), pytest.param(LORA, id="adapter", marks=pytest.mark.slow)]
)
def test_workers_give_what_this_machine_gives(
    settings: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers that hold the untrained model are given the trained weights; every completion is that of the run's
    own evaluation on this machine, and says which worker sampled it."""
    monkeypatch.delenv("SMOLSUM_WORKERS", raising=False)
    steps = {"stages__length__steps": 2, "stages__quality__steps": 1, "stages__length__learning_rate": 3e-3}
    run = trained(data, tmp_path, "mine", **steps, **settings)
    ours = {row["id"]: row for row in read_jsonl(run / "eval" / "quality-test" / "scores.jsonl")}
    evaluated = ["eval", str(run), "--name", "far", "--set", "train.eval_batch=4"]
    with (
        process("--model", "tiny", log=tmp_path / "a") as (_, a),
        process("--model", "tiny", log=tmp_path / "b") as (_, b),
    ):
        assert main([*evaluated, "--worker", str(a.base_url), "--worker", str(b.base_url)]) == 0
    far = run / "eval" / "far"
    rows = read_jsonl(far / "generations.jsonl")
    assert {row["id"]: row["text"] for row in rows} == {name: row["text"] for name, row in ours.items()}
    assert len(rows) == SIZES["test"]
    assert {row["worker"] for row in rows} <= {client.base_url.netloc.decode() for client in (a, b)}
    assert {row["policy_version"] for row in rows} == {3}
    scores = read_jsonl(far / "scores.jsonl")
    assert {row["id"]: row["meteor"] for row in scores} == {name: row["meteor"] for name, row in ours.items()}


@pytest.mark.slow
def test_evaluation_survives_dying_workers(tmp_path: Path) -> None:
    """One is killed: the other takes over its posts. Both are: exit 3, and the same command without workers makes only
    what is missing."""
    sizes = ["--set=train.eval_batch=2", "--set=workers.wait_s=1", "--set=sampling.max_new_tokens=24"]
    evaluated = ["eval", "tiny", "--runs-dir", str(tmp_path), *sizes]
    saved = tmp_path / "eval-tiny-test" / "generations.jsonl"
    with (
        process("--model", "tiny", log=tmp_path / "a") as (first, a),
        process("--model", "tiny", log=tmp_path / "b") as (second, b),
    ):
        evaluation = start([*evaluated, "--worker", str(a.base_url), "--worker", str(b.base_url)])
        until(evaluation, saved, 10)
        first.kill()
        until(evaluation, saved, 60)
        second.kill()
        _, said = evaluation.communicate(timeout=PATIENCE_S)
    assert evaluation.returncode == 3, said
    assert "error: no worker came back in" in said
    then = read_jsonl(saved)
    assert 60 <= len(then) < 200
    assert main(evaluated) == 0
    now = read_jsonl(saved)
    assert now[: len(then)] == then
    assert len({row["id"] for row in now}) == len(now) == 200
    assert {row["worker"] for row in now[len(then) :]} == {"local"}
    assert {row["worker"] for row in then} == {client.base_url.netloc.decode() for client in (a, b)}


def until(evaluation: subprocess.Popen[str], saved: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not saved.exists() or len(saved.read_bytes().splitlines()) < count:
        assert evaluation.poll() is None, evaluation.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
