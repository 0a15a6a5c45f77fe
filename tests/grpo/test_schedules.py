"""Stages that change from step to step, through the command line: what is sampled and learnt at each step, and that a
run that was stopped ends as one that was not."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.refusals import assert_refused
from support.serving import process
from support.training import PATIENCE_S, arguments, assert_goes_on, included, trained

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.policy.load import load_policy
from smolsum.policy.weights import save_trained
from smolsum.rollout.remote_source import RemoteSource
from smolsum.rollout.source import GroupRequest
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch.charts import CHARTS

STEPS = 4
SETTINGS = {
    "stages__length__steps": STEPS, "stages__length__temperature": 1.5, "stages__length__temperature_end": 0.5,
    "stages__quality__steps": 1, "sampling__max_new_tokens": 70,
    "grpo__old_logprobs": "recomputed",  # so that log-probs of the sampler and of the update are compared
}  # fmt: skip
SIZES = {"test": 1}


def test_each_step_samples_and_learns_at_its_temperature(finished: Path) -> None:
    """The update sees the log-probs that the sampler wrote down. The next stage is at its own temperature."""
    rows = read_jsonl(finished / "metrics.jsonl")
    found = [row.get("sampling/temperature") for row in rows]
    assert found == [1.5, pytest.approx(1.5 - 1 / 3), pytest.approx(1.5 - 2 / 3), 0.5, None]
    taught = [row for row in rows if "entropy" in row]  # a step whose rewards are all equal computes nothing
    assert len(taught) >= STEPS
    assert max(row["sampling/sampling_logp_difference/max"] for row in taught) < 1e-4
    assert rows[0]["entropy"] > 2 * taught[-2]["entropy"] > 0


def test_what_a_worker_samples_ahead_has_the_temperature_of_its_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate that moves nothing, stale weights are the same weights: the log-probs that came from the worker are the
    trainer's at the temperature of the step that learns from them, not of the step during which they were sampled."""
    still = SETTINGS | {"stages__length__learning_rate": 1e-12, "stages__quality__learning_rate": 1e-12}
    request = RemoteSource.ahead

    def sampled_ahead(source: RemoteSource, asked: GroupRequest) -> None:
        """Go on with the update once the worker is done."""
        request(source, asked)
        source._ahead[asked.step].batch.result.result(timeout=PATIENCE_S)

    monkeypatch.setattr(RemoteSource, "ahead", sampled_ahead)
    with process("--model", "tiny", log=tmp_path / "log") as (_, client):
        run = trained(data, tmp_path, "ahead", "--worker", str(client.base_url), **still)
    rows = read_jsonl(run / "metrics.jsonl")[:STEPS]
    assert [row["staleness/max"] for row in rows] == [0, 1, 1, 1]
    assert max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-3


def test_the_schedule_is_shown(finished: Path, data: Path, tmp_path: Path, call: Call) -> None:
    """In the dry run, in the report's tables of settings and of stages, and in the view's chart of the entropy."""
    shown = call(*arguments(data, tmp_path, "other", **SETTINGS), "--dry-run")
    done(shown, "from the first step to the last: temperature 1.5 to 0.5 (linear)")
    out, _ = done(call("report", finished, "--format", "md", "--output", tmp_path / "report"))
    found = Path(out.strip()).read_text()
    assert "| Temperature | [1.5 to 0.5 (linear), then 1.0](" in found
    assert found.count("1.5 to 0.5 (linear)") == 2
    run = Run(RunPaths(finished))
    while run.poll() and run.behind():
        pass
    chart = next(chart for chart in CHARTS if chart.title == "entropy, repeats")
    assert "sampling/temperature" in [curve.metric for curve in chart.curves(run)]


