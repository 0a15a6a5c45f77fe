"""A short run of `smolsum train`, on the built-in model or on another with its data, whose metrics say what steps took.

Writes the prompts and settings of the run to the file that `--batches` names, for the peers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tomli
from shapes import Batches, arguments, report

import smolsum
from smolsum.cli.main import main as command

PARTS = {"step": "step_s", "sampling": "rollout_s", "update": "fwd_bwd_s", "optimizer": "optimizer_s"}
SETS = ("data.test_rows=1", "train.validate_every=1000000", "train.checkpoint_every=1000000")
"""evaluations that are smaller than a step"""


def main() -> None:
    """Train the steps, then report those that count."""
    args = arguments()
    steps = args.warm_up + args.repeat
    sizes = {
        "data.path": args.data, "train.prompts_per_step": args.prompts, "sampling.rollouts": args.group,
        "sampling.max_new_tokens": args.tokens, "grpo.beta": 0, "rewards.length_shape": "clipped",
    }  # fmt: skip
    sets = [f"{name}={value}" for name, value in sizes.items()] if args.model else []
    sets += [f"stages.length.steps={steps}", f"engine.shared_prefix={str(args.mode != 'repeated').lower()}", *SETS]
    sets += ["optimizer.matmul_precision=medium"] if args.mode == "medium" else []
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--model={args.model or 'tiny'}", "--reward=length", "--quiet", f"--runs-dir={folder}", "--name=run"]
        if code := command(["train", *flags, *(f"--set={one}" for one in sets)]):
            raise SystemExit(code)
        run = Path(folder) / "run"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        args.batches.write_text(json.dumps(vars(batches(run, args.model))))
    laps = [{part: row[f"perf/{name}"] for part, name in PARTS.items()} for row in rows]
    lengths = [row["completions/mean_length"] for row in rows[args.warm_up :]]
    report(steps=laps[args.warm_up :], warm_up=laps[: args.warm_up], tokens=sum(lengths) / len(lengths))


def batches(run: Path, model: Path | None) -> Batches:
    """What the run trained on."""
    config: dict[str, Any] = tomli.loads((run / "config.toml").read_text())
    assert config["rewards"]["length_shape"] == "clipped"
    steps = []
    for path in sorted((run / "completions").glob("step-*.jsonl")):
        rows = map(json.loads, path.read_text().splitlines())
        steps.append([row["messages"] for row in rows if "messages" in row])
    return Batches(
        model=str(model or Path(smolsum.__path__[0]) / "policy" / "builtin" / "tiny"),
        steps=steps,
        group=config["sampling"]["rollouts"],
        tokens=config["sampling"]["max_new_tokens"],
        target=config["task"]["target_tokens"],
        floor=config["rewards"]["length_floor"],
        beta=config["grpo"]["beta"],
        rate=config["optimizer"]["learning_rate"],
        beta2=config["optimizer"]["beta2"],
    )


if __name__ == "__main__":
    main()
