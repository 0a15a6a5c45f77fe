"""The memory of training, estimated and measured: two real steps of `smolsum train` for each way to train.

    uv run python benchmarks/memory.py                     # the 0.5 B shape; half an hour on two cores
    uv run python benchmarks/memory.py --shape small       # a minute

Every run is a separate process, with its evaluations and checkpoint. *Process* is the peak of its resident memory,
which is what gets it killed; *arrays* is MLX's own peak. The estimate is that of the run's run.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

CASES = Path(__file__).parent / "cases"
sys.path.insert(0, str(CASES))
from random_model import write_random_model  # noqa: E402
from shapes import SHAPES  # noqa: E402

LORA = ["model.adapter=lora"]
WAYS = {
    "all weights": (1.0, []),
    "all weights, budget": (0.8, []),
    "LoRA": (1.0, LORA),
    "LoRA, budget": (0.6, LORA),
    "LoRA on 4 bits": (1.0, [*LORA, "model.quantize=4"]),
    "LoRA on 4 bits, budget": (0.6, [*LORA, "model.quantize=4"]),
}
"""by name: the budget as a share of the estimate without chunks, and settings"""


def run_name(way: str) -> str:
    """Return the name of the run of a way, without spaces and commas."""
    return way.replace(",", "").replace(" ", "-")


def write_data(folder: Path, tokens: int) -> Path:
    """Write three splits whose posts have about this many tokens of the built-in tokenizer."""
    from smolsum.tasks.data_files import SPLITS

    folder.mkdir(parents=True, exist_ok=True)
    sentence = "My brother lost the guitar in November, and I do not know what to think about it. "  # 19 tokens
    text = sentence * ((tokens - 30) // 19)  # without the system prompt's
    for split, rows in zip(SPLITS, (4, 1, 1), strict=True):
        posts = [f"{split} {n}. {text}" for n in range(rows)]
        pl.DataFrame({"prompt": posts, "completion": ["My brother lost the guitar."] * rows}).write_parquet(
            folder / f"{split}.parquet"
        )
    return folder


def estimate_of(model: Path, data: Path, sets: list[str], tokens: int) -> float:
    """Return the estimated peak in GB without chunks, from a dry run."""
    command = [sys.executable, "-m", "smolsum", "train", "--model=qwen", "--reward=length", "--dry-run"]
    own = [f"model.path={model}", f"data.path={data}", f"sampling.max_new_tokens={tokens}", *sets]
    environ = os.environ | {"SMOLSUM_MEMORY_GB": "1000"}
    done = subprocess.run([*command, *(f"--set={one}" for one in own)], capture_output=True, text=True, env=environ)
    line = next(line for line in done.stderr.splitlines() if line.startswith("peak without chunks"))
    return float(line.split()[-1])


def train(model: Path, data: Path, runs: Path, name: str, sets: list[str], tokens: int) -> dict[str, Any]:
    """Train two steps; returns the peaks and what run.json says of memory."""
    own = [
        f"model.path={model}", f"data.path={data}", f"sampling.max_new_tokens={tokens}", "stages.length.steps=2",
        "train.validate_every=1", "grpo.mask_truncated=false", *sets,
    ]  # fmt: skip
    command = [sys.executable, str(CASES / "training_run.py"), "train", "--model=qwen", "--reward=length", "--quiet"]
    command += ["--runs-dir", str(runs), "--name", name, *(f"--set={one}" for one in own)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = dict(json.loads(done.stdout.strip().splitlines()[-1]))
    return found | json.loads((runs / name / "run.json").read_text()).get("memory", {})


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--prompt", type=int, default=330, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a completion")
    parser.add_argument("--way", action="append", choices=WAYS, help="only these; repeatable")
    parser.add_argument("--folder", type=Path, help="keep model, data and runs here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or Path(made)
        model = folder / arguments.shape
        if not model.exists():
            write_random_model(model, SHAPES[arguments.shape])
        data = write_data(folder / f"data-{arguments.prompt}", arguments.prompt)
        print("| | estimate GB | process GB | estimate / process | arrays GB |\n| --- | --- | --- | --- | --- |")
        for name in arguments.way or WAYS:
            share, sets = WAYS[name]
            whole = estimate_of(model, data, sets, arguments.tokens)
            own = [*sets, f"engine.memory_budget_gb={share * whole * 1.01:.3f}"]
            found = train(model, data, folder / "runs", run_name(name), own, arguments.tokens)
            estimate, process = found["estimate_gb"], found["peak_gb"]
            ratio = f"{estimate / process:.2f}"
            print(f"| {name} | {estimate:.2f} | {process:.2f} | {ratio} | {found['mlx_peak_gb']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
