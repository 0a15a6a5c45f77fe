"""Several processes that train one model, as `mlx.launch` starts them: real ones, over loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from support.training import state, wait_until

from smolsum.files import read_jsonl
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.control import make_request, withdraw
from smolsum.runs.paths import RunPaths

SETTINGS = (
    "train.prompts_per_step=3",  # one rank has two prompts, the other one
    "train.validate_every=1",
    "train.validation_prompts=2",
    "train.checkpoint_every=1",
    "sampling.rollouts=4",
    "sampling.max_new_tokens=24",
    "stages.included.steps=3",
    "stages.included.beta=0.05",
)


UPDATE = """
import random, sys
from smolsum.config.sections import StageConfig
from smolsum.config.sections import GrpoConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.policy import distributed
from smolsum.policy.load import load_policy
from smolsum.types import Prompt, Rollout, RolloutGroup
import mlx.core as mx
from mlx.utils import tree_flatten

draw = random.Random(0)
ids = lambda n: tuple(draw.randrange(5, 800) for _ in range(n))
def group(p):
    rollouts = [Rollout(ids(n), (-6.5,) * n, "stop", 0, "local", n, "") for n in (9, 17, 30)]
    return RolloutGroup(Prompt(str(p), (), ids(20 + p), (), {}), tuple(rollouts))
groups = [group(p) for p in range(int(sys.argv[1]))]
advantages = mx.array([[draw.gauss(0, 1) for _ in range(3)] for _ in groups])
stage = StageConfig({"length": 1.0}, 1, 1, 1.0, 1e-6, "constant", 0, beta=0.0)
grads, metrics = gradients(
    load_policy("builtin:tiny").model, groups, advantages, GrpoConfig(), stage, max_new_tokens=32
)
if distributed.leads():
    mx.savez(sys.argv[2], **dict(tree_flatten(grads)), metrics=mx.array([metrics[k] for k in sorted(metrics)]))
