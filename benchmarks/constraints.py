"""Ways to keep a constraint, at equal rollouts: train each with several seeds, and print means with intervals.

    uv run python benchmarks/constraints.py --seeds 5 --first 11
    uv run python benchmarks/constraints.py --model tiny-lfm --only lagrange unconstrained

Every run is that of `smolsum train --strategy constrained`, with another `grpo.constraint_method`, without constraints,
after a supervised start (`sft`), or with the length as a reward (`included`), each for as many steps. Finished runs are
not trained again. The numbers are those of the test split, greedy, after the last step; an area is METEOR times the
share that keeps the length. Intervals are Student's over the seeds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from intervals import interval

from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores, read_summary

METHODS = {
    "lagrange": (),
    "pid": ("grpo.constraint_method=pid",),
    "gate": ("grpo.constraint_method=gate",),
    "sum 2": ("grpo.constraint_method=sum", "grpo.constraint_weight=2"),
    "fixed 1": ("grpo.constraint_method=gdpo", "grpo.constraint_weight=1"),
    "fixed 2": ("grpo.constraint_method=gdpo", "grpo.constraint_weight=2"),
    "fixed 4": ("grpo.constraint_method=gdpo", "grpo.constraint_weight=4"),
}
"""settings by way; `fixed` is the profile over multipliers that do not move"""
STRATEGIES = {"included": "included", "sft": "sft-constrained"}
SFT_STEPS = 40  # as the strategy has them
GATES = ("length within tolerance: 0.99", "length within 1: 0.9", "repeated_trigrams in 0..0.02: 0.9",
         "facts_wrong in 0..0.5: 0.9")  # fmt: skip
"""a gate multiplies the reward by shares: it has no use for a mean that has to be low"""
LENGTHS, QUALITY = ("length/within_tol", "length/within_1"), "meteor"
COLUMNS = (
    ("within tolerance, %", LENGTHS[0], 100), ("within 1, %", LENGTHS[1], 100), ("METEOR", QUALITY, 1),
    ("wrong facts, %", "facts/wrong_share", 100), ("repeated, %", "repeated_trigrams", 100),
    ("tokens", "completions/mean_length", 1),
)  # fmt: skip


def command(way: str, model: str, steps: int, sets: Sequence[str]) -> list[str]:
    """The flags of one way."""
    flags = [f"--model={model}", f"--strategy={STRATEGIES.get(way, 'constrained')}", "--reward=meteor"]
    flags += [f"--set={text}" for text in sets]
    stage = "included" if way == "included" else "constrained"
    flags.append(f"--set=stages.{stage}.steps={steps - SFT_STEPS if way == 'sft' else steps}")
    if way == "unconstrained":
        flags.append("--constraint=none")
    elif way in METHODS:
        flags += [f"--set={text}" for text in METHODS[way]]
    if way == "gate":
        flags += [f"--constraint={text}" for text in GATES]
    return flags


def trained(way: str, seed: int, arguments: argparse.Namespace) -> Path:
    """Train a run, unless it is finished, or go on with it; return its directory."""
    name = f"{way}-{arguments.model}-{seed}".replace(" ", "-")
    root = arguments.runs / name
    last = RunPaths(root).stage_evaluation("included" if way == "included" else "constrained")
    if not has_scores(last):
        place = ["--runs-dir", str(arguments.runs), "--quiet"]
        new = [
            *command(way, arguments.model, arguments.steps, arguments.set),
            f"--seed={seed}",
            f"--name={name}",
            *place,
        ]
        flags = ["--resume", name, *place] if root.exists() else new
        subprocess.run([sys.executable, "-m", "smolsum", "train", *flags], check=True, stdout=subprocess.DEVNULL)
    return last


def seeds(arguments: argparse.Namespace) -> range:
    """The seeds of each way."""
    return range(arguments.first, arguments.first + arguments.seeds)


def row(way: str, arguments: argparse.Namespace) -> list[str]:
    """The numbers of one way over the seeds, as cells."""
    ends = [read_summary(trained(way, seed, arguments)).metrics for seed in seeds(arguments)]
    cells = [
        interval([scale * (end.get(key) or 0.0) for end in ends], 1 if scale > 1 else 3) for _, key, scale in COLUMNS
    ]
    areas = [[(end[key] or 0.0) * (end[QUALITY] or 0.0) for end in ends] for key in LENGTHS]
    return [way, *cells, *(interval(area, 3) for area in areas)]


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a preset of --model")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first", type=int, default=11, help="the first seed")
    parser.add_argument("--steps", type=int, default=400, help="steps of each run")
    parser.add_argument(
        "--only", nargs="+", dest="ways", default=[*METHODS, *STRATEGIES, "unconstrained"], help="the ways"
    )
    parser.add_argument("--set", nargs="+", default=[], help="settings of every run, KEY=VALUE")
    parser.add_argument("--runs", type=Path, default=Path("runs/constraints"), help="folder of the runs")
    arguments = parser.parse_args()
    for seed in seeds(arguments):
        for way in arguments.ways:
            trained(way, seed, arguments)
    names = ("way", *(name for name, _, _ in COLUMNS), "area, tolerance", "area, within 1")
    print("| " + " | ".join(names) + " |\n|" + " --- |" * len(names))
    for way in arguments.ways:
        print("| " + " | ".join(row(way, arguments)) + " |", flush=True)


if __name__ == "__main__":
    main()
