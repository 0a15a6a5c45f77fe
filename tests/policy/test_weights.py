"""Weights out of a policy and into another, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support.models import write

from smolsum.config.sections import LoraConfig
from smolsum.errors import UsageError
from smolsum.policy.load import load_policy
from smolsum.policy.weights import check_served, identity, served_arrays, set_served, with_adapters
from smolsum.weights.delta import checksum


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
        with pytest.raises(UsageError, match=f"more|{name}"):
            check_served(policy, wrong)


def test_identity(tmp_path: Path) -> None:
    """What two ends compare."""
    facts = identity(load_policy(str(write(tmp_path / "m", "gemma3"))))
    assert facts["architecture"] == "gemma3"
    assert facts["vocab_size"] == 64
    assert facts["dtype"] == "float32"
    assert len(facts["tokenizer"]) == 64
