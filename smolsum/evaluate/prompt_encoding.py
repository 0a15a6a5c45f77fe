"""A split of the data as prompts for one model: training and evaluation encode, check and fingerprint it alike."""

from collections.abc import Callable, Sequence

from smolsum.config.sections import Config
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.policy.load import Policy, encode_chat
from smolsum.rewards.meteor import ensure_meteor, wordnet_problem
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.types import Prompt


def encode_prompts(policy: Policy, task: Task, split: Split, config: Config) -> tuple[tuple[Prompt, ...], int]:
    """Return the split's prompts in file order, and the number of those dropped for their length. Raises UsageError if
    one is over `max_input_tokens` and may not be dropped, or if none is left."""
    every, limit = [], config.data.max_input_tokens
    for example in split.examples:
        messages = task.prompts.messages(example, config)
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
            f"no prompt of the {split.name} split has {limit} tokens or fewer", hint="--set data.max_input_tokens=N"
        )
    return tuple(prompts), len(split.examples) - len(prompts)


def meteor_matching(task: Task, config: Config, warn: Callable[[str], None]) -> str:
    """Return how METEOR matches words here, and warn if WordNet is missing; empty for a task without METEOR."""
    if "meteor" not in task.rewards.signals:
        return ""
    matcher = ensure_meteor(config.rewards.require_wordnet)
    if problem := wordnet_problem():
        warn(f"{problem.message}; to fix it: {problem.hint}")
    return matcher


def split_fingerprints(split: Split, prompts: Sequence[Prompt]) -> dict[str, str]:
    """Return the split's name, and the fingerprints of its content and of its encoded prompts."""
    tokens = digest([prompt.token_ids for prompt in prompts])
    return {"split": split.name, "fingerprint": split.fingerprint, "prompts": tokens}
