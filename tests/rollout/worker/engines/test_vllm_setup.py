"""The vLLM of a Python, and the flags of vLLM that a user adds behind `--`."""

import sys

import pytest
from support.refusals import refuses

from smolsum.errors import MachineError, UsageError
from smolsum.rollout.worker.engines import vllm_setup
from smolsum.rollout.worker.engines.vllm_setup import (
    METAL_SHARE,
    NONE_ADDED,
    AddedFlags,
    flags,
    how_to_install,
    installed,
    is_too_old,
)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--model", "x"], ["--model", "before the --"]),
        (["--max_model_len=9"], ["--max-model-len", "before the --"]),
        (["--max-model", "9"], ["--max-model"]),
        (["--swap-space", "4", "--port", "1"], ["--port", "--host and --port of serve-worker"]),
        (["-tp", "2"], ["--tensor-parallel-size", "CUDA_VISIBLE_DEVICES"]),
        (["--no-enable-lora"], ["--enable-lora", "--lora-rank"]),
        (["--logprobs-mode", "raw_logprobs"], ["--logprobs-mode", "leave it out"]),
        (["--config", "vllm.yaml"], ["--config", "each flag"]),
        (["-q", "awq"], ["--quantization", "--engine mlx"]),
        (["tiny"], ["'tiny'", "-- --gpu-memory-utilization"]),
        (["--max-num-seqs", "0"], ["--max-num-seqs"]),
        (["--max-num-seqs", "many"], ["--max-num-seqs"]),
        (["--max-num-seqs"], ["--max-num-seqs"]),
    ],
)
def test_flags_that_the_worker_sets_are_refused_by_name(words: list[str], named: list[str]) -> None:
    """In any spelling that vLLM takes: with underscores, by a beginning, short, or turned round."""
    with refuses(*named):
        AddedFlags(tuple(words))


def test_added_flags_come_last() -> None:
    """So that vLLM takes the user's number of rollouts; any flag that smolsum does not set is passed on."""
    words = ("--max-num-seqs", "8", "--gpu-memory-utilization=0.5", "--no-async-scheduling", "--rope-theta", "-1")
    added = AddedFlags(words)
    own = flags(max_model_len=512, max_running=added.max_running, lora_rank=0, cpu=False, stateful=False)
    assert added.after(own) == [*own, *words]
    assert added.max_running == int(own[own.index("--max-num-seqs") + 1]) == 8
    assert NONE_ADDED.after(own) == own


def test_flags_that_a_cpu_needs_are_refused_there_alone() -> None:
    for words in (("--max-num-batched-tokens", "64"), ("--enable-chunked-prefill",), ("--enable-prefix-caching",)):
        settings = {"max_model_len": 512, "max_running": 1, "lora_rank": 0, "stateful": True}
        with refuses(words[0], "leave it out", error=UsageError):
            AddedFlags(words).after(flags(**settings, cpu=True))
        assert AddedFlags(words).after(flags(**settings, cpu=False))[-len(words) :] == list(words)


@pytest.mark.parametrize(
    ("variable", "words", "share"),
    [
        (None, (), METAL_SHARE), ("auto", (), METAL_SHARE), ("0.3", (), 0.3),
        ("0.3", ("--gpu-memory-utilization", "0.6"), 0.3), ("auto", ("--gpu-memory-utilization=0.6",), 0.6),
        ("auto", ("--gpu_memory_utilization", "0.6", "--gpu-memory-utilization", "0.5"), 0.5), ("7", (), 1.0),
    ],
)  # fmt: skip
def test_share_of_metals_memory(variable: str | None, words: tuple[str, ...], share: float) -> None:
    """As vllm-metal takes it: its variable if that is a number, otherwise vLLM's last flag."""
    assert AddedFlags(words).metal_share({"VLLM_METAL_MEMORY_FRACTION": variable} if variable else {}) == share


def test_python_without_vllm_is_one_error() -> None:
    for python in (sys.executable, "/nowhere/python", "/bin/true"):
        with pytest.raises(MachineError) as error:
            installed(python)
        assert "--vllm-python" in str(error.value.hint)


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("0.1.0", True), ("0.2.0", True), ("0.3.0.dev20260822182524", True), ("0.28.0", True),
        ("0.28.0.dev20260901094532", True), ("0.28.0.dev20260906000000", False), ("0.29.0", False),
        ("0.30.0.dev20260925203833", False), ("1.0", False), ("1.0rc1", False), ("unknown", False),
    ],
)  # fmt: skip
def test_versions_of_vllm_metal(version: str, old: bool) -> None:
    """By the release, or by the day of a development build, which has the number of the release before it."""
    assert is_too_old(version) == old


def test_advice_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no vLLM for a Mac on PyPI."""
    monkeypatch.setattr(vllm_setup.sys, "platform", "darwin")
    for named in ("install.sh", "--vllm-python ~/.venv-vllm-metal/bin/python", "--engine mlx"):
        assert named in how_to_install()
    with refuses("install.sh", "macOS 15", error=MachineError) as caught:
        installed("/nowhere/python")
    assert "pip install vllm" not in str(caught.value.hint)
    monkeypatch.setattr(vllm_setup.sys, "platform", "linux")
    assert "pip install vllm" in how_to_install()
