"""Sample efficiency: rollouts until greedy summaries are on target, for what is said to need fewer of them.

    uv run python benchmarks/efficiency.py --seeds 5

Every run trains `tiny` for the length alone, as the first stage of `--strategy finetuned` does, at a constant rate and
with one setting changed. Its validations (100 posts, greedy, every 5 steps) say after how many sampled rollouts 95 % of
the summaries are within the tolerance for the first time; a run that never gets there counts with all of its rollouts,
and is marked. Seconds are those of the steps, without validations; compare only runs that had a core alone.
Ratios are to the plain runs of the same seeds (with the same prompts), with Student's intervals over the logarithms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from intervals import ratio

from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.typed_json import has_scores

BAND = Path(__file__).parent / "cases" / "band.py"
RIGHT_OR_WRONG = "stages.length.rewards={in_band=1.0}"
LEVEL, EVERY = 0.95, 5
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "hindsight": ("grpo.hindsight=0.5",),
    "refill": ("train.refill_rounds=2",),
    "4 of 8 rollouts": ("grpo.update_rollouts=4",),
    "8 of 16 rollouts": ("sampling.rollouts=16", "grpo.update_rollouts=8", "train.prompts_per_step=2"),
    "credit at ends": ("grpo.length_credit=ends",),
    "batch deviation": ("grpo.advantage_scale=batch",),
    "no deviation": ("grpo.advantage_scale=none",),
    "right or wrong": (RIGHT_OR_WRONG,),
    "refill, right or wrong": (RIGHT_OR_WRONG, "train.refill_rounds=2"),
    "right or wrong (64 prompts)": (RIGHT_OR_WRONG, "data.train_rows=64"),
    "skip, right or wrong (64 prompts)": (RIGHT_OR_WRONG, "data.train_rows=64", "train.skip_untaught=0.5"),
}
COMPARED = {
    "refill, right or wrong": "right or wrong",
    "skip, right or wrong (64 prompts)": "right or wrong (64 prompts)",
}
"""what a way is compared with, where that is not `plain`"""


def trained(way: str, seed: int, arguments: argparse.Namespace) -> Path:
    """Train a run, unless it is finished; return its directory."""
    name = f"{way.translate(str.maketrans(' ', '-', '(),'))}-{seed}"
    root = arguments.runs / name
    if not has_scores(RunPaths(root).stage_evaluation("length")):
        place = [f"--plugin={BAND}", "--runs-dir", str(arguments.runs), "--quiet"]
        sets = [f"stages.length.steps={arguments.steps}", "optimizer.schedule=constant"]
        sets += [f"train.validate_every={EVERY}", "train.validation_prompts=100", *WAYS[way]]
        new = ["--model=tiny", "--strategy=finetuned", "--reward=length", f"--seed={seed}", f"--name={name}"]
        new += [f"--set={text}" for text in sets]
        flags = ["--resume", name, *place] if root.exists() else [*new, *place]
        subprocess.run([sys.executable, "-m", "smolsum", "train", *flags], check=True, stdout=subprocess.DEVNULL)
    return root


@dataclass(frozen=True)
class Needed:
    """What a run needed until it was on target, or all that it had."""

    rollouts: int
    seconds: float
    """of its steps, without validations"""
    reached: bool


def needed(run: Path) -> Needed:
    """Read what a run needed."""
    count, seconds = 0, 0.0
    for row in read_jsonl(run / "metrics.jsonl"):
        count += len(read_jsonl(run / "completions" / f"step-{row['step']:06d}.jsonl"))
        seconds += row["perf/step_s"] - row.get("perf/validate_s", 0.0)
        if row.get("validation/length/within_tol", 0.0) >= LEVEL:
            return Needed(count, seconds, True)
    return Needed(count, seconds, False)


def line(way: str, arguments: argparse.Namespace) -> str:
    """The row of one way."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    found = [needed(trained(way, seed, arguments)) for seed in seeds]
    base = [needed(trained(COMPARED.get(way, "plain"), seed, arguments)) for seed in seeds]
    pairs = list(zip(base, found, strict=True))
    counts = ", ".join(f"{one.rollouts:,}{'' if one.reached else '+'}" for one in found)
    fewer, sooner = ratio([a.rollouts / b.rollouts for a, b in pairs]), ratio([a.seconds / b.seconds for a, b in pairs])
    return f"| {way} | {counts} | {fewer} | {sooner} |"


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first", type=int, default=21, help="the first seed")
    parser.add_argument("--steps", type=int, default=80, help="steps of each run")
    parser.add_argument("--only", nargs="+", dest="ways", default=[*WAYS], help="the ways")
    parser.add_argument("--runs", type=Path, default=Path("runs/efficiency"), help="folder of the runs")
    arguments = parser.parse_args()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for way in arguments.ways:
            trained(way, seed, arguments)
    print("| way | rollouts to 95 % on target, by seed | fewer, times | sooner, times |\n| --- | --- | --- | --- |")
    for way in arguments.ways:
        print(line(way, arguments), flush=True)


if __name__ == "__main__":
    main()