@pytest.mark.slow
def test_a_stopped_schedule_goes_on_bitwise(data: Path, finished: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of the stage: temperatures, rollouts and weights are those of the whole run."""
    assert_goes_on(arguments(data, tmp_path, "killed", **SETTINGS), 4, finished)


WEIGHTED = {
    "stages__included__steps": 5, "stages__included__rewards": "{length=1.0}",
    "stages__included__rewards_end": "{length=0.0, meteor=2.0}", "sampling__max_new_tokens": 70,
}  # fmt: skip


def test_weights_move(data: Path, tmp_path: Path) -> None:
    """Each rollout's reward is the sum by the weights of its step; the validations are by those of the end."""
    assert main(included(data, tmp_path, "moved", **WEIGHTED)) == 0
    run = tmp_path / "moved"
    rows = read_jsonl(run / "metrics.jsonl")
    found = [(row["rewards/length/weight"], row["rewards/meteor/weight"]) for row in rows]
    assert found == [(1.0, 0.0), (0.75, 0.5), (0.5, 1.0), (0.25, 1.5), (0.0, 2.0)]
    for (length, meteor), step in zip(found, range(1, 6), strict=True):
        for one in read_jsonl(run / f"completions/step-{step:06d}.jsonl"):
            total = length * one["rewards"]["length"] + meteor * one["rewards"]["meteor"]
            assert one["reward"] == pytest.approx(total, abs=1e-12)
    for row in rows[1::2]:
        assert row["validation/reward"] == pytest.approx(2 * row["validation/meteor"], abs=1e-6)
    view = Run(RunPaths(run))
    while view.poll() and view.behind():
        pass
    assert view.weights() == {"length": 0.0, "meteor": 2.0}


@pytest.mark.slow
def test_a_balance_goes_on_bitwise(data: Path, tmp_path: Path) -> None:
    """kill -9 between checkpoints: the running deviations are those of the whole run, and so are weights of rewards and
    of the model."""
    changes = {"stages__included__steps": 6, "grpo__reward_balance": "variance", "sampling__max_new_tokens": 70}
    assert main(included(data, tmp_path, "whole", **changes)) == 0
    rows = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
    found = [row["rewards/meteor/weight"] for row in rows]
    assert found[0] == 1.0
    assert len(set(found)) == 6
    folder = tmp_path / "whole" / "checkpoints" / "step-000006"
    assert "balance" in json.loads((folder / "state.json").read_text())
    (copied := tmp_path / "copied").mkdir()
    save_trained(load_policy(str(folder)), copied)
    assert (copied / "model.safetensors").is_file()
    assert not (copied / "state.json").exists()  # it belongs to the run, not to the model
    assert_goes_on(included(data, tmp_path / "other", "killed", **changes), 6, tmp_path / "whole")


def test_stages_learn_from_texts_too(data: Path, tmp_path: Path, call: Call) -> None:
    """First from the best rollouts, then from references, whose likelihood rises; killed in between it ends the same.
    Without references there is one error, with what needs none."""
    changes = {
        "stages__length__learn": "best", "stages__length__steps": 3, "stages__quality__learn": "references",
        "stages__quality__steps": 4, "stages__quality__beta": 0.0,
    }  # fmt: skip
    whole = trained(data, tmp_path / "runs", "whole", **changes)
    rows = read_jsonl(whole / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[3]["loss"]
    assert "sampling/sampling_logp_difference/max" in rows[0]
    assert "sampling/sampling_logp_difference/max" not in rows[3]
    assert not any("clip_ratio" in name for row in rows for name in row)
    for step, count in ((1, 1), (4, 1)):
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in read_jsonl(RunPaths(whole).completions(step)):
            groups.setdefault(row["prompt_id"], []).append(row)
        assert {sum(row["advantage"] == 1 for row in rows) for rows in groups.values()} <= {0, count}
    assert all(row["text"] in rows[0]["references"] for rows in groups.values() for row in rows)
    assert_goes_on(arguments(data, tmp_path / "other", "killed", **changes), 5, whole)
    (tmp_path / "bare").mkdir()
    for path in data.glob("*.parquet"):
        pl.read_parquet(path).select("prompt").write_parquet(tmp_path / "bare" / path.name)
    refused = arguments(tmp_path / "bare", tmp_path / "other", "bare", **changes)
    rewards = ["--set=stages.quality.rewards={length=1.0}"]
    assert_refused(call(*refused, *rewards), "stage quality learns from references", "stages.quality.learn=best")


def test_a_task_without_references_has_none_to_learn_from(tmp_path: Path, call: Call) -> None:
    """Whether its data lack them or it never has any."""
    refused = call("train", "--task=strict-json", f"--runs-dir={tmp_path}", "--set=stages.standard.learn=references")
    assert_refused(refused, "stage standard learns from references", "stages.standard.learn=best")
