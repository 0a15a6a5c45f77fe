"""What a policy is, so that a trainer and a worker can see whether theirs is the same."""

from __future__ import annotations

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from smolsum.fingerprint import digest
from smolsum.policy.load import Policy


def identity(policy: Policy) -> dict[str, Any]:
    """`architecture` (the config's model_type), `vocab_size` (rows of the logits), `tokenizer` (its digest) and
    `dtype` of the weights."""
    text = policy.config.get("text_config", policy.config)
    return {
        "architecture": policy.config["model_type"],
        "vocab_size": text.get("vocab_size", policy.config.get("vocab_size")),
        "tokenizer": tokenizer_digest(policy.tokenizer),
        "dtype": policy.dtype,
    }


def tokenizer_digest(tokenizer: TokenizerWrapper) -> str:
    """Digest of the vocabulary, followed by that of the chat template."""
    return digest(tokenizer.get_vocab()) + digest(tokenizer.chat_template)
