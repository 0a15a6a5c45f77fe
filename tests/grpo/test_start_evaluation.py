"""The evaluation of the model that a run begins with: on a sample before the first step, on all prompts in the end."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.training import arguments, before_update, kill_in_step, learned, trained, weights

from smolsum.files import read_jsonl
from smolsum.grpo import loop
from smolsum.grpo.keeper import RunKeeper
from smolsum.grpo.session import Session
from smolsum.rollout.sampling_count import SamplingCount
from smolsum.runs.listing import inventory
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import read_run
from smolsum.watch.results import gained

SETTINGS = {"stages__length__steps": 2, "stages__quality__steps": 1, "train__validate_every": 1}
SAMPLE = {"train__start_prompts": "2", "train__fresh_evaluations": True}
"""of the four prompts, which no other run of these tests completes"""
SEEN: list[dict[str, Any]] = []
"""the summary of the start in the middle of each step of a run with a sample"""


def start_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "eval" / "start-test" / "summary.json").read_bytes()))


def completions(run: Path) -> dict[str, Any]:
    """The start's completions by example, as far as they do not name the place that they were made in."""
    return {row["id"]: row for row in read_jsonl(run / "eval" / "start-test" / "generations.jsonl")}


def assert_same_start(run: Path, whole: Path) -> None:
    scores = [read_jsonl(one / "eval" / "start-test" / "scores.jsonl") for one in (run, whole)]
    assert scores[0] == scores[1]
    assert completions(run) == completions(whole)
    assert start_of(run) == start_of(whole)


@pytest.fixture(scope="module")
def sampled(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose start is evaluated on two prompts first, with what its start says in each step in `SEEN`."""
    runs = tmp_path_factory.mktemp("sampled")
    SEEN.clear()
    with before_update(lambda _: SEEN.append(start_of(runs / "sampled"))):
        return trained(data, runs, "sampled", **SETTINGS, **SAMPLE)


def test_the_first_step_waits_for_the_sample_alone(sampled: Path, finished: Path) -> None:
    """While the run trains two of four prompts are measured, which its summary says; in the end they all are, by the
    model that the run began with, and nothing that it learned is another."""
    assert [(one["n"], one["whole"]) for one in SEEN] == [(2, 4)] * 3
    assert_same_start(sampled, finished)
    assert "whole" not in start_of(sampled)
    assert learned(sampled) == learned(finished)
    assert weights(sampled, 3) == weights(finished, 3) != {}
    said = [row["message"] for row in read_jsonl(sampled / "events.jsonl") if row["kind"] == "evaluated"]
    assert [text.partition(" of the test split")[0] for text in said] == [
        "start: evaluated 2 of the 4 prompts", "length: evaluated 4 prompts", "quality: evaluated 4 prompts",
        "start: evaluated 4 prompts",
    ]  # fmt: skip


def test_a_killed_run_completes_its_start(data: Path, finished: Path, tmp_path: Path, call: Call) -> None:
    """After kill -9 in a step the start has its sample: the view says so and compares nothing with it, and statistics
    refuse it. The resumed run ends with the start of a whole run."""
    kill_in_step(arguments(data, tmp_path, "killed", **SETTINGS, **SAMPLE), 2)
    run = tmp_path / "killed"
    assert (start_of(run)["n"], start_of(run)["whole"]) == (2, 4)
    read = read_run(RunPaths(run))
    assert read.results["start"].so_far == "2 of 4"
    (listed,) = [one for one in inventory(tmp_path) if one.name == "killed"]
    assert listed.metrics == {}
    so_far = gained(read)
    assert so_far
    assert so_far.text.startswith("validation 1: ")
    assert "→" not in so_far.text
    refused = call("stats", run / "eval" / "start-test", finished / "eval" / "start-test")
    assert_refused(refused, "2 of 4 examples", "smolsum train --resume")
    done(call("train", "--resume", run), "test split, 4 prompts, greedy")
    assert_same_start(run, finished)
    assert weights(run, 3) == weights(finished, 3)


def test_a_start_that_is_stopped_at_the_end_goes_on(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Ctrl-C while the last prompts are completed: nothing is trained again, and the start ends the same."""
    own = loop.evaluate

    def stopped(session: Session, label: str, *, on_sample: bool = False) -> None:
        if label == "start" and not on_sample:
            os.kill(os.getpid(), signal.SIGINT)
        own(session, label, on_sample=on_sample)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", stopped)
        code, _, err = call(*arguments(data, tmp_path, "late", **SETTINGS, **SAMPLE))
    assert code == 130
    assert "hint: smolsum train --resume" in err
    run = tmp_path / "late"
    done(call("train", "--resume", run))
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3]
    assert_same_start(run, finished)


