"""The engine `vllm` with vllm-metal, by a server that is built like it: versions, the proof at its start, pushes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.metal_server import python_of
from support.models import write
from support.refusals import refuses
from support.serving import face, refused

from smolsum.errors import MachineError
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import served_arrays, set_served
from smolsum.rollout.worker.engines import vllm
from smolsum.rollout.worker.engines.vllm import VllmEngine, slope
from smolsum.rollout.worker.engines.vllm_setup import NONE_ADDED, AddedFlags
from smolsum.weights import delta


def engine(model: Path, folder: Path, *, added: AddedFlags = NONE_ADDED, **python: Any) -> VllmEngine:
    """An engine on a stand-in of vllm-metal."""
    return VllmEngine(
        str(model), dtype="float32", max_model_len=None, python=python_of(folder, **python), folder=folder, lora_rank=0,
        added=added,
    )  # fmt: skip


@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
def test_pushes_and_log_probs_of_any_temperature(
    tmp_path: Path, short_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights are served and read back, rollouts at 0.7 have the policy's log-probs at 0.7, vLLM's own flags
    arrive, and the trainer is told what share of Metal's memory they leave it."""
    model = write(tmp_path / "m", family)
    added = AddedFlags(("--gpu-memory-utilization", "0.4", "--max-num-seqs=4"))
    policy = load_policy(str(model), dtype="float32")
    old = served_arrays(policy)
    rng = np.random.default_rng(0)
    new = {name: a + 0.1 * rng.standard_normal(a.shape, np.float32) for name, a in old.items()}
    with face(one := engine(model, short_path, added=added)) as client:
        assert one.version == "0.30.0+cpu with vllm-metal 0.30.0"
        assert (one.max_running, one.restarts) == (4, 0)
        assert client.get("/health").json()["reserved_bytes"] is None  # Linux says what is free
        monkeypatch.setattr(vllm, "metal_working_set", lambda: 10_000)
        assert client.get("/health").json()["reserved_bytes"] == 4_000
        answer = client.put("/v1/weights", content=delta.encode(old, new, base_version=0, version=1))
        assert answer.is_success, answer.text
        set_served(policy, new)
        body = {"version": 1, "temperature": 0.7, "max_new_tokens": 5, "requests": [
            {"id": str(n), "prompt_ids": [5, 6], "seed": n} for n in range(3)]}  # fmt: skip
        *lines, _ = map(json.loads, client.post("/v1/rollouts", json=body).text.splitlines())
        for line in lines:
            mine = group_logprobs(policy.model, [5, 6], [line["token_ids"]], temperature=0.7)[0][0].tolist()
            assert line["logprobs"] == pytest.approx(mine, abs=1e-4)
        scored = {"sequences": [{"prompt_ids": [5], "completion_ids": [6, 7]}]}
        (score,) = client.post("/v1/logprobs", json=scored).json()["logprobs"]
        assert score == pytest.approx(group_logprobs(policy.model, [5], [[6, 7]])[0][0].tolist(), abs=1e-4)
    arguments = json.loads((short_path / "argv.json").read_text())
    assert arguments[-3:] == ["--gpu-memory-utilization", "0.4", "--max-num-seqs=4"]


def test_a_push_without_a_place_changes_nothing(tmp_path: Path, short_path: Path, monkeypatch: Any) -> None:
    """The trainer gets the name of the weight, and the server goes on with what it served, without a restart."""
    model = write(tmp_path / "m", "qwen2")
    old = served_arrays(load_policy(str(model), dtype="float32"))
    monkeypatch.setattr(vllm, "check_served", lambda *_: None)  # so that only the server can refuse
    with face(one := engine(model, short_path)) as client:
        strange = {name.replace("layers.1.self_attn", "layers.7.self_attn"): a for name, a in old.items()}
        answer = client.put("/v1/weights", content=delta.anchor(strange, version=1))
        assert refused(answer, 503, "weights: model.layers.7.self_attn.")
        assert client.get("/health").json()["version"] == 0
        assert client.put("/v1/weights", content=delta.anchor(old, version=1)).is_success
        assert one.restarts == 0


@pytest.mark.parametrize(
    ("python", "named"),
    [
        ({"metal": "0.28.0"}, ["vllm-metal 0.28.0", "0.29.0", "install.sh"]),
        ({"fault": "prompt"}, ["0.30.0", "does not score prompts", "install.sh"]),
        ({"fault": "sampler"}, ["at 0.5", "1.00 times", "2 times", "--engine mlx"]),
        ({"fault": "hidden"}, ["cannot take", "layers.0.self_attn", "--engine mlx"]),
    ],
    ids=["version", "prompt log-probs", "temperature", "weights"],
)
def test_a_server_that_lacks_something_is_refused_at_its_start(
    tmp_path: Path, short_path: Path, python: dict[str, str], named: list[str]
) -> None:
    one = engine(write(tmp_path / "m", "qwen2"), short_path, **python)

    async def run() -> None:
        try:
            await one.start()
        finally:
            await one.stop()

    with refuses(*named, error=MachineError):
        asyncio.run(run())


def test_log_probs_are_told_apart_by_their_distances() -> None:
    """Whatever each distribution is normalised by; not where they are all about the same, or none is shared."""
    first = {1: -1.0, 2: -2.0, 3: -4.0, 4: -9999.0}
    assert slope(first, {i: 2 * value - 3 for i, value in first.items()}) == pytest.approx(2)
    assert slope(first, {i: value + 7 for i, value in first.items()}) == pytest.approx(1)
    assert slope(first, {9: -1.0}) is None
    assert slope({1: -3.0, 2: -3.001}, {1: -3.0, 2: -3.002}) is None