"""


def launch(
    count: int, command: list[str], folder: Path, own: Sequence[Mapping[str, str]] = ({}, {})
) -> list[subprocess.Popen[str]]:
    """The command in `count` ranks that talk over free ports, or by itself; `own` are variables of each rank."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = folder / f"hosts-{time.monotonic_ns()}.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{s.getsockname()[1]}"] for s in sockets]))
    for s in sockets:
        s.close()
    ranked = [{"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(n)} for n in range(count)] if count > 1 else [{}]
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **ring, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for ring, variables in zip(ranked, own, strict=False)
    ]


def start(runs: Path, count: int, *more: str, resume: str | None = None) -> list[subprocess.Popen[str]]:
    """`count` ranks of one training."""
    asked = ["--resume", resume] if resume else ["--model", "tiny", "--strategy", "included", "--name", "run"]
    sets = [] if resume else [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    return launch(count, ["-m", "smolsum", "train", "--runs-dir", str(runs), *asked, *sets], runs.parent)


def finish(processes: list[subprocess.Popen[str]], code: int = 0) -> list[tuple[str, str]]:
    """What each rank wrote to stdout and stderr."""
    said = [p.communicate(timeout=300) for p in processes]
    assert [p.returncode for p in processes] == [code] * len(processes), "\n".join(
        word for pair in said for word in pair
    )
    return said


def weights(runs: Path) -> dict[str, np.ndarray]:
    held = mx.load(str(sorted((runs / "run" / "checkpoints").iterdir())[-1] / "model.safetensors"))
    return {name: np.array(array.astype(mx.float32)) for name, array in held.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process."""
    runs = tmp_path_factory.mktemp("alone") / "runs"
    finish(start(runs, 1))
    return runs


def assert_same(got: Path, expected: Path) -> None:
    """The same weights, metrics and completions."""
    ours, theirs = weights(got), weights(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:  # Adam magnifies what is noise around 0
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-4, err_msg=name)
    for a, b in zip(
        (got / "run/metrics.jsonl").read_text().splitlines(),
        (expected / "run/metrics.jsonl").read_text().splitlines(),
        strict=True,
    ):
        one, other = json.loads(a), json.loads(b)
        for key in one.keys() | other.keys():
            if isinstance(one[key], str) or one[key] is None:
                assert one[key] == other[key] or key == "time", key
            elif not key.startswith(("perf/", "system/")):
                assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
    assert tokens(got) == tokens(expected)


def tokens(runs: Path) -> list[list[int]]:
    """What the first step sampled, in the order of its prompts."""
    lines = (runs / "run/completions/step-000001.jsonl").read_text().splitlines()
    return [json.loads(line)["token_ids"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [4, 3, 1], ids=["halves", "two and one", "one for two"])
def test_the_gradient_of_two_ranks_is_that_of_one(groups: int, tmp_path: Path) -> None:
    """One rank with twice the groups; whatever the shares are, and metrics as well."""
    found = []
    for count in (1, 2):
        finish(launch(count, ["-c", UPDATE, str(groups), str(tmp_path / f"{count}.npz")], tmp_path))
        found.append({name: np.array(array) for name, array in mx.load(str(tmp_path / f"{count}.npz")).items()})
    one, two = found
    np.testing.assert_allclose(two.pop("metrics"), one.pop("metrics"), rtol=1e-5, atol=1e-6)
    norm = np.sqrt(sum(np.square(g).sum() for g in one.values()))
    assert norm > 0.01
    for name in one:
        np.testing.assert_allclose(two[name] / norm, one[name] / norm, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_two_ranks_train_as_one(alone: Path, tmp_path: Path) -> None:
    """Each samples and trains its share; the first alone writes and speaks."""
    first, second = finish(start(tmp_path / "runs", 2))
    assert first[0].strip() == str(tmp_path / "runs/run")
    assert second[0] == ""
    assert_same(tmp_path / "runs", alone)


@pytest.mark.slow
def test_a_resumed_run_takes_the_first_rank_s_state(alone: Path, tmp_path: Path) -> None:
    """After a stop in the middle the other ranks are given weights and optimizer; they need no disk in common."""
    shutil.copytree(alone, tmp_path / "runs", symlinks=True)
    run = tmp_path / "runs/run"
    for folder in sorted((run / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    finish(start(tmp_path / "runs", 2, resume="run"))
    assert_same(tmp_path / "runs", alone)


@pytest.mark.slow
def test_one_ctrl_c_stops_all(tmp_path: Path) -> None:
    """A signal to any rank ends the step for all, saved, with the code of an interruption."""
    processes = start(tmp_path / "runs", 2, "stages.included.steps=500")
    metrics = tmp_path / "runs/run/metrics.jsonl"
    wait_until(lambda: metrics.exists() and bool(metrics.read_text()))
    processes[1].send_signal(signal.SIGINT)
    finish(processes, code=130)
    assert json.loads((tmp_path / "runs/run/status.json").read_text())["state"] == "interrupted"
    assert any((tmp_path / "runs/run/checkpoints").iterdir())


@pytest.mark.slow
def test_a_pause_holds_all(tmp_path: Path) -> None:
    """Asked of the first rank: all rest after the same step, saved, and go on; stopped in a rest, all stop."""
    processes = start(tmp_path / "runs", 2, "stages.included.steps=500", "train.checkpoint_every=500")
    paths = RunPaths(tmp_path / "runs/run")
    wait_until(lambda: paths.metrics.exists() and paths.metrics.stat().st_size > 0)
    for stops in (False, True):
        make_request(paths, "pause")
        wait_until(lambda: state(paths) == "paused")
        at = len(read_jsonl(paths.metrics))
        assert [step.step for step in list_checkpoints(paths)][-1] == at
        time.sleep(2)
        assert len(read_jsonl(paths.metrics)) == at
        assert [process.poll() for process in processes] == [None, None]
        if stops:
            make_request(paths, "stop")
        else:
            withdraw(paths, "pause")
            wait_until(lambda at=at: len(read_jsonl(paths.metrics)) > at)  # type: ignore[misc]
    finish(processes, code=130)
    assert state(paths) == "interrupted"
    assert [step.step for step in list_checkpoints(paths)][-1] == len(read_jsonl(paths.metrics))


@pytest.mark.slow
def test_ranks_with_other_settings_are_refused(tmp_path: Path) -> None:
    """Before anything is trained, with what differs."""
    ours = start(tmp_path / "runs", 2)
    ours[1].kill()
    ours[1].communicate()
    hosts = max(tmp_path.glob("hosts-*.json"))
    command = [*ours[0].args, "--seed", "7"]  # type: ignore[misc]
    other = subprocess.Popen(
        command,
        env=os.environ | {"MLX_HOSTFILE": str(hosts), "MLX_RANK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = finish([ours[0], other], code=2)
    assert "rank 1 has another settings" in said[0][1]


@pytest.mark.slow
def test_a_rank_with_too_little_memory_ends_all(tmp_path: Path) -> None:
    """Each says why, in place of a lost connection, with the exit code of a single process."""
    limits = [{"SMOLSUM_MEMORY_GB": size} for size in ("9", "0.1")]
    command = ["-m", "smolsum", "train", "--runs-dir", str(tmp_path / "runs"), "--model", "tiny"]
    said = finish(launch(2, command, tmp_path, limits), code=4)
    assert "error: training needs at least" in said[1][1]
    assert "error: on rank 1, training needs at least" in said[0][1]
    assert not (tmp_path / "runs").exists()


AGREED = """
import sys
from smolsum.errors import MachineError
from smolsum.policy import distributed
from smolsum.training.memory_plan import _agreed

for fitting in (([1, 4, 5], [0, 5, 6]), ([1, 2], [0, 3])):
    try:
        print(_agreed(fitting[distributed.rank()], None))
    except MachineError as error:
        print(error.message)
"""


@pytest.mark.slow
def test_the_ranks_take_chunks_that_fit_on_all(tmp_path: Path) -> None:
    """The fastest ones (4 is slower than 1 but need not hold less); where there are none, each rank says so."""
    said = finish(launch(2, ["-c", AGREED], tmp_path))
    assert [out.splitlines() for out, _ in said] == [["5", "no chunks fit on every rank"]] * 2


CHANGING = (
    "data.train_rows=12",
    "difficulty.by=reward",
    "stages.included.mix={easy=1.0}",
    "stages.included.mix_end={hard=1.0}",
    "stages.included.temperature_end=0.7",
    "grpo.reward_balance=variance",
)


@pytest.mark.slow
def test_ranks_change_together(tmp_path: Path) -> None:
    """A stage whose temperature, mix and weights change is the same in two ranks: both take the first one's
    measurements."""
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        finish(start(tmp_path / str(count) / "runs", count, *CHANGING))
    assert_same(tmp_path / "2" / "runs", tmp_path / "1" / "runs")
    rows = read_jsonl(tmp_path / "2" / "runs" / "run" / "metrics.jsonl")
    assert [row["mix/easy"] for row in rows] == [1.0, 0.5, 0.0]


def test_a_judge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank would ask for itself."""
    monkeypatch.setenv("SMOLSUM_JUDGE_URL", "http://127.0.0.1:9/v1")
    said = finish(start(tmp_path / "runs", 2, "stages.included.rewards.judge=1.0", "judge.model=m"), code=2)
    assert all("each would ask the judge" in err and "--worker URL" in err for _, err in said)


PICKY = """
import os

def picky(completions):
    if os.environ["MLX_RANK"] == "1":
        raise ValueError("no such file on this machine")
    return [float(len(text)) for text in completions]
"""


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    """Each says why; none waits for the other."""
    (tmp_path / "picky.py").write_text(PICKY)
    command = ["-m", "smolsum", "train", "--runs-dir", str(tmp_path / "runs"), "--model", "tiny", "--name", "run"]
    command += ["--plugin", f"{tmp_path / 'picky.py'}:picky", "--strategy", "included", "--reward", "picky"]
    said = finish(launch(2, [*command, *(word for one in SETTINGS[:5] for word in ("--set", one))], tmp_path), code=1)
    assert "no such file on this machine" in said[1][1]
    assert "error: on rank 1, " in said[0][1]
    assert "no such file on this machine" in said[0][1]
