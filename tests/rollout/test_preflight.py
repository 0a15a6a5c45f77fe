"""What must be equal at both ends, and the errors if it is not."""

from typing import Any

import pytest

from smolsum.errors import UsageError
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, Health
from smolsum.rollout.worker_client import ExpectedModel, WorkerError, check, check_probe

FACTS = {"architecture": "qwen2", "vocab_size": 50, "tokenizer": "abc", "dtype": "bfloat16"}
HEALTH: dict[str, Any] = FACTS | {
    "sampling": {name: values[0] for name, values in NEUTRAL_SAMPLING.items()},
    "max_model_len": 512,
    "state": "ready",
    "version": 0,
    "weights": "",
}
EXPECTED = ExpectedModel(FACTS, 500)


def test_same_policy_passes() -> None:
    """Further facts do not matter."""
    check("http://w", Health(**HEALTH | {"engine": "vllm"}), EXPECTED)
    check("http://w", Health(**HEALTH | {"sampling": {"top_k": -1}}), EXPECTED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "lfm2"}, "another architecture: lfm2 there, qwen2 here"),
        ({"vocab_size": 51}, "another vocab_size: 51 there, 50 here"),
        ({"tokenizer": "xyz"}, "another tokenizer: xyz there, abc here"),
        ({"dtype": "float16"}, "another dtype: float16 there, bfloat16 here"),
        ({"sampling": {"top_p": 0.9, "top_k": 0}}, r"changes the distribution .*\{'top_p': 0.9\} there"),
        ({"max_model_len": 499}, "takes 499 tokens .* up to 500 are needed"),
    ],
)
def test_difference_is_named_with_both_values(change: dict[str, Any], words: str) -> None:
    """And with a hint."""
    with pytest.raises(UsageError, match=words) as caught:
        check("http://w", Health(**HEALTH | change), EXPECTED)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("off", "dtype", "passes"),
    [
        (9e-4, "float32", True),
        (2e-3, "float32", False),
        (0.04, "bfloat16", True),
        (0.06, "bfloat16", False),
        (float("nan"), "bfloat16", False),
    ],
)
def test_logprobs_prove_the_weights(off: float, dtype: str, passes: bool) -> None:
    """Up to the tolerance of the type."""
    ours = [[-1.0, -2.0], [-3.0]]
    theirs = [[value + off for value in row] for row in ours]
    if passes:
        check_probe("http://w", theirs, ours, dtype)
    else:
        with pytest.raises(WorkerError, match="does not sample from the trainer's weights"):
            check_probe("http://w", theirs, ours, dtype)
