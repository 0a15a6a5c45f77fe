"""The cost of sending one update's weights to a worker: a patch against a full push.

    uv run python benchmarks/sync.py                                    # the 0.5 B shape; 15 GB, some minutes
    uv run python benchmarks/sync.py --worker="--engine vllm --vllm-python PYTHON"

The weights are float32 masters of a bfloat16 checkpoint (N(0, 0.02), cast). Adam updates them at 2e-6 with the
gradients of one prompt of 330 tokens and 8 rollouts of 64. A worker in another process serves them as bfloat16 on
loopback. The first update moves every weight by the full 2e-6, later ones by less. For comparison, the script also
times one float32 forward pass of the same rollouts.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "cases"))
from random_model import random_model
from shapes import SHAPES, Shape

# isort: split
import httpx
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from smolsum.config.sections import GrpoConfig, OptimizerConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import fast_math
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.logprobs import group_logprobs
from smolsum.types import Prompt, Rollout, RolloutGroup
from smolsum.weights import delta

RATE, PROMPT, GROUP, TOKENS = 2e-6, 330, 8, 64
NETWORK = 117e6
"""bytes a second of gigabit Ethernet"""
STAGE = StageConfig(
    rewards={"length": 1.0}, steps=1, epochs=1, temperature=1.0, learning_rate=RATE, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip


def main() -> None:
    """Print a table with a row for each update's patch and one for the anchor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--worker", default="--engine mlx", help="further arguments of `smolsum serve-worker`")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    model = random_model(shape, "float32")
    drawn = [
        (name, mx.random.normal(a.shape, scale=0.02) if a.ndim == 2 else a)
        for name, a in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten([(name, a.astype(mx.bfloat16).astype(mx.float32)) for name, a in drawn]))
    mx.eval(model.parameters())
    del drawn
    fast_math.install(model)
    group, advantages = rollouts(shape)
    optimizer = Optimizer(model, OptimizerConfig())
    base = served(model)
    rows: list[tuple[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        url, process = start(write(shape, base, Path(folder) / "model"), arguments.worker, Path(folder))
        try:
            for version in range(1, arguments.updates + 1):
                grads, _ = gradients(
                    model, [group], advantages, GrpoConfig(), STAGE, max_new_tokens=TOKENS, chunking=Chunking()
                )
                optimizer.step(model, grads, RATE)
                del grads
                new = served(model)
                patch, seconds = timed(
                    lambda v=version, b=base, n=new: delta.encode(b, n, base_version=v - 1, version=v)
                )
                _, decode = timed(lambda b=base, p=patch: delta.apply(b, p))
                pushed = push(url, patch, delta.checksum(new))
                facts = {"density": delta.read(patch).density, "encode": seconds, "decode": decode, **pushed}
                rows.append((f"patch after update {version}", facts))
                base = new
            whole, seconds = timed(lambda: delta.anchor(base, version=arguments.updates))
            _, decode = timed(lambda: delta.apply(None, whole))
            pushed = push(url, whole, delta.checksum(base))
            rows.append(("anchor (full push)", {"density": 1.0, "encode": seconds, "decode": decode, **pushed}))
        finally:
            process.terminate()
            process.wait()
    table(rows, sum(a.nbytes for a in base.values()), forward(model, group))


def rollouts(shape: Shape) -> tuple[RolloutGroup, mx.array]:
    """Return a group of random tokens, and its advantages."""
    rng = random.Random(0)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(shape.vocabulary) for _ in range(n))

    drawn = tuple(Rollout(ids(TOKENS), (-12.0,) * TOKENS, "stop", 0, "local", g, "") for g in range(GROUP))
    return RolloutGroup(Prompt("p", (), ids(PROMPT), ("",), {}), drawn), mx.array([[rng.gauss(0, 1) for _ in drawn]])


def served(model: Any) -> dict[str, Any]:
    """Return the weights as bfloat16."""
    arrays = {}
    for name, value in tree_flatten(model.parameters()):
        arrays[name] = np.array(value.astype(mx.bfloat16).view(mx.uint16))
    return arrays


def forward(model: Any, group: RolloutGroup) -> float:
    """Return the seconds of the second of two forward passes over the group."""
    completions = [list(rollout.token_ids) for rollout in group.rollouts]
    for _ in range(2):
        _, seconds = timed(lambda: mx.eval(group_logprobs(model, list(group.prompt.token_ids), completions)[0]))
    return seconds


def timed(work: Any) -> tuple[Any, float]:
    """Return what the work returns, and its seconds."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def write(shape: Shape, arrays: dict[str, Any], folder: Path) -> Path:
    """Write the model in the Hugging Face layout, with the tokenizer of a built-in model."""
    folder.mkdir()
    source = Path(str(resources.files("smolsum.policy"))) / "builtin" / "tiny"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(source / name, folder / name)
    config = json.loads((source / "config.json").read_text()) | {
        "hidden_size": shape.width, "num_hidden_layers": shape.layers, "intermediate_size": shape.ff,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "torch_dtype": "bfloat16", "dtype": "bfloat16", "layer_types": ["full_attention"] * shape.layers,
        "max_window_layers": shape.layers, "tie_word_embeddings": True, "max_position_embeddings": 1024,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: mx.array(a).view(mx.bfloat16) for name, a in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    return folder


def start(model: Path, arguments: str, folder: Path) -> tuple[str, subprocess.Popen[str]]:
    """Start a worker of this model in bfloat16; return its URL and its process."""
    command = [sys.executable, "-m", "smolsum", "serve-worker", "--model", str(model), "--dtype", "bfloat16"]
    command += ["--port", "0", "--max-model-len", "512", "--work-dir", str(folder / "work"), *arguments.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


def push(url: str, body: bytes, expected: str) -> dict[str, float]:
    """Return bytes and seconds of a PUT; check that the worker serves the weights that were sent."""
    answer, seconds = timed(lambda: httpx.put(f"{url}/v1/weights", content=body, timeout=600))
    served = answer.json()
    if served.get("weights") != expected:
        raise SystemExit(f"the worker answers {served}")
    return {"bytes": len(body), "apply": served["seconds"], "transfer": seconds - served["seconds"]}


def table(rows: list[tuple[str, dict[str, float]]], full: int, once: float) -> None:
    """Print the table in Markdown."""
    print(f"weights {full / 1e6:.0f} MB; one forward {once:.1f} s\n")
    print("| | MB | of the weights | density | encode s | transfer s | apply s | of it decode s | 1 Gbit/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, of in rows:
        size = f"{of['bytes'] / 1e6:.1f} | {of['bytes'] / full:.2%} | {of['density']:.2%}"
        seconds = " | ".join(f"{of[key]:.2f}" for key in ("encode", "transfer", "apply", "decode"))
        print(f"| {name} | {size} | {seconds} | {of['bytes'] / NETWORK:.2f} s |")


if __name__ == "__main__":
    main()
