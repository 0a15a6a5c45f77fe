"""Several processes that train one model, as `mlx.launch` starts them: two real ones, over loopback, that do all of
`support/ranks.py` one after another."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import ranks
from support.places import TESTS
from support.training import make_data, state, wait_until

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths


def addresses() -> list[str]:
    """Free ports for two ranks; on Linux at an address of this process alone, so that no other takes them."""
    host = "127.{}.{}.{}".format(*(1 + os.getpid() // 250**n % 250 for n in range(3)))
    held = [socket.create_server((host if sys.platform == "linux" else "127.0.0.1", 0)) for _ in range(2)]
    found = ["{}:{}".format(*one.getsockname()) for one in held]
    for one in held:
        one.close()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have done everything, next to the runs of one process: `alone`, and `changed` with a stage that
    changes."""
    folder = tmp_path_factory.mktemp("ranks")
    make_data(folder / "data", test=2)
    assert main(ranks.training(folder, folder / "alone")) == 0
    assert main(ranks.training(folder, folder / "changed", *ranks.CHANGING)) == 0
    shutil.copytree(folder / "alone", folder / "resumed", symlinks=True)
    for step in range(2, ranks.STEPS + 1):
        shutil.rmtree(RunPaths(folder / "resumed" / "run").checkpoint(step))
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[address] for address in addresses()]))
    logs = [(folder / f"log-{n}").open("w") for n in range(2)]
    shared = {"MLX_HOSTFILE": str(hosts), "PYTHONPATH": str(TESTS)}
    pair = [
        subprocess.Popen(
            [sys.executable, ranks.__file__, str(folder)],
            env={**os.environ, **shared, "MLX_RANK": str(n)}, stdout=log, stderr=log,
        )
        for n, log in enumerate(logs)
    ]  # fmt: skip
    try:
        wait_until(lambda: any(p.poll() for p in pair) or all(p.poll() == 0 for p in pair))
        assert [p.poll() for p in pair] == [0, 0], [Path(log.name).read_text() for log in logs]
    finally:
        for process, log in zip(pair, logs, strict=True):
            process.kill()
            process.wait()
            log.close()
    return folder