def test_adapters_are_taken_off_the_start(data: Path, finished: Path, tmp_path: Path, call: Call) -> None:
    """A run that trains adapters ends with the same start, which has none."""
    done(call(*arguments(data, tmp_path, "lora", **SETTINGS, **SAMPLE, lora__rank=4)))
    texts = [[row["text"] for row in read_jsonl(one / "eval" / "start-test" / "scores.jsonl")]
             for one in (tmp_path / "lora", finished)]  # fmt: skip
    assert texts[0] == texts[1]


def test_a_start_is_not_completed_by_another_model(data: Path, tmp_path: Path, call: Call) -> None:
    """Where the weights on the disk change while the run trains, the sample stays, and the way out is named."""
    from smolsum.policy.load import locate

    model = shutil.copytree(locate("builtin:tiny"), tmp_path / "model")
    other = locate("builtin:tiny-lfm") / "model.safetensors"
    asked = arguments(data, tmp_path, "moved", **SETTINGS, **SAMPLE, model__path=str(model))
    with before_update(lambda n: n == 3 and shutil.copyfile(other, model / "model.safetensors")):
        code, _, err = call(*asked)
    assert code == 2
    assert "other weights than when the run began" in err
    assert f"smolsum train --resume {tmp_path / 'moved'}" in err
    assert (start_of(tmp_path / "moved")["n"], start_of(tmp_path / "moved")["whole"]) == (2, 4)
    shutil.copyfile(locate("builtin:tiny") / "model.safetensors", model / "model.safetensors")
    done(call("train", "--resume", tmp_path / "moved"))
    assert start_of(tmp_path / "moved")["n"] == 4


@pytest.mark.parametrize("value", ["0", "-3", "some", "1.5", ""])
def test_what_is_no_number_of_prompts(value: str, call: Call) -> None:
    assert_refused(call("train", f"--set=train.start_prompts={value}"), "train.start_prompts", "32, or all")


def test_every_count_reaches_the_screen_and_the_status(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Evaluations, validations and the rollouts of each step are counted from 0 to the last, and in between after each
    batch or token; the groups of an update from 0 to the last; status.json has the beginning of each but updates, with
    what it counts."""
    counts: list[tuple[str, SamplingCount]] = []
    statuses: list[dict[str, Any]] = []
    run = tmp_path / "counted"

    def counting(_: object, doing: str, count: SamplingCount, **named: Any) -> None:
        counts.append((" ".join(filter(None, (doing, named.get("of")))), count))

    def told(keeper: RunKeeper, count: SamplingCount, phase: str, stage: str, own: Any = RunKeeper._show_count) -> None:
        own(keeper, count, phase, stage)
        statuses.append(json.loads((run / "status.json").read_bytes()) if count.left_s is None else {})

    monkeypatch.setattr("smolsum.grpo.progress.Progress.counting", counting)
    monkeypatch.setattr(RunKeeper, "_show_count", told)
    one_step = {**SETTINGS, "stages__length__steps": 1, "train__eval_batch": 2}
    done(call(*arguments(data, tmp_path, "counted", **one_step)))
    found = {name: [count for own, count in counts if own == name] for name, _ in counts}
    wanted = {"evaluating start": 4, "sampling step 1": 8, "validation": 2, "evaluating length": 4}
    wanted |= {"sampling step 2": 8, "evaluating quality": 4}
    for step in (1, 2):
        groups = found.pop(f"update of step {step}")
        assert {count.noun for count in groups} == {"groups"}
        assert (groups[0].done, groups[-1].done) == (0, groups[0].total)
    assert list(found) == list(wanted)
    for name, total in wanted.items():
        assert {count.total for count in found[name]} == {total}
        assert (found[name][0].done, found[name][-1].done) == (0, total)
        within = [count for count in found[name] if count.done < total and count.left_s is not None]
        assert within, f"{name} is silent until it ends"
    begun = [(one["phase"], one["stage"], one["completions"]) for one in statuses if one]
    assert begun[:4] == [
        ("evaluating", "start", 4), ("training", "length", 8), ("validating", "length", 2), ("evaluating", "length", 4),
    ]  # fmt: skip
    assert "completions" not in json.loads((run / "status.json").read_bytes())
