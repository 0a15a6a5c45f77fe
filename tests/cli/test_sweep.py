"""Sweeps of seeds and settings: the plan, its names, and one that is interrupted and goes on."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, make_data

from smolsum.runs.run_writer import RunWriter


def planned(out: str) -> list[str]:
    """The names of a plan."""
    return [line.split()[0] for line in out.splitlines()[1:]]


@pytest.mark.slow
def test_seeds_are_crossed_with_settings(call: Call) -> None:
    """Seeds go on from the run's own; names say what differs; the first stage is shared where nothing in it differs."""
    crossed = call("train", "--seeds=2", "--set=stages.quality.steps=10,20", "--dry-run")
    out, _ = done(crossed, "4 runs: 4 to train; 380 steps at most")  # 2 x 160 + 2 x 10 + 2 x 20
    assert planned(out) == [f"tiny-finetuned-meteor-steps{steps}-seed{seed}" for steps in (10, 20) for seed in (42, 43)]
    assert ["(shared)" in line for line in out.splitlines()[1:]] == [False, False, True, True]
    out, _ = done(call("train", "--seeds=2", "--seed=7", "--reward=meteor", "--reward=rouge", "--dry-run", "-q"))
    assert [name.rpartition("-")[2] for name in planned(out)] == ["seed7"] * 3 + ["seed8"] * 3


def test_words_and_numbers_are_lists_and_texts_are_not(call: Call) -> None:
    """A comma in a text, such as a prompt or a path, belongs to it."""
    text = ["--set=task.system_prompt=Short, please.", "--dry-run", "-q"]
    out, _ = done(call("train", "--set=grpo.loss=grpo,dapo", *text))
    assert planned(out) == ["tiny-finetuned-meteor-loss-grpo", "tiny-finetuned-meteor-loss-dapo"]
    assert 'system_prompt = "Short, please."' in done(call("train", *text))[0]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--set=grpo.beta=0.1,,0.2", "--set grpo.beta=0.1,,0.2 has an empty value"),
        ("--set=grpo.beta=0.1,0.1", "--set grpo.beta=0.1,0.1 has a value twice"),
        ("--set=grpo.beta=0.1,x", "grpo.beta must be a number"),
        ("--set=grpo.bet=0.1,0.2", "'grpo.bet'"),
        ("--set=grpo.beta=0.1,0.2 --set=grpo.beta=0.3", "grpo.beta has several values"),
        ("--seeds=2 --set=train.seed=1", "--seeds and --set train.seed"),
        ("--seeds=0", "'--seeds'"),
        ("--seeds=2 --name=mine", "--name"),
        ("--seeds=2 --find-lr", "--find-lr"),
        ("--set=stages.polish.steps=1,2", "'polish'"),
    ],
)
def test_impossible_sweeps(flags: str, named: str, call: Call) -> None:
    """One error, and nothing is made."""
    refused = call("train", *flags.split())
    assert_refused(refused, named)
    assert refused[2].count("error:") == 1
    assert not Path("runs").exists()


def test_a_sweep_is_interrupted_and_goes_on(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seeds and two settings: Ctrl-C in the second run, the same command again, one report of all."""
    data = make_data(tmp_path / "posts", test=2)
    settings = {"stages__length__steps": 1, "stages__quality__steps": 1, "train__validate_every": 0}
    single = arguments(data, tmp_path / "runs", "", **settings)
    place = single.index("--name")
    command = [*single[:place], *single[place + 2 :], "--seeds=3", "--set=grpo.beta=0.02,0.05", "--quiet"]
    names = [f"tiny-finetuned-meteor-beta{beta}-seed{seed}" for beta in (0.02, 0.05) for seed in (42, 43, 44)]
    write = RunWriter.metrics

    def interrupted(writer: RunWriter, row: Any) -> None:
        write(writer, row)
        if (tmp_path / "runs" / names[1] / "metrics.jsonl").exists():
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "metrics", interrupted)
        code, out, err = call(*command)
    assert (code, [Path(line).name for line in out.splitlines()]) == (130, names[:1]), err
    assert "hint: smolsum train" in err
    assert not (tmp_path / "runs" / names[2]).exists()
    out, _ = done(call(*command))
    assert [Path(line).name for line in out.splitlines()] == names
    out, _ = done(call("runs", "--settings", "--runs-dir=runs"))
    assert {line.split()[0] for line in out.splitlines()} >= {"grpo.beta", "train.seed"}
    out, _ = done(call("report", *names))
    assert re.search(r"report.*\.html", out)


def test_evaluations_of_several_seeds(call: Call, tmp_path: Path) -> None:
    """Each seed has a folder; greedy completions have no seed."""
    data = make_data(tmp_path / "posts", test=2)
    base = ["baseline", f"--set=data.path={data}", "--prompt=50-words", "--seeds=2", "--quiet"]
    out, _ = done(call(*base, "--temperature=0.7"))
    assert [Path(line).name.rpartition("-")[2] for line in out.splitlines()] == ["seed0", "seed1"]
    assert_refused(call(*base), "greedy completions are the same")
    assert_refused(call(*base, "--temperature=1", "--name=x"), "--name")
