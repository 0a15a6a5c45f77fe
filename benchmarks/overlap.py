"""The time of a step whose next rollouts are sampled while the update runs.

    uv run python benchmarks/overlap.py

The update is real (`builtin:tiny`, 2 prompts, 8 rollouts of 64 tokens), and so are patches, HTTP and scheduling. The
worker is simulated (another process, no model) and takes half, once and twice the time of the update. A step cannot be
shorter than the longer of the two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from smolsum.config.sections import Config, GrpoConfig, ModelConfig, SamplingConfig, TrainConfig, WorkersConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy.load import load_policy
from smolsum.policy.weights import identity
from smolsum.rollout import remote_source
from smolsum.rollout.source import GroupRequest
from smolsum.types import Prompt

# isort: split
import mlx.core as mx

SIMULATED = Path(__file__).parent / "cases" / "simulated_worker.py"
GROUP, TOKENS, PROMPTS, STEPS = 8, 64, 2, 12
STAGE = StageConfig(
    rewards={"length": 1.0}, steps=STEPS, epochs=1, temperature=1.0, learning_rate=1e-5, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip


def measure(seconds: float) -> tuple[float, float, float]:
    """Medians over steps, in seconds: a step, its update, the rollouts alone (simulated time plus HTTP)."""
    policy = load_policy("builtin:tiny")
    eos = min(policy.eos_ids)
    facts = identity(policy) | {"eos": eos}
    command = [sys.executable, str(SIMULATED), "1", str(TOKENS), str(seconds), json.dumps(facts)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    url = json.loads(process.stdout.readline())[0]
    config = Config(
        model=ModelConfig(path="builtin:tiny"),
        sampling=SamplingConfig(rollouts=GROUP, max_new_tokens=TOKENS),
        train=TrainConfig(prompts_per_step=PROMPTS),
        workers=WorkersConfig(urls=url),
        stages={"length": STAGE},
    )
    prompts = [Prompt(f"{n}", (), tuple(range(20, 220)), ("",), {}) for n in range(PROMPTS)]
    remote_source.PROBED = 0  # a worker without a model cannot prove its weights
    source = remote_source.RemoteSource(policy, config, prompts, on_event=lambda *_, **__: None, stopping=lambda: False)
    optimizer = Optimizer(policy.model, config.optimizer)
    advantages = mx.array([[float(g) - 3.5 for g in range(GROUP)]] * PROMPTS)
    steps, updates = [], []
    try:
        source.publish(0, always=True)
        for step in range(1, STEPS + 1):
            began = time.perf_counter()
            groups = source.sample(GroupRequest(step, prompts, 0, 1.0))
            source.ahead(GroupRequest(step + 1, prompts, 0, 1.0))
            middle = time.perf_counter()
            grads, _ = gradients(policy.model, groups, advantages, GrpoConfig(), STAGE, max_new_tokens=TOKENS)
            optimizer.step(policy.model, grads, 1e-5)
            updates.append(time.perf_counter() - middle)
            source.publish(step)
            steps.append(time.perf_counter() - began)
        return median(steps[2:]), median(updates[2:]), seconds
    finally:
        source.close()
        process.stdin.close()
        process.wait()


def main() -> None:
    """Print the table in Markdown."""
    usual = measure(0.01)[1]
    print("| rollouts, s | update, s | step, s | of the longer |\n| --- | --- | --- | --- |")
    for factor in (0.5, 1.0, 2.0):
        step, update, rollouts = measure(factor * usual)
        print(f"| {rollouts:.2f} | {update:.2f} | {step:.2f} | {step / max(update, rollouts):.2f} |", flush=True)


if __name__ == "__main__":
    main()
