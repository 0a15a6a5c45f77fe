"""One GRPO update, side by side: this engine, its own repeated path, TRL and mlx-lm-lora.

    uv run python benchmarks/engine.py --peers PYTHON                   # both shapes, some minutes
    uv run python benchmarks/engine.py --shape small --growth           # without peers; how time grows with P, G and T

Every case runs alone in a separate process, so that each peak of memory belongs to one case. Peers that are not
installed are left out; `--peers` names the interpreter of an environment that has `trl` and `mlx-lm-lora`. Ratios hold
within one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
ROWS = (
    ("smolsum", "smolsum_update.py", ["--mode", "shared"]),
    ("smolsum, chunks and checkpointing", "smolsum_update.py", ["--mode", "bounded"]),
    ("smolsum, prompt repeated", "smolsum_update.py", ["--mode", "repeated"]),
    ("TRL float32", "trl_update.py", []),
    ("TRL float32, no checkpointing", "trl_update.py", ["--mode", "whole"]),
    ("TRL bfloat16", "trl_update.py", ["--dtype", "bfloat16"]),
    ("TRL bfloat16, no checkpointing", "trl_update.py", ["--dtype", "bfloat16", "--mode", "whole"]),
    ("mlx-lm-lora", "mlx_lm_lora_update.py", []),
)
SIZES = {"prompts": 1, "prompt": 330, "group": 8, "tokens": 64}


def measure(script: str, shape: str, options: list[str], python: str) -> dict[str, Any] | None:
    """Return what a case reports; None, with the reason on stderr, where it does not run."""
    command = [python, str(CASES / script), "--shape", shape, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        print(f"{script} {' '.join(options)}: left out: {reason}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def compare(shape: str, python: str, peers: str) -> None:
    """Print the table of one shape."""
    rate = (measure("matmul.py", shape, [], python) or {})["rate"]
    print(f"\n### {shape}: 1 prompt of 330 tokens, 8 rollouts of 64, matmul {rate / 1e9:.0f} GFLOP/s\n")
    print("| | seconds | of it | tokens/s | peak GB | of it | of the matmul rate |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    first: dict[str, Any] = {}
    for name, script, options in ROWS:
        found = measure(script, shape, options, python if script == "smolsum_update.py" else peers)
        if found is None:
            continue
        first = first or found
        seconds, peak = found["seconds"], found["peak_gb"]
        tokens = SIZES["group"] * SIZES["tokens"] / seconds
        share = f"{first['operations'] / seconds / rate:.2f}"
        print(
            f"| {name} | {seconds:.2f} | {first['seconds'] / seconds:.2f} | {tokens:.0f} | {peak:.2f} |"
            f" {first['peak_gb'] / peak:.2f} | {share} |",
            flush=True,
        )


def growth(shape: str, python: str) -> None:
    """Print how the time of an update grows with prompt, group and completion."""
    print(f"\n### {shape}: seconds of an update as one size grows\n\n| | shared | repeated |\n| --- | --- | --- |")
    for size, values in (("prompt", (128, 256, 512)), ("group", (4, 8, 16)), ("tokens", (32, 64, 128))):
        for value in values:
            options = [f"--{size}", str(value)]
            times = [
                (measure("smolsum_update.py", shape, [*options, "--mode", mode], python) or {"seconds": float("nan")})[
                    "seconds"
                ]
                for mode in ("shared", "repeated")
            ]
            print(f"| {size} {value} | {times[0]:.2f} | {times[1]:.2f} |", flush=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("small", "0.5b"), nargs="+", default=["small", "0.5b"])
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter that has the peers")
    parser.add_argument("--growth", action="store_true", help="also how time grows with prompt, group and tokens")
    arguments = parser.parse_args()
    for shape in arguments.shape:
        compare(shape, sys.executable, arguments.peers)
        if arguments.growth:
            growth(shape, sys.executable)


if __name__ == "__main__":
    main()
