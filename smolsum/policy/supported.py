"""Whether smolsum can sample and train a model, tried on the model itself in a second.

Some architectures compute logits in their own way, or read their caches as if a batch held one prompt. Such a model
would fail late, or be sampled wrongly without an error. So each model is tried when it is loaded.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from smolsum.errors import UsageError
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.sampling import generate

PROMPTS, SAMPLES, TOKENS = ((3, 4, 5, 6, 7), (8,)), 2, 4
"""prompts of unequal length that are decoded together, the rollouts of each, and the tokens of a rollout"""
MAX_DIFFERENCE, MAX_DIFFERENCE_HALF = 0.01, 0.5
"""in nats, for float32 and for half precision: more than rounding, less than what a wrong mask does"""


def check_supported(model: nn.Module, name: str) -> None:
    """Raise UsageError for a model that fails, or whose log-probs of sampling in a batch are not those of scoring."""
    half = any(p.dtype in (mx.bfloat16, mx.float16) for _, p in tree_flatten(model.parameters()))
    try:
        if (difference := _difference(model)) <= (MAX_DIFFERENCE_HALF if half else MAX_DIFFERENCE):
            return
        reason = f"gives sampled tokens log-probs that differ by {difference:.2g} nats from those of scoring"
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        reason = f"does not work with smolsum: {(str(error) or type(error).__name__).splitlines()[0]}"
    hint = "choose a model of another architecture (qwen2, qwen3, llama, gemma, lfm2, …)"
    raise UsageError(f"the model {name} {reason}", hint=hint)


def _difference(model: nn.Module) -> float:
    """Return the largest difference in nats between the log-probs of sampling in a batch and those of scoring."""
    seeds = [[SAMPLES * p + g for g in range(SAMPLES)] for p in range(len(PROMPTS))]
    sampled = generate(model, PROMPTS, seeds, eos_ids=frozenset(), temperature=1.0, max_new_tokens=TOKENS)
    worst = 0.0
    for prompt, row in zip(PROMPTS, sampled, strict=True):
        completions = [one.token_ids for one in row]
        for shared in (True, False):
            logp, _ = group_logprobs(model, prompt, completions, shared_prefix=shared)
            worst = max(worst, float(np.abs(np.array(logp) - np.array([one.logprobs for one in row])).max()))
    return worst
