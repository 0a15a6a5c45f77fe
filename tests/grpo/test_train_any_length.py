"""Runs whose prompts ask for lengths of their own, with hindsight and a countdown: what they draw and write, that they
resume bit for bit, and that workers sample the same prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.serving import process
from support.training import arguments, assert_goes_on, trained, weights

import smolsum
from smolsum.cli.main import main
from smolsum.config.targets import make_targets
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import asked_and_got, read_samples, sample_errors
from smolsum.runs.typed_json import read_lines

SETTINGS = {
    "task__targets": "20-40", "task__held_out_targets": "21-39/3", "task__target_curriculum": 0.5,
    "stages__length__hindsight": 1.0, "stages__length__steps": 4, "stages__quality__steps": 2,
    "stages__quality__hindsight": 0.1, "stages__quality__hindsight_of": "texts", "grpo__countdown": 1.0,
}  # fmt: skip
TARGETS = make_targets("20-40", "21-39/3")


def rollouts_of(run: Path) -> list[dict[str, Any]]:
    return [row for file in sorted((run / "completions").glob("*.jsonl")) for row in read_jsonl(file)]


def test_training_asks_for_seen_targets_only(finished: Path) -> None:
    """The target stands in the text and in the line of each rollout; the held-out ones come in evaluations alone."""
    rows = rollouts_of(finished)
    assert {row["target"] for row in rows} <= {*TARGETS.trained}
    assert len({row["target"] for row in rows}) > 2
    said = [row for row in rows if "messages" in row]
    assert all(row["messages"][-1]["content"].endswith(f"\n{row['target']} tokens") for row in said)
    assert all(row["rewards"]["length"] <= 0 for row in rows if "length" in row["rewards"])
    for label in ("start", "length", "quality"):
        folder = finished / "eval" / f"{label}-test"
        scores = read_jsonl(folder / "scores.jsonl")
        assert [row["target"] for row in scores] == [TARGETS.evaluated("test", row["id"]) for row in scores]
        assert all(row["off_target"] == abs(row["got"] - row["target"]) for row in scores)
        assert "length/correlation" in json.loads((folder / "summary.json").read_text())["metrics"]


def test_metrics_say_what_hindsight_did(finished: Path) -> None:
    """Of the ends in one stage, and of whole texts in the other."""
    every = read_jsonl(finished / "metrics.jsonl")
    assert all("hindsight/copies" in row for row in every)
    rows, of_texts = ([row for row in every if row["stage"] == stage] for stage in ("length", "quality"))
    assert not any({"hindsight/early_frac", "hindsight/end_prob"} & row.keys() for row in of_texts)
    assert all(("hindsight/token_logp" in row) == (row["hindsight/copies"] > 0) for row in of_texts)
    assert any(row["hindsight/copies"] > 0 for row in rows)
    taught = next(row for row in rows if row["hindsight/copies"] > 0)
    assert 0 < taught["hindsight/end_prob"] < 1
    assert taught["hindsight/loss"] > 0
    assert {"length/off_target", "length/mean_target", "hindsight/early_frac", "hindsight/early_prob"} <= taught.keys()


def test_hindsight_changes_the_weights(data: Path, finished: Path, tmp_path: Path) -> None:
    """The first step samples the same completions, and something else has been learnt after four."""
    steps = {"stages__quality__steps": 1}
    without = SETTINGS | {f"stages__{stage}__hindsight": 0.0 for stage in ("length", "quality")} | steps
    del without["stages__quality__hindsight_of"]
    run = trained(data, tmp_path, "without", **without)
    first, with_hindsight = (read_jsonl(one / "completions" / "step-000001.jsonl") for one in (run, finished))
    assert [row["token_ids"] for row in first] == [row["token_ids"] for row in with_hindsight]
    assert not any(key.startswith("hindsight") for key in read_jsonl(run / "metrics.jsonl")[0])
    assert weights(run, 4) != weights(finished, 4)


def test_the_countdown_changes_the_weights_and_says_how_well_the_policy_counts(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    rows = read_jsonl(finished / "metrics.jsonl")
    assert all(row["countdown/loss"] > 0 and 0 < row["countdown/prob"] < 1 for row in rows)
    run = trained(
        data, tmp_path, "without", **SETTINGS | {"stages__length__countdown": 0.0, "stages__quality__steps": 1}
    )
    assert ["countdown/loss" in row for row in read_jsonl(run / "metrics.jsonl")] == [False] * 4 + [True]
    assert weights(run, 4) != weights(finished, 4)


def test_texts_of_the_lengths_that_the_model_writes_are_learnt(data: Path, tmp_path: Path) -> None:
    """Of 32 completions some end by themselves after a sentence, and pass."""
    wide = {
        "task__targets": "8-126", "sampling__max_new_tokens": 128, "sampling__rollouts": 16,
        "train__prompts_per_step": 2, "stages__length__steps": 1, "stages__quality__steps": 1,
        "stages__quality__hindsight": 0.1, "stages__quality__hindsight_of": "texts",
        "stages__quality__constraints": "repeated_trigrams <= 0.05",
    }  # fmt: skip
    run = trained(data, tmp_path, "wide", **wide)
    row = read_jsonl(run / "metrics.jsonl")[-1]
    ended = [one for one in read_jsonl(run / "completions" / "step-000002.jsonl") if one["finish_reason"] == "stop"]
    assert 0 < row["hindsight/copies"] <= len(ended)
    assert row["hindsight/copies_frac"] == row["hindsight/copies"] / 32
    assert row["hindsight/token_logp"] < 0
    assert row["hindsight/loss"] > 0


def test_report_shows_asked_against_got(finished: Path, tmp_path: Path) -> None:
    """A table of all targets, the seen and the unseen ones, and a picture with its numbers in words."""
    assert main(["report", str(finished), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Asked against got" in page
    table = page.split('id="table-T1"')[1].split("</table>")[0]
    summary = json.loads((finished / "eval" / "quality-test" / "summary.json").read_text())["metrics"]
    assert f"{summary['length/off_target']:.2f}" in table
    assert ">seen<" in table
    assert ">unseen<" in table


def test_readers_of_a_run_take_the_target_from_the_line(finished: Path) -> None:
    """What is wrong with a completion, and its length next to what was asked, in training and in evaluations."""
    run = Run(RunPaths(finished))
    while run.poll() and run.behind():
        pass
    settings = run.settings
    row = read_lines(finished / "completions" / "step-000001.jsonl", SampledRollout)[0]
    assert asked_and_got(row, settings) == f"{row.tokens} of {row.target} tokens"
    assert row.target is not None
    off = row.tokens - row.target
    within = abs(off) <= max(1, round(row.target * 5 / 64))
    assert (f"{off:+d} tokens" in sample_errors(row, settings)) is not within
    tests = read_samples(finished / "eval" / "start-test")
    assert {name: one.target for name, one in tests.samples.items()} == {
        name: TARGETS.evaluated("test", name) for name in tests.samples
    }


def test_python_takes_targets_and_rewards_that_read_them(data: Path, tmp_path: Path) -> None:
    """A function with an argument `target` gets what each completion's prompt asks for."""
    seen: list[int] = []

    def asked_for(completions: list[str], target: list[int], **_: object) -> list[float]:
        seen.extend(target)
        return [0.0 for _ in completions]

    run = smolsum.train(
        "tiny", data=str(data), rewards=["length", asked_for], target="20-40", strategy="included", name="mine",
        runs_dir=tmp_path, quiet=True,
        settings={
            "stages.included.steps": 1, "train.prompts_per_step": 2, "sampling.rollouts": 2,
            "sampling.max_new_tokens": 46, "train.validate_every": 0,
        },
    )  # fmt: skip
    rows = rollouts_of(run)
    assert {row["target"] for row in rows} <= {*seen}
    assert {*seen} <= {*range(20, 41)}


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6])
def test_resume_after_kill_is_bitwise(data: Path, finished: Path, tmp_path: Path, step: int) -> None:
    """kill -9 with targets, a curriculum and hindsight on: the end is that of the whole run."""
    assert_goes_on(arguments(data, tmp_path, "killed", **SETTINGS), step, finished)


@pytest.mark.slow
def test_workers_sample_the_prompts_as_they_are_asked(data: Path, finished: Path, tmp_path: Path) -> None:
    """A worker gets each step's own token ids: the first step's rollouts are those of a run without workers, and later
    steps, some of them requested ahead, ask for what the same draws say."""
    with process("--model", "tiny", log=tmp_path / "log") as (_, client):
        remote = trained(data, tmp_path, "remote", "--worker", str(client.base_url), **SETTINGS)
    here, there = rollouts_of(finished), rollouts_of(remote)
    assert [(row["prompt_id"], row["target"]) for row in here] == [(row["prompt_id"], row["target"]) for row in there]
    assert [row["token_ids"] for row in here[:8]] == [row["token_ids"] for row in there[:8]]
    assert {row["worker"] for row in there} != {"local"}
