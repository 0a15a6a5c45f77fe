"""Whole runs through the command line: what they leave on disk, and that nothing that stops them costs anything."""

import json
import os
import shutil
import signal
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from support.calls import Call, done
from support.disks import mounted
from support.refusals import assert_refused
from support.training import (
    PATIENCE_S,
    arguments,
    assert_goes_on,
    before_update,
    events,
    learned,
    start,
    trained,
    weights,
)

from smolsum.cli.main import main
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.grpo import resume
from smolsum.policy.cpu import native
from smolsum.results.evaluate import run as run_evaluation
from smolsum.results.evaluate.storage import KEY, ORIGIN

SLOW = pytest.mark.slow
PHASES: list[str] = []
"""the phases that status.json names in the middle of each step of the run `seeded`"""


@pytest.fixture(scope="module")
def seeded(finished: Path, data: Path) -> Path:
    """A short run of another seed next to the finished one, on a copy of its data."""
    runs = finished.parent
    shutil.copytree(data, runs / "posts")
    steps = {"stages__length__steps": 1, "stages__quality__steps": 1}
    mx.eval(mx.ones(1 << 28))  # what this process held before is no part of a step
    PHASES.clear()  # a worker of the tests that comes back to this file makes the run again
    with before_update(lambda _: PHASES.append(json.loads((runs / "seeded/status.json").read_text())["phase"])):
        return trained(runs / "posts", runs, "seeded", "--seed=7", **steps)


def test_a_step_is_measured_alone(seeded: Path) -> None:
    """Its peak is not that of the process, which has held a gigabyte before, and the first step of a stage, which takes
    minutes at 0.5 B, is training, not what came before it."""
    peaks = [row["perf/peak_memory_gb"] for row in read_jsonl(seeded / "metrics.jsonl")]
    assert len(peaks) == 2
    assert all(0.001 < peak < 1.0 for peak in peaks)
    assert len(PHASES) == 2
    assert set(PHASES) <= {"training", "updating"}


def test_run_directory_holds_everything(finished: Path) -> None:
    """A finished run has its settings, every step's metrics and rollouts, evaluations, and both stages' weights."""
    rows = read_jsonl(finished / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["stage"] for row in rows] == ["length"] * 5 + ["quality"] * 3
    expected = (
        "reward reward_std frac_reward_zero_std kl grad_norm completions/mean_length length/within_tol "
        "completions/repeated_trigrams update/visible_frac clip_ratio/region_mean learning_rate system/cpu_percent "
        "system/memory_rss_gb"
    )
    assert set(expected.split()) <= set(rows[0])
    assert "rewards/length/mean" in rows[0]
    assert "rewards/meteor/mean" in rows[-1]
    assert "validation/reward" in rows[1]
    rollouts = read_jsonl(finished / "completions" / "step-000003.jsonl")
    assert len(rollouts) == 8
    assert len({row["seed"] for row in rollouts}) == 8
    assert all(len(row["token_ids"]) <= 46 for row in rollouts)
    assert json.loads((finished / "status.json").read_text())["state"] == "finished"
    for label in ("start", "length", "quality"):
        summary = json.loads((finished / "eval" / f"{label}-test" / "summary.json").read_text())
        assert summary["n"] == 4
        assert summary["data"]["test"]["split"] == "test"
        assert len(read_jsonl(finished / "eval" / f"{label}-test" / "scores.jsonl")) == 4
    assert {"model.safetensors", "optimizer.safetensors"} == {key.split("/")[0] for key in weights(finished, 8)}
    info = json.loads((finished / "run.json").read_text())
    assert info["steps"] == {"length": 5, "quality": 3}
    assert info["native"] == (native.library() is not None)


