"""A split of the data as prompts for one model: training and evaluation encode, check and fingerprint it alike. Where
prompts ask for a length of their own, those of evaluations are drawn here, and training writes its prompts anew at each
step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from smolsum.config.sections import Config
from smolsum.config.targets import TARGET, Targets, curriculum_progress
from smolsum.errors import UsageError
from smolsum.files import digest
from smolsum.policy.load import Policy, encode_chat
from smolsum.rewards.meteor import ensure_meteor, wordnet_problem
from smolsum.tasks.base import Task
from smolsum.tasks.data import Example, Split
from smolsum.types import Prompt


def encode_prompts(policy: Policy, task: Task, split: Split, config: Config) -> tuple[tuple[Prompt, ...], int]:
    """Return the split's prompts in file order, and the number of those dropped for their length. Where prompts ask for
    a length, each asks for that which evaluations draw for it, except that those of the training split, which draw anew
    at every step, ask for the length that takes the most tokens to state. Raises UsageError if one is over
    `max_input_tokens` and may not be dropped, or if none is left."""
    targets, limit = task.targets.of(config), config.data.max_input_tokens
    widest = _widest(policy, task, split, config, targets) if targets and split.name == "train" else None
    every = []
    for example in split.examples:
        target = widest or (targets.evaluated(split.name, example.id) if targets else None)
        every.append(encode_prompt(policy, task, example, config, target))
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


def encode_prompt(policy: Policy, task: Task, example: Example, config: Config, target: int | None = None) -> Prompt:
    """Return an example as a prompt, which asks for a length of `target` if there is one."""
    request = ""
    if target is not None:
        example = replace(example, metadata={**example.metadata, TARGET: target})
    messages = task.prompts.messages(example, config)
    if target is not None:
        request = messages[-1]["content"].removeprefix(example.source)
    ids = tuple(encode_chat(policy, list(messages)))
    return Prompt(example.id, messages, ids, example.references, example.metadata, request)


def _widest(policy: Policy, task: Task, split: Split, config: Config, targets: Targets) -> int:
    """Return the target that takes the most tokens to state."""
    first = split.examples[0]
    return max(targets.trained, key=lambda n: (len(encode_prompt(policy, task, first, config, n).token_ids), n))


@dataclass(frozen=True)
class PromptWriter:
    """Writes the prompts of training anew, each with a length to ask for."""

    policy: Policy
    task: Task
    config: Config
    targets: Targets
    examples: Mapping[str, Example]
    """of the training split, by id"""

    def asking(self, prompt: Prompt, target: int) -> Prompt:
        """Return the prompt that asks for `target`."""
        return encode_prompt(self.policy, self.task, self.examples[prompt.id], self.config, target)

    def targets_at(self, stage: str, step: int, steps: int) -> Targets:
        """Return the targets that training draws from at a stage's step (from 0), of so many steps: all of them after
        the first stage."""
        first = stage == next(iter(self.config.stages))
        share: float = getattr(self.config.task, "target_curriculum", 0.0) if first else 0.0
        return self.targets.at(curriculum_progress(step, steps, share))

    def at_steps(self, stage: str, steps: int) -> Callable[[Prompt, int], Prompt]:
        """Return the function of a prompt and a step of the stage (from 0) to the prompt with the length that is drawn
        for it there. The draw follows from the run's seed, the stage, the step and the prompt's id alone."""
        seed, number = self.config.train.seed, list(self.config.stages).index(stage)

        def ask(prompt: Prompt, step: int) -> Prompt:
            return self.asking(prompt, self.targets_at(stage, step, steps).drawn(seed, number, step, prompt.id))

        return ask


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
