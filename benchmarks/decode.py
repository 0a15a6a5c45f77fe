"""One token for 1 to 32 rows, after the prompt has been read: this engine, mlx-lm, vLLM and llama.cpp side by side.

    uv run python benchmarks/decode.py --model DIR --vllm PYTHON --llama PYTHON --gguf FILE

Rows are rollouts of one prompt of random tokens. Every case is a separate process; of its repetitions after a warm-up
the median counts. Engines that are not named are left out. Ratios hold within one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

CASES = Path(__file__).parent / "cases"
ROWS = (1, 8, 16, 32)


@dataclass(frozen=True)
class Engine:
    """A row of the table."""

    name: str
    script: str
    python: str
    options: tuple[str, ...]


def run(python: str, script: str, *options: str) -> dict[str, Any] | None:
    """Return what a case reports; None, with the reason on stderr, where it does not run."""
    cores = str(len(os.sched_getaffinity(0)))
    environ = os.environ | {"PYTHONPATH": str(CASES.parents[1])}
    if "mlx_lm" in script:
        environ |= {"OPENBLAS_NUM_THREADS": cores, "MKL_NUM_THREADS": cores}
    done = subprocess.run([python, str(CASES / script), *options], capture_output=True, text=True, env=environ)
    if done.returncode:
        print(f"{script}: left out: {(done.stderr.strip() or 'no output').splitlines()[-1]}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="in the Hugging Face layout")
    parser.add_argument("--prompt", type=int, default=330, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a repetition")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that has vLLM")
    parser.add_argument("--llama", metavar="PYTHON", help="interpreter that has llama-cpp-python")
    parser.add_argument("--gguf", action="append", default=[], metavar="FILE", help="of the same model; repeatable")
    args = parser.parse_args()
    engines = [Engine("smolsum float32", "decode_smolsum.py", sys.executable, ())]
    engines += [Engine("mlx-lm float32", "decode_mlx_lm.py", sys.executable, ())]
    if args.vllm:
        for dtype in ("float32", "bfloat16"):
            options = ("--dtype", dtype, "--vllm", args.vllm)
            engines.append(Engine(f"vLLM {dtype}", "decode_vllm.py", sys.executable, options))
    if args.llama:
        for file in args.gguf:
            engines.append(Engine(f"llama.cpp {Path(file).name}", "decode_llama_cpp.py", args.llama, ("--gguf", file)))
    rate = (run(sys.executable, "memory_speed.py") or {})["rate"]
    weights = sum(file.stat().st_size for file in args.model.glob("*.safetensors"))
    print(f"Memory is read at {rate / 1e9:.1f} GB/s; the model's files have {weights / 1e9:.2f} GB.\n")
    print(f"| ms a token, for so many rows | {' | '.join(map(str, ROWS))} |")
    print(f"| --- |{' --- |' * len(ROWS)}", flush=True)
    for engine in engines:
        cells = []
        for rows in ROWS:
            sizes = (f"--group={rows}", f"--prompt={args.prompt}", f"--tokens={args.tokens}", f"--repeat={args.repeat}")
            one = run(engine.python, engine.script, f"--model={args.model}", *sizes, *engine.options)
            cells.append(f"{1000 * median(one['decode']):.1f}" if one else "")
        print(f"| {engine.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
