"""Small real runs for tests: a local data set cut from the built-in one, few short rollouts, the real command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
from safetensors.numpy import load_file

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.writer import RunWriter

PATIENCE_S = 900.0
STARTED: list[subprocess.Popen[str]] = []

SIZES = {"train": 12, "validation": 3, "test": 4}
SETTINGS = {
    "sampling.rollouts": 4, "sampling.max_new_tokens": 46, "train.prompts_per_step": 2, "train.validate_every": 2,
    "train.validation_prompts": 2, "train.checkpoint_every": 2, "task.target_tokens": 42, "stages.length.steps": 5,
    "stages.quality.steps": 3,
}  # fmt: skip


def make_data(folder: Path, **sizes: int) -> Path:
    """A directory with a few rows of each built-in split, as Parquet; `sizes` are other numbers of rows."""
    folder.mkdir()
    for split, size in (SIZES | sizes).items():
        source = Path(str(resources.files("smolsum.tasks"))) / "builtin" / "tldr-mini" / f"{split}.parquet"
        pl.read_parquet(source).head(size).write_parquet(folder / f"{split}.parquet")
    return folder


def arguments(data: Path, runs: Path, name: str, *, strategy: str = "finetuned", **changes: Any) -> list[str]:
    """The arguments of `smolsum` for a run of eight steps; `changes` are settings with __ for the dot."""
    settings = SETTINGS | {"data.path": str(data)} | {key.replace("__", "."): value for key, value in changes.items()}
    sets = [
        f"--set={key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in settings.items()
    ]
    return ["train", "--model=tiny", f"--strategy={strategy}", "--runs-dir", str(runs), "--name", name, *sets]


def trained(data: Path, runs: Path, name: str, *more: str, **changes: Any) -> Path:
    """The directory of a run of these arguments, with further flags, that ended well."""
    assert main([*arguments(data, runs, name, **changes), *more]) == 0
    return runs / name


def included(data: Path, runs: Path, name: str, **changes: Any) -> list[str]:
    """The arguments of a run of one stage with both rewards."""
    asked = arguments(data, runs, name, strategy="included", **changes)
    two_stages = ("--set=stages.length", "--set=stages.quality")
    return [one for one in asked if not one.startswith(two_stages)]


def start(args: list[str]) -> subprocess.Popen[str]:
    """A training in its own process, which ends with the test at the latest."""
    command = [sys.executable, "-m", "smolsum", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    STARTED.append(process)
    return process


@contextmanager
def before_update(action: Callable[[int], object]) -> Iterator[None]:
    """Calls the action with the number of each update in this process, from 1, when it begins."""
    from smolsum.grpo import loop

    own, calls = loop.gradients, list[None]()

    def acting(*given: Any, **named: Any) -> Any:
        calls.append(None)
        action(len(calls))
        return own(*given, **named)

    with patch.object(loop, "gradients", acting):
        yield


@contextmanager
def after_step(action: Callable[[int], object]) -> Iterator[None]:
    """Calls the action with each step whose metrics this process has written."""
    write = RunWriter.metrics

    def written(writer: RunWriter, row: dict[str, Any]) -> None:
        write(writer, row)
        action(row["step"])

    with patch.object(RunWriter, "metrics", written):
        yield


KILLED = """
import os, signal, sys
import smolsum.policy
from smolsum.cli.main import main
from smolsum.grpo import loop

updates, step = [], int(sys.argv[1])

def gradients(*given, own=loop.gradients, **named):
    updates.append(None)
    if len(updates) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return own(*given, **named)

loop.gradients = gradients
sys.exit(main(sys.argv[2:]))
"""


def kill_in_step(args: list[str], step: int, *, first: str = "") -> None:
    """A new training in its own process, which kill -9 ends in the update of this step; it runs the code `first`."""
    command = [sys.executable, "-c", f"{first}\n{KILLED}", str(step), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


def learned(run: Path) -> list[dict[str, Any]]:
    """The run's metrics without its timings and the machine's load."""
    rows = read_jsonl(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith(("perf/", "system/"))} for row in rows]


def weights(run: Path, step: int) -> dict[str, bytes]:
    """The bytes of every tensor in a checkpoint's weights and optimizer state (their order in a file is MLX's own)."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    return {
        f"{file.name}/{name}": tensor.tobytes()
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def assert_goes_on(command: list[str], step: int, whole: Path, *, first: str = "") -> None:
    """Killed in this step and resumed, the run of this command ends, to the last bit, as the run `whole` did. The
    process that is killed runs the code `first`."""
    runs, name = (command[command.index(flag) + 1] for flag in ("--runs-dir", "--name"))
    kill_in_step(command, step, first=first)
    assert main(["train", "--resume", name, "--runs-dir", runs]) == 0
    run = Path(runs) / name
    assert learned(run) == learned(whole)
    steps = {int(folder.name[-6:]) for folder in (whole / "checkpoints").glob("step-*")}
    assert all(weights(run, n) == weights(whole, n) != {} for n in steps)


def events(run: Path) -> list[str]:
    """The kinds of the run's events, in order."""
    return [row["kind"] for row in read_jsonl(run / "events.jsonl")]


def state(paths: RunPaths) -> str:
    """What the run says that it does, nothing before it says anything."""
    return str(json.loads(paths.status.read_text())["state"]) if paths.status.exists() else ""


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Returns once the run has written this step's metrics, which `process` trains."""

    def reached() -> bool:
        assert process.poll() is None, process.communicate()
        return (run / "metrics.jsonl").exists() and len(read_jsonl(run / "metrics.jsonl")) >= step

    wait_until(reached)


def wait_until(met: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < until
        time.sleep(0.05)
