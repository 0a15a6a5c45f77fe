"""What two processes that train one model do, one thing after another: `python ranks.py FOLDER` in each rank, as
`mlx.launch` starts it. FOLDER has the data and, as `resumed`, a run that stopped; each rank writes what it found to
its own file there.
"""

import hashlib
import io
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.models import group, stage
from support.training import before_update, wait_until

from smolsum.cli.main import main
from smolsum.config.sections import GrpoConfig
from smolsum.errors import MachineError, PluginError
from smolsum.files import read_jsonl
from smolsum.grpo import batch, keeper, loop
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.session import Session
from smolsum.grpo.setup.memory_plan import _agreed
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy import distributed
from smolsum.policy.load import load_policy
from smolsum.rollout.source import Source
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.control import make_request, wait_while_paused, withdraw
from smolsum.runs.paths import RunPaths

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

STEPS = 3
SETTINGS = (
    "train.prompts_per_step=3",  # one rank has two prompts, the other one
    "train.validate_every=1",
    "train.validation_prompts=2",
    "train.checkpoint_every=1",
    "train.keep_checkpoints=9",
    "sampling.rollouts=4",
    "sampling.max_new_tokens=24",
    f"stages.included.steps={STEPS}",
    "stages.included.beta=0.05",
)
CHANGING = (
    "difficulty.by=reward", "stages.included.mix={easy=1.0}", "stages.included.mix_end={hard=1.0}",
    "stages.included.temperature_end=0.7", "grpo.reward_balance=variance",
)  # fmt: skip
LONG = ("stages.included.steps=500", "train.checkpoint_every=500", "train.validate_every=0")
GROUPS = (4, 3, 1)


def training(folder: Path, runs: Path, *more: str) -> list[str]:
    """The arguments of a run of three steps, with further settings."""
    sets = [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]
    own = ["--model=tiny", "--strategy=included", "--name=run", f"--set=data.path={folder / 'data'}"]
    return ["train", f"--runs-dir={runs}", *own, *sets]


def update(groups: int) -> dict[str, mx.array]:
    """The gradient of so many groups of rollouts, by parameter, and its metrics."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(5, 800) for _ in range(count)]

    made = [group(ids(20 + number), [ids(length) for length in (9, 17, 30)]) for number in range(groups)]
    advantages = mx.array([[draw.gauss(0, 1) for _ in range(3)] for _ in made])
    config, model = GrpoConfig(old_logprobs="recomputed"), load_policy("builtin:tiny").model
    tree, metrics = gradients(model, made, advantages, config, stage(), max_new_tokens=32)
    numbers = {name: value for name, value in metrics.items() if not name.startswith("perf/")}
    return {**dict(tree_flatten(tree)), "metrics": mx.array([numbers[name] for name in sorted(numbers)])}


def smolsum(*args: str) -> dict[str, Any]:
    """The exit code of a command, what it wrote, and digests of the weights that each stage ended with."""
    out, err, digests = io.StringIO(), io.StringIO(), list[str]()
    own = loop.train_stage

    def train_stage(running: Session, setup: Setup, source: Source) -> None:
        own(running, setup, source)
        arrays = dict(tree_flatten(setup.policy.model.parameters()))
        held = b"".join(bytes(memoryview(arrays[name])) for name in sorted(arrays))
        digests.append(hashlib.sha256(held).hexdigest())

    with patch.object(loop, "train_stage", train_stage), redirect_stdout(out), redirect_stderr(err):
        code = main(list(args))
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "weights": digests}


def agreed(fitting: Sequence[int]) -> Any:
    """The chunks that fit on all ranks, or the refusal."""
    try:
        return _agreed(fitting, None)
    except MachineError as error:
        return error.message


def interrupted(folder: Path, rank: int) -> dict[str, Any]:
    """A run whose second rank gets Ctrl-C in its second step."""
    with before_update(lambda step: os.kill(os.getpid(), signal.SIGINT) if (rank, step) == (1, 2) else None):
        return smolsum(*training(folder, folder / "interrupted", *LONG))


def paused(folder: Path, rank: int) -> dict[str, Any]:
    """A run that is paused in its second step, goes on, is paused in its fourth, and stopped there; `rests` has the
    steps that were done and saved when each pause began and when it had been looked at three times."""
    paths = RunPaths(folder / "paused" / "run")
    rests: list[list[int]] = []

    def steps() -> list[int]:
        return [len(read_jsonl(paths.metrics)), list_checkpoints(paths)[-1].step]

    def resting(at: RunPaths, stops: Callable[[], bool]) -> bool:
        began, looks = steps(), list[None]()

        def looked() -> bool:
            looks.append(None)
            if len(looks) == 3:
                rests.append([*began, *steps()])
                if len(rests) == 1:
                    withdraw(at, "pause")
                else:
                    make_request(at, "stop")
            return stops()

        return wait_while_paused(at, looked)

    keeper.wait_while_paused = resting
    with before_update(lambda step: make_request(paths, "pause") if rank == 0 and step in (2, 4) else None):
        return smolsum(*training(folder, folder / "paused", *LONG)) | {"rests": rests}


def failing(folder: Path, rank: int) -> dict[str, Any]:
    """A run whose second rank cannot score the rollouts of its second step."""
    own, calls = batch.score_and_combine, list[None]()

    def scoring(*given: Any) -> Any:
        calls.append(None)
        if (rank, len(calls)) == (1, 2):
            raise PluginError("no such file on this machine", hint="copy it")
        return own(*given)

    with patch.object(batch, "score_and_combine", scoring):
        return smolsum(*training(folder, folder / "failing"))


def everything(folder: Path, rank: int) -> dict[str, Any]:
    """Do one thing after another, the same in both ranks."""
    found: dict[str, Any] = {}
    for groups in GROUPS:
        arrays = update(groups)
        if rank == 0:
            mx.savez(str(folder / f"gradient-{groups}.npz"), **arrays)
    found["agreed"] = [agreed(fits[rank]) for fits in (([1, 4, 5], [0, 5, 6]), ([1, 2], [0, 3]))]
    runs = folder / "refused"
    with patch.dict(os.environ, SMOLSUM_JUDGE_URL="http://127.0.0.1:9/v1"):
        found["judge"] = smolsum(*training(folder, runs, "stages.included.rewards.judge=1.0", "judge.model=m"))
    found["settings"] = smolsum(*training(folder, runs), *(["--seed=7"] if rank else []))
    with patch.dict(os.environ, SMOLSUM_MEMORY_GB="0.1" if rank else "9"):
        found["memory"] = smolsum(*training(folder, runs))
    found["together"] = smolsum(*training(folder, folder / "together"))
    found["resumed"] = smolsum("train", f"--runs-dir={folder / 'resumed'}", "--resume=run")
    found["changing"] = smolsum(*training(folder, folder / "changing", *CHANGING))
    found["failing"] = failing(folder, rank)
    found["interrupted"] = interrupted(folder, rank)
    found["paused"] = paused(folder, rank)
    return found


if __name__ == "__main__":
    root, number = Path(sys.argv[1]), os.environ["MLX_RANK"]
    (root / f"ready-{number}").touch()
    wait_until(lambda: all((root / f"ready-{n}").exists() for n in (0, 1)))  # MLX waits seconds for the other, not more
    (root / f"rank-{number}.json").write_text(json.dumps(everything(root, distributed.rank())))
