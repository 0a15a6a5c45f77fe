"""Weights out of a policy and into another, bit for bit, and into transformers: the same logits as in MLX."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.models import FAMILIES, write
from support.refusals import refuses

from smolsum.config.sections import LoraConfig
from smolsum.policy.load import load_policy
from smolsum.policy.weights import (
    check_served,
    identity,
    load_trained,
    save_policy,
    save_trained,
    served_arrays,
    set_served,
    with_adapters,
)
from smolsum.weights.delta import checksum

# isort: split
import mlx.core as mx


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
def test_round_trip(tmp_path: Path, family: str, dtype: str) -> None:
    """Another model of the same shape becomes the first; names and shapes are those of the files."""
    one, other = (load_policy(str(write(tmp_path / str(s), family, seed=s)), dtype=dtype) for s in (1, 2))  # type: ignore[arg-type]
    sent = served_arrays(one)
    with safe_open(str(tmp_path / "1" / "model.safetensors"), "np") as file:
        assert {name: file.get_tensor(name).shape for name in file.keys()} == {n: a.shape for n, a in sent.items()}  # noqa: SIM118
        if dtype == "float32":
            assert all(np.array_equal(file.get_tensor(name), a) for name, a in sent.items())
    assert checksum(served_arrays(other)) != checksum(sent)
    set_served(other, sent)
    assert checksum(served_arrays(other)) == checksum(sent)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"gpt_bigcode"}))
def test_a_checkpoint_comes_back(tmp_path: Path, family: str) -> None:
    """Into the policy that wrote it, as a resumed run does, and as a model of its own; bit for bit."""
    one, other = (load_policy(str(write(tmp_path / str(s), family, seed=s))) for s in (1, 2))
    (folder := tmp_path / "checkpoint").mkdir()
    save_trained(one, folder)
    expected = checksum(served_arrays(one))
    assert checksum(served_arrays(other)) != expected
    for _ in range(2):
        load_trained(other, folder)
        assert checksum(served_arrays(other)) == expected
    assert checksum(served_arrays(load_policy(str(folder)))) == expected


def test_adapters(tmp_path: Path) -> None:
    """Of a policy with adapters only these travel, to a policy that had none."""
    folder, lora = str(write(tmp_path / "m", "qwen2")), LoraConfig(rank=2)
    trained, plain = load_policy(folder, lora=lora, seed=5), load_policy(folder)
    sent = served_arrays(trained)
    assert all(".lora_" in name for name in sent)
    worker = with_adapters(plain, lora)
    set_served(worker, sent)
    assert checksum(served_arrays(worker)) == checksum(sent)


def test_another_model_is_refused(tmp_path: Path) -> None:
    """Other names, shapes or sizes of values are named."""
    policy = load_policy(str(write(tmp_path / "m", "qwen2")))
    sent = served_arrays(policy)
    name = next(iter(sent))
    for wrong in ({**sent, "more": sent[name]}, {**sent, name: sent[name][:1]}, {**sent, name: np.float16(sent[name])}):
        with refuses("more" if "more" in wrong else name):
            check_served(policy, wrong)


def test_identity(tmp_path: Path) -> None:
    """What two ends compare."""
    facts = identity(load_policy(str(write(tmp_path / "m", "gemma3"))))
    assert (facts["architecture"], facts["vocab_size"], facts["dtype"]) == ("gemma3", 64, "float32")
    assert len(facts["tokenizer"]) == 64


TOKENS = [[5, 9, 33, 4, 60, 12, 8, 41, 3, 22, 17, 2]]
THEIRS = """
import sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
AutoTokenizer.from_pretrained(sys.argv[1])
with torch.no_grad():
    np.save(sys.argv[2], model(torch.tensor(%s)).logits.numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen2", "qwen3", "llama", "lfm2", "builtin:tiny", "builtin:tiny-lfm"])
def test_transformers_gives_the_same_logits(tmp_path: Path, model: str) -> None:
    """float32 logits within 1e-3 of MLX's."""
    pytest.importorskip("torch", reason="uv sync --group bench")
    policy = load_policy(model if ":" in model else str(write(tmp_path / "start", model)))
    (tmp_path / "saved").mkdir()
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    # torch brings its own BLAS: the two libraries do not share a process
    command = [sys.executable, "-c", THEIRS % TOKENS, str(tmp_path / "saved"), str(tmp_path / "logits.npy")]
    subprocess.run(command, check=True, capture_output=True)
    ours = np.array(policy.model(mx.array(TOKENS)).astype(mx.float32))
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours, atol=1e-3)
