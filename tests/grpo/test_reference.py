"""The reference of the KL term in a run of several stages: the model of the stage's start, or of the run's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training import arguments, assert_goes_on, events, trained

from smolsum.files import read_jsonl
from smolsum.grpo.python_api import make_config
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import load_trained
from smolsum.results.evaluate.prompt_encoding import encode_prompts
from smolsum.tasks import TASKS

# isort: split
import mlx.core as mx

SETTINGS = {
    "stages__length__steps": 2, "stages__quality__steps": 2, "train__validate_every": 0, "grpo__beta": 0.5,
    "optimizer__learning_rate": 2e-3, "grpo__reference": "start",
}  # fmt: skip
LORA = {"lora__rank": 4, "lora__scale": 4.0}


SIZES = {"test": 2}


@pytest.fixture(
    scope="module", params=[pytest.param({}, id="whole"), pytest.param(LORA, id="adapter", marks=pytest.mark.slow)]
)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of a run that is held to the model that it started from, and trains all weights or an adapter."""
    return SETTINGS | dict(request.param)


@pytest.fixture(scope="module")
def finished(settings: dict[str, Any], data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a run of two stages."""
    return trained(data, tmp_path_factory.mktemp("start"), "whole", **settings)


def kl_by_hand(run: Path, policy: Policy, reference: Policy, step: int) -> float:
    """The mean over tokens of exp(d) - d - 1 with d = log-prob of the reference minus that of the policy, for the
    rollouts of a step, each prompt repeated for each of its completions."""
    config = make_config(config_file=run / "config.toml")
    task = TASKS[config.task.name]
    prompts, _ = encode_prompts(policy, task, task.prompts.load(config, "train"), config)
    ids = {prompt.id: prompt.token_ids for prompt in prompts}
    rows = read_jsonl(run / "completions" / f"step-{step:06d}.jsonl")
    flat = {
        row["prompt_id"] for row in rows if len({r["reward"] for r in rows if r["prompt_id"] == row["prompt_id"]}) == 1
    }
    values: list[float] = []
    for row in rows:
        if row["prompt_id"] not in flat:  # a group whose rewards are all equal has no KL term
            pair = [
                group_logprobs(p.model, ids[row["prompt_id"]], [row["token_ids"]], shared_prefix=False)[0]
                for p in (policy, reference)
            ]
            d = np.array(pair[1], dtype=np.float64)[0] - np.array(pair[0], dtype=np.float64)[0]
            values += (np.exp(d) - d - 1).tolist()
    return float(np.mean(values))


def test_the_second_stage_is_held_to_the_model_of_the_runs_start(finished: Path) -> None:
    """Its first KL is that between the end of the first stage and the untrained model, worked out from the files."""
    adapted = (finished / "checkpoints" / "step-000002" / "adapters.safetensors").exists()
    config = make_config(config_file=finished / "config.toml")
    untrained = load_policy("builtin:tiny")
    policy = load_policy("builtin:tiny", lora=config.lora if adapted else None)
    load_trained(policy, finished / "checkpoints" / "step-000002")
    rows = read_jsonl(finished / "metrics.jsonl")
    assert [row["stage"] for row in rows] == ["length", "length", "quality", "quality"]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    expected = kl_by_hand(finished, policy, untrained, 3)
    assert expected > 1e-5
    assert rows[2]["kl"] == pytest.approx(expected, rel=1e-3)
    mx.clear_cache()


def test_the_first_stage_is_shared_with_runs_of_the_other_reference(
    finished: Path, settings: dict[str, Any], data: Path
) -> None:
    """And only that one: held to the stage's start, the second begins with a KL of 0."""
    other = settings | {"grpo__reference": "stage", "stages__quality__steps": 1}
    run = trained(data, finished.parent, "stage", **other)
    rows = read_jsonl(run / "metrics.jsonl")
    assert "stage_reused" in events(run)
    assert [row["stage"] for row in rows] == ["quality"]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_a_run_killed_in_its_second_stage_ends_as_the_whole_one(
    finished: Path, settings: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    """Bit for bit: the reference is loaded again, not the model that the run goes on from."""
    assert_goes_on(arguments(data, tmp_path, "killed", **settings), 4, finished)
