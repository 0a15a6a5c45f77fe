"""What a vLLM server has to show before a worker offers it: a place for every weight that a trainer will send,
log-probs of prompts, and log-probs of the temperature that it samples at.

A server that lacks one of them would start, and fail or mislead the trainer later.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from smolsum.errors import MachineError
from smolsum.policy.sampling import Completion
from smolsum.rollout.protocol import SampleRequest, SamplingTerms
from smolsum.worker.engines.base import EngineError

COOL = 0.5
"""the temperature that is compared with temperature 1"""
LIKELIEST = 20
"""tokens that are compared; vLLM's default limit"""
SPREAD = 1e-3
"""mean square distance of log-probs from their mean, in nats², below which temperatures look alike"""
MIN_LOGPROB = -1000.0
"""what vLLM returns for a token that cannot be sampled is below"""
Score = Callable[[list[int], list[int]], Awaitable[list[float]]]
Sample = Callable[[SampleRequest, SamplingTerms], Awaitable[Completion]]


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the shape of each weight, as `smolsum_misplaced` of the plugin takes them."""
    return {name: list(array.shape) for name, array in arrays.items()}


def misfit(wrong: Sequence[str]) -> str:
    """Return what `smolsum_misplaced` of the plugin found, in one sentence."""
    return f"vLLM's model cannot take {len(wrong)} weights: {'; '.join(wrong[:2])}"


async def check_logprobs(score: Score, sample: Sample, prompt: Sequence[int], version: str, remedy: str) -> None:
    """Raise MachineError if the server does not score prompts, or returns the log-probs of another temperature than
    the one it samples at. `prompt` has at least two tokens."""
    try:
        await score([prompt[0]], list(prompt[1:]))
    except EngineError as error:
        raise MachineError(f"vLLM {version} does not score prompts: {error.message}", hint=remedy) from error
    terms = [SamplingTerms(temperature, 1, likeliest=LIKELIEST) for temperature in (1.0, COOL)]
    warm, cool = [(await sample(SampleRequest("proof", tuple(prompt), 0), each)).likeliest[0] for each in terms]
    sharper = slope(dict(warm), dict(cool))
    # the log-probs of two tokens differ by the difference of their logits over the temperature
    if sharper is not None and abs(sharper * COOL - 1) > (1 - COOL) / 2:
        raise MachineError(
            f"vLLM {version} returns log-probs of another temperature: at {COOL:g} they differ by {sharper:.2f} times"
            f" what they differ by at 1, not {1 / COOL:g} times",
            hint=remedy,
        )


def slope(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Return how many times further apart the second log-probs are than the first, over the tokens that both have, by
    least squares; None where the first are all about the same."""
    shared = [i for i in first if i in second and min(first[i], second[i]) > MIN_LOGPROB]
    if not shared:
        return None
    means = [sum(each[i] for i in shared) / len(shared) for each in (first, second)]
    spread = sum((first[i] - means[0]) ** 2 for i in shared)
    if spread < SPREAD * len(shared):
        return None
    return sum((first[i] - means[0]) * (second[i] - means[1]) for i in shared) / spread
