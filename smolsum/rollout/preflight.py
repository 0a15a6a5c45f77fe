"""Whether a worker serves what the trainer trains: said before anything is trained, with both values and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.errors import UsageError
from smolsum.rollout.http import WorkerError

FACTS = ("architecture", "vocab_size", "tokenizer", "dtype")
NEUTRAL = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""sampling parameters with the values that leave the distribution as it is"""
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""mean absolute difference of log-probs, in nats, that rounding of the type explains"""


@dataclass(frozen=True)
class Expected:
    """What the trainer has."""

    facts: Mapping[str, Any]
    """as `smolsum.policy.identity.identity` tells"""
    longest: int
    """tokens of the longest prompt and a completion together"""

    @property
    def dtype(self) -> str:
        """Type of the weights."""
        return str(self.facts["dtype"])


def check(url: str, health: Mapping[str, Any], expected: Expected) -> None:
    """UsageError where the worker's /health shows another policy, or sampling that is not neutral."""
    for name in FACTS:
        if health.get(name) != expected.facts[name]:
            remedy = f"--dtype {expected.dtype}" if name == "dtype" else "--model with the model that is trained"
            raise UsageError(
                f"{url} serves another {name}: {health.get(name)} there, {expected.facts[name]} here",
                hint=f"start it with smolsum serve-worker {remedy}, and the same version of smolsum",
            )
    sampling: Mapping[str, Any] = health.get("sampling") or {}
    if cut := {name: value for name, value in sampling.items() if value not in NEUTRAL.get(name, (value,))}:
        raise UsageError(
            f"{url} cuts or bends the distribution that it samples from: {cut} there, nothing here",
            hint="serve the model without a generation_config.json that cuts or penalises",
        )
    if (most := health.get("max_model_len")) is not None and most < expected.longest:
        raise UsageError(
            f"{url} takes {most} tokens of prompt and completion together, and up to {expected.longest} are needed",
            hint=f"smolsum serve-worker --max-model-len {expected.longest}",
        )


def check_probe(url: str, found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], dtype: str) -> None:
    """WorkerError where the worker's log-probs of fixed sequences are not those of the trainer."""
    pairs = [(a, b) for row, other in zip(found, expected, strict=True) for a, b in zip(row, other, strict=True)]
    off = sum(abs(a - b) for a, b in pairs) / len(pairs)
    if not off <= TOLERANCE[dtype]:
        raise WorkerError(
            f"{url} does not sample from the trainer's weights: its log-probs of fixed sequences are {off:.3g} off in "
            f"the mean, over {TOLERANCE[dtype]:g}; the first is {pairs[0][0]:.4f} there, {pairs[0][1]:.4f} here",
            hint="serve the model that is trained, in the same type, and the same version of smolsum",
        )