def test_stages_of_an_equal_run_are_reused(
    finished: Path, data: Path, seeded: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another quality signal starts from the length stage that is there, and says so. A stage is only the same if all
    that decides its weights is the same, such as the seed and the code."""
    runs = finished.parent
    asked = [*arguments(data, runs, "rouge", stages__quality__steps=1), "--reward=rouge"]
    done(call(*asked), "stage length was trained before")
    run = runs / "rouge"
    assert ("stage_reused" in events(run), "stage_reused" in events(seeded)) == (True, False)
    assert weights(run, 5) == weights(finished, 5)
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [6]
    monkeypatch.setattr(resume, "source_digest", lambda: "of tomorrow")
    monkeypatch.setattr(run_evaluation, "source_digest", lambda: "of tomorrow")
    done(call(*arguments(data, runs, "tomorrow", stages__quality__steps=1)))
    assert "stage_reused" not in events(runs / "tomorrow")
    keys = [json.loads((one / "eval" / "length-test" / ORIGIN).read_text())[KEY] for one in (run, runs / "tomorrow")]
    assert "" != keys[0] != keys[1]


def test_config_of_a_run_repeats_it(seeded: Path, tmp_path: Path, call: Call) -> None:
    """`--config` on a run's config.toml gives the same weights and metrics in another place. `RUN=$(smolsum train ...)`
    works, and the closing table is narration."""
    twin = call("train", "--config", seeded / "config.toml", "--runs-dir", tmp_path, "--name", "twin", "--plain")
    assert done(twin, "after quality", "on target")[0] == f"{tmp_path / 'twin'}\n"
    assert learned(tmp_path / "twin") == learned(seeded)
    assert weights(tmp_path / "twin", 2) == weights(seeded, 2) != {}


@pytest.mark.parametrize("step", [pytest.param(2, marks=SLOW), 4, pytest.param(8, marks=SLOW)])
def test_resume_after_kill_is_bitwise(data: Path, finished: Path, tmp_path: Path, step: int) -> None:
    """kill -9 before any checkpoint, a step after one, in the second stage: the end is that of the whole run."""
    assert_goes_on(arguments(data, tmp_path, "killed"), step, finished)


def interrupt_in(function: str, call: int, patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, a real signal, in this call of a function of the trainer."""
    module, name = function.rsplit(".", 1)
    own, calls = getattr(import_module(module), name), list[None]()

    def interrupted(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return own(*given, **named)

    patch.setattr(function, interrupted)


def test_first_ctrl_c_saves_and_exits_130(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The step is finished and saved, the hint resumes, and the resumed run ends as if nothing had been."""
    run = tmp_path / "stopped"
    interrupt_in("smolsum.grpo.loop.gradients", 3, monkeypatch)
    code, out, err = call(*arguments(data, tmp_path, "stopped"))
    assert (code, out) == (130, f"{run}\n")
    assert "finishing the step" in err
    assert "hint: smolsum train --resume" in err
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3]
    assert (run / "checkpoints" / "step-000003" / "meta.json").exists()
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    assert main(["train", "--resume", str(run)]) == 0
    assert learned(run) == learned(finished)
    assert weights(run, 8) == weights(finished, 8)


def test_ctrl_c_outside_a_step_leaves_at_once(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """In an evaluation there is no step to finish: 130, the hint, and the resumed run ends as if nothing had been."""
    run = tmp_path / "early"
    interrupt_in("smolsum.grpo.evaluations.complete", 1, monkeypatch)
    code, _, err = call(*arguments(data, tmp_path, "early"))
    assert code == 130
    assert "finishing the step" not in err
    assert err.splitlines()[-1].startswith("hint: smolsum train --resume")
    assert learned(run) == []
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    assert main(["train", "--resume", str(run)]) == 0
    assert learned(run) == learned(finished)


def test_a_damaged_run_description_is_named(finished: Path, tmp_path: Path, call: Call) -> None:
    shutil.copytree(finished, tmp_path / "hurt", symlinks=True)
    (tmp_path / "hurt" / "run.json").write_text("{bro")
    refused = call("train", "--resume", str(tmp_path / "hurt"))
    assert_refused(refused, "run.json", "smolsum train --config", error=SmolsumError)


def test_damaged_checkpoint_is_passed_over(finished: Path, tmp_path: Path, call: Call) -> None:
    """With the newest checkpoint broken the run goes back to the one before it, says so, and ends the same."""
    shutil.copytree(finished, tmp_path / "hurt", symlinks=True)
    run = tmp_path / "hurt"
    file = run / "checkpoints" / "step-000008" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.unlink()
    file.write_bytes(content)
    done(call("train", "--resume", "hurt", "--runs-dir", tmp_path), "step-000008 is damaged")
    assert "checkpoint_damaged" in events(run)
    assert learned(run) == learned(finished)
    assert weights(run, 8) == weights(finished, 8)


def test_a_run_that_cannot_begin_is_refused(finished: Path, data: Path, tmp_path: Path, call: Call) -> None:
    """A run is never overwritten; a prompt over max_input_tokens names itself and both ways out."""
    before = learned(finished)
    refused = call(*arguments(data, finished.parent, "whole"))
    assert_refused(refused, str(finished))
    assert "loading" not in refused[2]
    assert learned(finished) == before
    refused = call(*arguments(data, tmp_path, "long", data__max_input_tokens=150))
    assert_refused(refused, "max_input_tokens = 150", "data.long_prompts=drop")
    assert not (tmp_path / "long").exists()


def test_finished_run_resumes_to_nothing(finished: Path, call: Call) -> None:
    """Resuming a finished run trains nothing, changes no weights and shows the table again."""
    before = weights(finished, 8)
    done(call("train", "--resume", "whole", "--runs-dir", finished.parent), "after quality")
    assert weights(finished, 8) == before


@pytest.mark.slow
def test_full_disk_keeps_the_last_checkpoint(data: Path, finished: Path, tmp_path: Path) -> None:
    """A disk that fills up ends the run with one error; with room again it resumes to the same end."""
    with mounted(tmp_path / "disk", 36_864) as disk:
        process = start(arguments(data, disk, "full", train__keep_checkpoints=9, train__checkpoint_every=1))
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, err
        assert "the disk is full" in err
        assert "hint: " in err
        subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)
        assert main(["train", "--resume", "full", "--runs-dir", str(disk)]) == 0
        assert weights(disk / "full", 8) == weights(finished, 8)


def test_other_data_or_none_refuse_to_resume(seeded: Path, tmp_path: Path, call: Call) -> None:
    """Resume is exact or refuses: other posts are another run, and what helps is no setting that --resume refuses."""
    run = shutil.copytree(seeded, tmp_path / "moved", symlinks=True)
    posts = seeded.parent / "posts"
    shutil.copyfile(posts / "validation.parquet", posts / "train.parquet")
    assert_refused(call("train", "--resume", str(run)), "data")
    config = run / "config.toml"
    config.write_text(config.read_text().replace(str(posts), "/no/data/here"))
    refused = call("train", "--resume", str(run))
    assert_refused(refused, "/no/data/here", "put back")
    assert "--set" not in refused[2]
