"""What the policy is told before a post."""

from __future__ import annotations

SUMMARISE = "Summarise the post. Keep the key points and who did what."
VARIANTS = {
    "plain": SUMMARISE,
    "50-words": f"{SUMMARISE} Use exactly 50 words.",
    "64-tokens": f"{SUMMARISE} Use exactly 64 tokens.",
}
"""system prompts by name; training states no length (the study's did not), zero-shot baselines may"""
