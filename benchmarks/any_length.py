"""Any length in one model, over seeds: what the strategy comes to, and how soon requests are read with hindsight.

    uv run python benchmarks/any_length.py --seeds 5 --first 51
    uv run python benchmarks/any_length.py --seeds 5 --first 51 --only hindsight without

`any-length` is the command of docs/any-length.md, and `any-length, without` the same without hindsight; `hindsight` and
`without` are one stage with the length as the only reward. A third of the targets is never trained. The first table has
the test split, greedy, after each stage, and where all posts ask for 64 tokens; the second the mean error in
validations, by the rollouts before them. Intervals are Student's over the seeds. Finished runs are not trained again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from intervals import interval

from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores, read_summary

HELD_OUT = "task.held_out_targets=18-126/3"
STRATEGY = ("--strategy=any-length", "--reward=meteor")
LENGTH = (
    "--strategy=finetuned", "--reward=length", "--set=task.targets=16-128",
    r"--set=task.length_request=\n{target:03d} {unit}", "--set=sampling.max_new_tokens=160",
    "--set=optimizer.schedule=constant", "--set=train.validation_prompts=60",
)  # fmt: skip
WAYS: dict[str, tuple[str, ...]] = {
    "any-length": STRATEGY,
    "any-length, without": (*STRATEGY, "--set=stages.ends.hindsight=0", "--set=stages.exact.hindsight=0"),
    "hindsight": (*LENGTH, "--set=stages.length.steps=250", "--set=grpo.hindsight=2", "--set=grpo.beta=1"),
    "without": (*LENGTH, "--set=stages.length.steps=500"),
}
AT_64 = "at-64"
ROLLOUTS = 32
"""of a step, as the built-in model's preset has them"""
COLUMNS = (
    ("mean error", "length/off_target", 1, 2), ("within 2, %", "length/within_2", 100, 1),
    ("unseen: mean error", "length/unseen/off_target", 1, 2),
    ("unseen: within 2, %", "length/unseen/within_2", 100, 1), ("correlation", "length/correlation", 1, 3),
    ("METEOR", "meteor", 1, 3), ("repeated, %", "repeated_trigrams", 100, 1),
    ("wrong facts, %", "facts/wrong_share", 100, 1),
)  # fmt: skip
"""title, metric, scale, digits"""


def smolsum(*flags: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "smolsum", *flags], check=True, stdout=subprocess.DEVNULL)


def trained(way: str, seed: int, runs: Path) -> RunPaths:
    """Train a run, unless it is finished, or go on with it, and evaluate a strategy's at 64 tokens."""
    name = f"{way.replace(', ', '-')}-{seed}"
    paths, place = RunPaths(runs / name), ["--runs-dir", str(runs), "--quiet"]
    new = ["--model=tiny", *WAYS[way], f"--set={HELD_OUT}", f"--seed={seed}", f"--name={name}"]
    if not has_scores(paths.stage_evaluation(stages(way)[-1])):
        smolsum("train", *(["--resume", name] if paths.root.exists() else new), *place)
    if way.startswith("any-length") and not has_scores(paths.evaluation(AT_64)):
        one_length = ["--set", "task.targets=64", "--set", "task.held_out_targets="]
        smolsum("eval", str(paths.root), "--name", AT_64, *one_length, "--quiet")
    return paths


def stages(way: str) -> Sequence[str]:
    """The stages of one way."""
    return ("count", "ends", "exact") if way.startswith("any-length") else ("length",)


def ends(way: str, runs: Sequence[RunPaths]) -> None:
    """Print the rows of one way: the start, each stage and 64 tokens."""
    parts = {label: [run.stage_evaluation(label) for run in runs] for label in ("start", *stages(way))}
    if way.startswith("any-length"):
        parts["at 64 tokens"] = [run.evaluation(AT_64) for run in runs]
    for label, found in parts.items():
        metrics = [read_summary(one).metrics for one in found]
        cells = []
        for _, key, scale, digits in COLUMNS:
            values = [scale * value for one in metrics if (value := one.get(key)) is not None]
            cells.append(interval(values, digits) if values else "")
        print("| " + " | ".join([f"{way}: {label}", *cells]) + " |", flush=True)


def curve(runs: Sequence[RunPaths]) -> dict[int, str]:
    """The mean errors of validations, by the steps before them."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for row in read_jsonl(run.root / "metrics.jsonl"):
            if (error := row.get("validation/length/off_target")) is not None:
                found.setdefault(row["step"], []).append(error)
    return {step: interval(errors, 1) for step, errors in found.items() if len(errors) == len(runs)}


def main() -> None:
    """Train what is missing, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first", type=int, default=51, help="the first seed")
    parser.add_argument("--only", nargs="+", dest="ways", default=[*WAYS], help="the ways")
    parser.add_argument("--runs", type=Path, default=Path("runs/any-length"), help="folder of the runs")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    runs = {way: [trained(way, seed, arguments.runs) for seed in seeds] for way in arguments.ways}
    print("| " + " | ".join(["after", *(title for title, *_ in COLUMNS)]) + " |\n|" + " --- |" * (len(COLUMNS) + 1))
    for way, own in runs.items():
        ends(way, own)
    curves = {way: curve(own) for way, own in runs.items()}
    print("\n| rollouts | " + " | ".join(curves) + " |\n|" + " --- |" * (len(curves) + 1))
    for step in sorted(set().union(*curves.values())):
        cells = [one.get(step, "") for one in curves.values()]
        print("| " + " | ".join([f"{ROLLOUTS * step:,}", *cells]) + " |")


if __name__ == "__main__":
    main()
