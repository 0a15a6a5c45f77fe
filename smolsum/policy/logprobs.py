"""Token log-probs of a prompt's G completions, with one pass over the prompt.

Axes: G rollouts of a prompt, T completion tokens, D width of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from smolsum.policy.head import CHUNK_LOGITS, token_logprobs, token_logprobs_and_entropy
from smolsum.policy.prefix import branch_hidden, can_share_prefix, prefix_state, repeated_hidden


def group_logprobs(
    model: nn.Module,
    prompt_ids: Sequence[int],
    completions_ids: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    shared_prefix: bool = True,
    chunk_logits: int | None = CHUNK_LOGITS,
) -> tuple[mx.array, mx.array]:
    """Log-probs (G, T) float32 of the completions' tokens at `temperature`, and their mask (G, T) float32.

    Right-padded with 0, differentiable. The prompt goes through the model once; what its layers remember is shared by
    the G completions. `shared_prefix=False`, or a model that cannot share (`can_share_prefix`), repeats it G times.
    Same values either way. At most `chunk_logits` logits are held at once.
    """
    hidden, completion_GT, mask_GT = group_hidden(model, prompt_ids, completions_ids, shared_prefix=shared_prefix)
    logp = token_logprobs(model, _rows(hidden), completion_GT.reshape(-1), temperature, chunk_logits=chunk_logits)
    return logp.reshape(mask_GT.shape) * mask_GT, mask_GT


def group_hidden(
    model: nn.Module, prompt_ids: Sequence[int], completions_ids: Sequence[Sequence[int]], *, shared_prefix: bool = True
) -> tuple[mx.array, mx.array, mx.array]:
    """The trunk's outputs (G, T, D) from which the completions' tokens are predicted, the tokens (G, T), their mask."""
    completion_GT, mask_GT = padded(completions_ids)
    if shared_prefix and can_share_prefix(model):
        hidden = branch_hidden(model, prefix_state(model, prompt_ids), prompt_ids[-1], completion_GT)
    else:
        hidden = repeated_hidden(model, prompt_ids, completion_GT)
    return hidden, completion_GT, mask_GT


def padded(completions_ids: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
    """The completions' tokens (G, T) int32, right-padded with 0, and their mask (G, T) float32."""
    longest = max(len(ids) for ids in completions_ids)
    completion_GT = mx.array([[*ids, *[0] * (longest - len(ids))] for ids in completions_ids])
    mask_GT = mx.array([[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in completions_ids])
    return completion_GT, mask_GT


def scored(
    model: nn.Module,
    hidden_GTD: mx.array,
    completion_GT: mx.array,
    mask_GT: mx.array,
    temperature: float,
    chunk_logits: int | None,
) -> tuple[mx.array, mx.array]:
    """Log-probs and entropies (G, T) of the tokens given the trunk's outputs, 0 where the mask is."""
    tokens = completion_GT.reshape(-1)
    both = token_logprobs_and_entropy(model, _rows(hidden_GTD), tokens, temperature, chunk_logits=chunk_logits)
    logp, entropy = (x.reshape(mask_GT.shape) * mask_GT for x in both)
    return logp, entropy


def _rows(hidden_GTD: mx.array) -> mx.array:
    return hidden_GTD.reshape(-1, hidden_GTD.shape[-1])
