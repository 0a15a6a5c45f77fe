"""Fixed sequences whose log-probs tell whether two processes hold the same weights."""

from __future__ import annotations

from collections.abc import Sequence

from smolsum.policy.load import Policy
from smolsum.policy.logprobs import group_logprobs

LONGEST = 32
"""tokens that are scored of each sequence"""


def sequences(
    policy: Policy, prompts: Sequence[Sequence[int]], texts: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Prompts with the first tokens of a text each."""
    rows = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = policy.tokenizer.encode(text, add_special_tokens=False)[:LONGEST]
        rows.append((list(prompt), ids or list(prompt[-LONGEST:])))
    return rows


def scores(policy: Policy, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
    """Log-probs of each sequence's second part after its first, at temperature 1."""
    return [group_logprobs(policy.model, prompt, [ids])[0][0].tolist() for prompt, ids in rows]
