"""The cost of the pool of workers for the trainer, from 1 to 256 workers over real HTTP: CPU and delay.

    uv run python benchmarks/pool.py

The workers are simulated (another process, no model). Every request takes the same time, so a step could take exactly
that time; the rest is the delay. Each worker adds 8 rollouts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from smolsum.rollout.pool import Pool
from smolsum.rollout.protocol import SampleRequest, SamplingTerms
from smolsum.rollout.worker_client import ExpectedModel, PoolWorker, WorkerClient
from smolsum.weights.publish import Publisher, WeightsVersion

SIMULATED = Path(__file__).parent / "cases" / "simulated_worker.py"
FACTS = {"architecture": "qwen2", "vocab_size": 1000, "tokenizer": "", "dtype": "float32", "eos": 0}


def measure(workers: int, *, per_worker: int, tokens: int, prompt: int, seconds: float, steps: int) -> dict[str, float]:
    """Return means over the steps: milliseconds of trainer CPU for a rollout, and the seconds of a step beyond
    `seconds`."""
    command = [sys.executable, str(SIMULATED), str(workers), str(tokens), str(seconds), json.dumps(FACTS)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    urls = json.loads(process.stdout.readline())

    def make_workers() -> list[PoolWorker]:
        expected = ExpectedModel(FACTS, 10, frozenset([0]))
        return [PoolWorker(WorkerClient(url, None, expected, timeout_s=60.0)) for url in urls]

    pool = Pool(make_workers, Publisher(anchor_every=50, metadata={}), retries=4)
    pool.open()
    weights = np.zeros(1000, np.float32)
    terms = SamplingTerms(1.0, tokens)
    try:
        pool.publish(WeightsVersion(0, {"w": weights}, [], [])).result()
        while not all(worker.state == "up" for worker in pool.workers):
            time.sleep(0.01)
        count, cpu, wall = workers * per_worker, 0.0, 0.0
        for step in range(steps + 1):
            requests = [SampleRequest(f"{step}-{n}", (5,) * prompt, n) for n in range(count)]
            began, used = time.perf_counter(), time.process_time()
            pool.submit(requests, terms, least_version=0).result.result(timeout=600)
            if step:  # the first step opens connections
                wall += time.perf_counter() - began
                cpu += time.process_time() - used
        return {"cpu_ms": cpu / (steps * count) * 1e3, "delay_s": wall / steps - seconds}
    finally:
        pool.close()
        process.stdin.close()  # type: ignore[union-attr]
        process.wait()


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    print("8 rollouts a worker, 64 tokens of a prompt of 330, 2 s a request\n")
    print("| workers | rollouts a step | trainer CPU, ms a rollout | delay, s a step |\n| --- | --- | --- | --- |")
    for workers in arguments.workers:
        found = measure(workers, per_worker=8, tokens=64, prompt=330, seconds=2.0, steps=arguments.steps)
        print(f"| {workers} | {workers * 8} | {found['cpu_ms']:.2f} | {found['delay_s']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
