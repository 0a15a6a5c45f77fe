"""TODO."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.policy.load import Policy, encode_chat
from smolsum.rewards.meteor import ensure_meteor, wordnet_problem
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.types import Prompt

SPLITS = ("train", "validation", "test")


def encode_prompts(policy: Policy, task: Task, split: Split, config: Config) -> tuple[tuple[Prompt, ...], int]:
    """The split's prompts in file order, and how many were dropped for their length. UsageError where one is over
    `max_input_tokens` and none may be dropped, or none is left."""
    every, limit = [], config.data.max_input_tokens
    for example in split.examples:
        messages = task.messages(example, config)
        ids = tuple(encode_chat(policy, list(messages)))
        every.append(Prompt(example.id, messages, ids, example.references, example.metadata))
    prompts = [prompt for prompt in every if len(prompt.token_ids) <= limit]
    if len(prompts) < len(every) and config.data.long_prompts == "error":
        longest = max(every, key=lambda prompt: len(prompt.token_ids))
        raise UsageError(
            f"{len(every) - len(prompts)} of {len(every)} prompts of the {split.name} split are over max_input_tokens ="
            f" {limit}; the longest, {longest.id}, has {len(longest.token_ids)} tokens",
            hint=f"--set data.max_input_tokens={len(longest.token_ids)}, or --set data.long_prompts=drop",
        )
    if not prompts:
        raise UsageError(
            f"no prompt of the {split.name} split has {limit} tokens or fewer",
            hint="--set data.max_input_tokens=N",
        )
    return tuple(prompts), len(split.examples) - len(prompts)


def matching(task: Task, config: Config, warn: Callable[[str], None]) -> str:
    """How METEOR matches words on this machine, with a warning where it is worse than it could be; empty for a task
    that does not offer it."""
    if "meteor" not in task.signals:
        return ""
    matcher = ensure_meteor(config.rewards.require_wordnet)
    if problem := wordnet_problem():
        warn(f"{problem.message}; to mend it: {problem.hint}")
    return matcher


def split_fingerprints(split: Split, prompts: Sequence[Prompt]) -> dict[str, str]:
    """What a split and its prompts are known by."""
    tokens = digest([prompt.token_ids for prompt in prompts])
    return {"split": split.name, "fingerprint": split.fingerprint, "prompts": tokens}
