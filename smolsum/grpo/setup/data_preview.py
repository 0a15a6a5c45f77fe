"""What the data look like to a model, before a run: a rendered prompt, lengths in tokens, and a target that quality
pulls away from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config
from smolsum.config.targets import TOKENS
from smolsum.policy.load import Policy, is_here, load_policy
from smolsum.results.evaluate.prompt_encoding import encode_prompt
from smolsum.rewards import FACTS
from smolsum.tasks import TASKS
from smolsum.tasks.base import Task
from smolsum.tasks.data import Split
from smolsum.tasks.text_metrics import length_table

COLUMNS = ("mean", "p50", "p95", "max")
"""of the table of lengths"""


@dataclass(frozen=True)
class DataPreview:
    """The data of a task as a model's tokenizer sees them."""

    prompt: str
    """the first training prompt as text, with the marks of the chat template"""
    lengths: list[list[str]]
    """rows of split, what is measured (prompts with system prompt and template, references), and `COLUMNS` in tokens"""
    advice: str
    """that of `length_advice`"""


def preview(splits: Mapping[str, Split], config: Config) -> DataPreview | None:
    """Return what the data look like to the run's model, of which no weight is read; None for a model that is not on
    this machine. Raises UsageError for a model without a tokenizer, or a chat template that refuses the prompt."""
    if not is_here(config.model.path):
        return None
    policy, task = _tokenizing(config), TASKS[config.task.name]
    rows = []
    for name, split in splits.items():
        for what, lengths in (("prompts", _prompts(policy, task, split, config)), ("references", _own(policy, split))):
            if lengths:
                table = length_table(lengths)
                rows.append([name, what, *(f"{table[f'completions/{column}_length']:.0f}" for column in COLUMNS)])
    first = _encoded(policy, task, splits["train"], config, 1)[0]
    advice = length_advice(config, _own(policy, splits["train"]))
    return DataPreview(policy.tokenizer.decode(first), rows, advice)


def preview_advice(config: Config) -> str:
    """Return `length_advice` for the run's training data; empty for a model that is not on this machine."""
    if not hasattr(config.task, "target_tokens") or not is_here(config.model.path):
        return ""
    policy = _tokenizing(config)
    return length_advice(config, _own(policy, TASKS[config.task.name].prompts.load_preview(config, "train")))


def length_advice(config: Config, references: Sequence[int]) -> str:
    """Return a sentence where a stage compares with references whose mean length, of these lengths in tokens, is beyond
    the tolerance of the task's target; empty otherwise, and where prompts have targets of their own or in other units.
    """
    own = getattr(config.task, "targets", "") or getattr(config.task, "unit", TOKENS) != TOKENS
    target = None if own else getattr(config.task, "target_tokens", None)
    by_reference = {name for name, facts in FACTS.items() if facts.by_reference}
    pulling = [
        (stage, found)
        for stage in config.stages.values()
        if (found := by_reference & {name for name, weight in stage.trained_rewards.items() if weight})
    ]
    compared = [name for name in FACTS if any(name in found for _, found in pulling)]
    if target is None or not references or not compared:
        return ""
    mean = fmean(references)
    if abs(mean - target) <= getattr(config.task, "tolerance_tokens", 0):
        return ""
    way = "down" if mean < target else "up"
    held = all("length" in {one.measured for one in parse_constraints(stage.constraints)} for stage, _ in pulling)
    will = f"pulls the length {way}, and a constraint holds it" if held else f"will pull the length {way}"
    return f"references {mean:.0f} tokens, target {target}: quality ({', '.join(compared)}) {will}"


def _tokenizing(config: Config) -> Policy:
    model = config.model
    return load_policy(
        model.path, dtype=model.dtype, thinking=model.thinking, chat_template=model.chat_template,
        shapes_only=True, convert=False,
    )  # fmt: skip


def _prompts(policy: Policy, task: Task, split: Split, config: Config) -> list[int]:
    return [len(ids) for ids in _encoded(policy, task, split, config)]


def _encoded(
    policy: Policy, task: Task, split: Split, config: Config, most: int | None = None
) -> list[tuple[int, ...]]:
    """Return the token ids of the split's prompts, at most so many; each asks for the length, if any, that an
    evaluation would draw for it."""
    targets, found = task.targets.of(config), []
    for example in split.examples[:most]:
        target = targets.evaluated(split.name, example.id) if targets else None
        found.append(encode_prompt(policy, task, example, config, target).token_ids)
    return found


def _own(policy: Policy, split: Split) -> list[int]:
    texts = [text for example in split.examples for text in example.references]
    return [len(policy.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
