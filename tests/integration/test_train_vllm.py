"""Training with one vLLM worker and one MLX worker on loopback: thirty steps, in the middle of which each is killed and
restarted; and a few with adapters.

$SMOLSUM_VLLM_PYTHON names the Python of an environment that has vLLM.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest
from support.training import wait_for_step, wait_until

from smolsum.config.sections import LoraConfig
from smolsum.files import read_jsonl
from smolsum.policy.load import load_policy
from smolsum.policy.sampling import rollout_seed
from smolsum.policy.weights import load_trained, served_arrays
from smolsum.weights import delta

VLLM_PYTHON = os.environ.get("SMOLSUM_VLLM_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM_PYTHON, reason="SMOLSUM_VLLM_PYTHON names no environment that has vLLM"),
]
STEPS, ROLLOUTS, PROMPTS = 30, 4, 2
SETTINGS = {
    "sampling.rollouts": ROLLOUTS, "sampling.max_new_tokens": 96, "train.prompts_per_step": PROMPTS,
    "train.validate_every": 0, "train.checkpoint_every": 1, "train.keep_checkpoints": STEPS,
    "stages.included.steps": STEPS, "workers.max_staleness": 0, "workers.timeout_s": 120,
    "optimizer.learning_rate": 1e-4,
}  # fmt: skip


class Worker:
    """`smolsum serve-worker`, that can be killed and started again at the same port."""

    def __init__(self, engine: str, folder: Path, *more: str) -> None:
        self.engine, self.folder, self.more, self.port = engine, folder, more, 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        more = ["--vllm-python", str(VLLM_PYTHON), *self.more] if self.engine == "vllm" else []
        command = [sys.executable, "-m", "smolsum", "serve-worker", "--model", "tiny", "--engine", self.engine, *more]
        with (self.folder / f"{self.engine}.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, (self.folder / f"{self.engine}.log").read_text()
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> None:
        """As a user would."""
        self.process.terminate()
        self.process.communicate(timeout=60)

    def health(self) -> dict[str, Any]:
        """What it serves."""
        return dict(httpx.get(f"{self.url}/health", timeout=60).json())


@pytest.fixture
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        started = []
        for engine in ("mlx", "vllm"):
            started.append(Worker(engine, tmp_path, *getattr(request, "param", ())))
            stack.callback(started[-1].stop)
        yield started


def until_event(run: Path, kind: str, worker: Worker) -> None:
    """Wait until the run has an event about a worker."""
    wanted = (kind, worker.url.removeprefix("http://"))
    wait_until(lambda: any((e["kind"], e.get("worker")) == wanted for e in read_jsonl(run / "events.jsonl")))


def test_workers_that_die_cost_nothing(workers: list[Worker], tmp_path: Path) -> None:
    """Every prompt has all its rollouts, with its own seeds; right after each sync sampler and trainer agree; what the
    workers serve is bit for bit the checkpoint of that step."""
    run = tmp_path / "runs/mine"
    training = train(run, workers, SETTINGS)
    for worker, step in zip(workers, (6, 14), strict=True):
        wait_for_step(run, step, training)
        worker.kill()
        until_event(run, "worker_down", worker)
        training.send_signal(signal.SIGSTOP)  # or the thirty steps would be over before vLLM is back
        worker.start()
        training.send_signal(signal.SIGCONT)
    wait_for_step(run, STEPS - 1, training)
    served = [worker.health() for worker in workers]
    said = training.communicate(timeout=600)
    assert training.returncode == 0, said
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    off = [row["sampling/sampling_logp_difference/mean"] for row in rows]
    assert max(off) < 1e-3, off
    assert all(row["staleness/max"] == 0 for row in rows)
    met = [check_rollouts(run, step) for step in range(1, STEPS + 1)]
    assert len({prompt for prompts in met for prompt in prompts}) == STEPS * PROMPTS
    rollouts = {step: read_jsonl(run / f"completions/step-{step:06d}.jsonl") for step in range(1, STEPS + 1)}
    by = [row["worker"] for rows in rollouts.values() for row in rows]
    names = {worker.url.removeprefix("http://") for worker in workers}
    assert set(by) == names
    noted = read_jsonl(run / "events.jsonl")
    events = [(event["kind"], event.get("worker")) for event in noted]
    for name in names:
        assert ("worker_down", name) in events
        assert events.count(("worker_up", name)) >= 2, events
        back = max(one["step"] for one in noted if (one["kind"], one.get("worker")) == ("worker_up", name))
        # what is under way, and one more step that another may take whole
        assert back > STEPS - 4 or name in [
            row["worker"] for step in range(back + 1, STEPS + 1) for row in rollouts[step]
        ]
    for health in served:
        policy = load_policy(str(run / "checkpoints" / f"step-{health['version']:06d}"))
        assert health["weights"] == delta.checksum(served_arrays(policy))
    print(json.dumps({"logp difference": fmean(off), "share": {name: by.count(name) / len(by) for name in names}}))


@pytest.mark.parametrize("workers", [("--lora-rank", "4")], indirect=True)
def test_adapters_travel_alone(workers: list[Worker], tmp_path: Path) -> None:
    """A LoRA run: both workers are given the adapter after each step, and nothing else; sampler and trainer agree."""
    run, steps = tmp_path / "runs/mine", 5
    settings = SETTINGS | {"stages.included.steps": steps, "lora.rank": 4, "optimizer.learning_rate": 1e-3}
    training = train(run, workers, settings)
    wait_for_step(run, steps - 1, training)
    served = [worker.health() for worker in workers]
    said = training.communicate(timeout=600)
    assert training.returncode == 0, said
    rows = read_jsonl(run / "metrics.jsonl")
    off = [row["sampling/sampling_logp_difference/mean"] for row in rows]
    assert max(off) < 1e-3, off
    used = {row["worker"] for n in range(1, steps + 1) for row in read_jsonl(run / f"completions/step-{n:06d}.jsonl")}
    assert used == {worker.url.removeprefix("http://") for worker in workers}
    for health in served:
        checkpoint = run / "checkpoints" / f"step-{health['version']:06d}"
        policy = load_policy("builtin:tiny", lora=LoraConfig(rank=4))
        whole = len(delta.anchor(served_arrays(load_policy("builtin:tiny")), version=0, metadata={}))
        assert max(row["perf/weight_sync_bytes"] for row in rows) < len(workers) * whole
        load_trained(policy, checkpoint)
        assert health["weights"] == delta.checksum(served_arrays(policy))


def train(run: Path, workers: list[Worker], settings: dict[str, Any]) -> subprocess.Popen[str]:
    """`smolsum train`, under way."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    urls = [word for worker in workers for word in ("--worker", worker.url)]
    command = ["train", "--model", "tiny", "--strategy", "included", "--name", "mine", "--runs-dir", str(run.parent)]
    return subprocess.Popen(
        [sys.executable, "-m", "smolsum", *command, *sets, *urls],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_rollouts(run: Path, step: int) -> list[str]:
    """The step's prompts, each with all its rollouts, each with the seed of its place."""
    rows = read_jsonl(run / f"completions/step-{step:06d}.jsonl")
    prompts = list(dict.fromkeys(row["prompt_id"] for row in rows))
    assert len(rows) == PROMPTS * ROLLOUTS
    expected = [rollout_seed(42, step, p, name, g) for p, name in enumerate(prompts) for g in range(ROLLOUTS)]
    assert [row["seed"] for row in rows] == expected
    assert {row["policy_version"] for row in rows} == {step - 1}
    return prompts