@pytest.fixture
def found(folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    return [json.loads((folder / f"rank-{n}.json").read_text()) for n in range(2)]


def weights(run: Path, step: int) -> dict[str, np.ndarray]:
    held = mx.load(str(RunPaths(run).checkpoint(step) / "model.safetensors"))
    return {name: np.array(array.astype(mx.float32)) for name, array in held.items()}


def tokens(run: Path, step: int) -> list[list[int]]:
    """What a step sampled, in the order of its prompts."""
    return [row["token_ids"] for row in read_jsonl(RunPaths(run).completions(step))]


def assert_same(got: Path, expected: Path) -> None:
    """The same completions, metrics and weights at each step. From the second step on a completion may differ where its
    uniform number is at the edge of a token's share, as the weights are rounded otherwise; then nothing later compares.
    """
    ours, theirs = (read_jsonl(run / "metrics.jsonl") for run in (got, expected))
    assert len(ours) == len(theirs) == ranks.STEPS
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if tokens(got, step) != tokens(expected, step):
            assert step > 1
            break
        assert one.keys() == other.keys()
        for key in one:
            if isinstance(one[key], str) or one[key] is None:
                assert one[key] == other[key] or key == "time", key
            elif not key.startswith(("perf/", "system/")):
                assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
        mine, single = weights(got, step), weights(expected, step)
        assert mine.keys() == single.keys()
        for name in mine:  # Adam magnifies what is noise around 0
            np.testing.assert_allclose(mine[name], single[name], rtol=0, atol=1e-4, err_msg=name)


def assert_together(found: list[dict[str, Any]], name: str) -> None:
    """Both ranks end well, with the same weights to the bit."""
    assert [rank[name]["code"] for rank in found] == [0, 0]
    assert len(found[0][name]["weights"]) == 1
    assert found[0][name]["weights"] == found[1][name]["weights"]


@pytest.mark.parametrize("groups", ranks.GROUPS, ids=["halves", "two and one", "one for two"])
def test_the_gradient_of_two_ranks_is_that_of_one(groups: int, folder: Path) -> None:
    """One rank with twice the groups; whatever the shares are, and metrics as well."""
    one = {name: np.array(array) for name, array in ranks.update(groups).items()}
    two = {name: np.array(array) for name, array in mx.load(str(folder / f"gradient-{groups}.npz")).items()}
    np.testing.assert_allclose(two.pop("metrics"), one.pop("metrics"), rtol=1e-5, atol=1e-6)
    norm = np.sqrt(sum(np.square(g).sum() for g in one.values()))
    assert norm > 0.01
    for name in one:
        np.testing.assert_allclose(two[name] / norm, one[name] / norm, rtol=1e-5, atol=1e-6, err_msg=name)


def test_two_ranks_train_as_one(folder: Path, found: list[dict[str, Any]]) -> None:
    """Each samples and trains its share; the first alone writes and speaks."""
    assert_together(found, "together")
    assert [rank["together"]["out"].strip() for rank in found] == [str(folder / "together" / "run"), ""]
    assert_same(folder / "together" / "run", folder / "alone" / "run")


def test_a_resumed_run_takes_the_first_rank_s_state(folder: Path, found: list[dict[str, Any]]) -> None:
    """After a stop in the middle the other ranks are given weights and optimizer; they need no disk in common."""
    assert_together(found, "resumed")
    assert_same(folder / "resumed" / "run", folder / "alone" / "run")


def test_ranks_change_together(folder: Path, found: list[dict[str, Any]]) -> None:
    """A stage whose temperature, mix and weights change is the same in two ranks: both take the first one's
    measurements."""
    assert_together(found, "changing")
    assert_same(folder / "changing" / "run", folder / "changed" / "run")
    rows = read_jsonl(folder / "changing" / "run" / "metrics.jsonl")
    assert [row["mix/easy"] for row in rows] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(("what", "steps"), [("interrupted", 2), ("paused", 4)])
def test_what_is_asked_of_one_rank_stops_all(what: str, steps: int, folder: Path, found: list[dict[str, Any]]) -> None:
    """Ctrl-C to any rank ends the step for all, saved, with the code of an interruption. Asked of the first rank to
    pause, all rest after the same step, saved, and go on; stopped in a rest, all stop."""
    assert [rank[what]["code"] for rank in found] == [130, 130]
    assert found[0][what].get("rests", [[2] * 4, [4] * 4]) == [[2] * 4, [4] * 4]
    paths = RunPaths(folder / what / "run")
    assert state(paths) == "interrupted"
    assert [step.step for step in list_checkpoints(paths)][-1] == len(read_jsonl(paths.metrics)) == steps


@pytest.mark.parametrize(
    ("what", "code", "first", "second"),
    [
        ("settings", 2, "rank 1", "settings"),
        ("memory", 4, "on rank 1, training needs at least", "training needs at least"),
        ("judge", 2, "--worker URL", "--worker URL"),
        ("failing", 1, "on rank 1, no such file on this machine", "no such file on this machine"),
    ],
)
def test_what_one_rank_lacks_ends_all(
    what: str, code: int, first: str, second: str, folder: Path, found: list[dict[str, Any]]
) -> None:
    """Other settings, too little memory, a judge that each would ask for itself, or a reward that fails: each says why,
    in place of a lost connection, with the exit code of a single process. Nothing is begun, nothing done is lost."""
    assert [rank[what]["code"] for rank in found] == [code, code]
    assert [why in rank[what]["err"] for why, rank in zip((first, second), found, strict=True)] == [True, True]
    assert not (folder / "refused").exists()
    paths = RunPaths(folder / "failing" / "run")
    assert [step.step for step in list_checkpoints(paths)][-1] == len(read_jsonl(paths.metrics)) == 1


def test_the_ranks_take_chunks_that_fit_on_all(found: list[dict[str, Any]]) -> None:
    """The fastest ones (4 is slower than 1 but need not hold less); where there are none, each rank says so."""
    assert [rank["agreed"] for rank in found] == [[5, "no chunks fit on every rank"]] * 2
