"""Whether a long run slows down or grows: step time and resident memory of a real `smolsum train` of many small steps.

    uv run python benchmarks/long_run.py                    # 10,000 steps
    uv run python benchmarks/long_run.py --steps 300        # a minute

The built-in model, 1 prompt a step, 2 rollouts of at most 8 tokens, and a learning rate that keeps the policy as it is,
so that all steps have the same work (the run warns of it). *Learnt* is the share of steps whose two rollouts had
different rewards. *Step* is the median of the steps' own time, *with logging* the time between two steps' files of
completions. All three are those of the last hundred steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median

CASE = Path(__file__).parent / "cases" / "training_run.py"
MARKS, LAST = (100, 1000, 5000, 10_000), 100
SETS = (
    "train.prompts_per_step=1", "sampling.rollouts=2", "sampling.max_new_tokens=8", "task.target_tokens=8",
    "task.tolerance_tokens=1", "optimizer.learning_rate=1e-9", "grpo.beta=0", "data.test_rows=1",
    "train.validate_every=1000000", "train.checkpoint_every=1000",
)  # fmt: skip


def main() -> None:
    """Train, then print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    sets = [*SETS, f"stages.included.steps={steps}"]
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--model=tiny",
            "--strategy=included",
            "--reward=rouge",
            "--quiet",
            f"--runs-dir={folder}",
            "--name=run",
        ]
        command = [sys.executable, str(CASE), "train", *flags, *(f"--set={one}" for one in sets)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        run = Path(folder) / "run"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ended = [path.stat().st_mtime for path in sorted((run / "completions").glob("step-*.jsonl"))]
    print(
        "| after step | step, ms | with logging, ms | learnt | resident memory, MB |\n| --- | --- | --- | --- | --- |"
    )
    for mark in sorted({*(mark for mark in MARKS if mark < steps), steps}):
        last = rows[max(0, mark - LAST) : mark]
        own = median(row["perf/step_s"] for row in last)
        learnt = 1 - fmean(row["batch/skipped_groups_frac"] for row in last)
        before = max(1, mark - LAST)
        whole = (ended[mark - 1] - ended[before - 1]) / (mark - before)
        memory = rows[mark - 1]["system/memory_rss_gb"]
        print(f"| {mark:,} | {1e3 * own:.1f} | {1e3 * whole:.1f} | {learnt:.2f} | {1e3 * memory:.0f} |")
    print(f"\nPeak of the process: {json.loads(done.stdout.splitlines()[-1])['peak_gb']:.2f} GB")


if __name__ == "__main__":
    main()
