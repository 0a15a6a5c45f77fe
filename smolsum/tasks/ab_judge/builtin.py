"""The preset of the built-in judge: learns on two CPU cores within minutes."""

from __future__ import annotations

from typing import Any

BUILTIN_JUDGE: dict[str, Any] = {
    "model": {"path": "builtin:judge"},
    # Short texts: the references of the posts.
    "data": {"path": "builtin:tldr-mini", "prompt_column": "completion", "completion_column": "prompt"},
    "task": {
        "system_prompt": "Which sample is the original? Notes of {notes_tokens} tokens, then A or B.",
        "notes_tokens": 32,
        "notes_width": 8.0,
    },
    "sampling": {"rollouts": 4, "max_new_tokens": 80},
    "grpo": {"beta": 0.005, "mask_truncated": False},
    # A judgement is one bit: many pairs tell more than many judgements of one.
    "train": {"prompts_per_step": 16, "validate_every": 25, "validation_prompts": 50, "checkpoint_every": 25},
    "optimizer": {"learning_rate": 2e-4, "beta2": 0.98, "schedule": "constant", "warmup_steps": 5},
    "stage_defaults": {"judge": {"steps": 50}},
}
