"""What a summary has to be: one length for all, or a length that each prompt states."""

import re
from dataclasses import dataclass, replace
from typing import Any, cast

from smolsum.config.fields import Count, NonNegative, PositiveCount, Share
from smolsum.config.sections import Config, TaskConfig
from smolsum.config.targets import TARGET, TOKENS, Targets, Unit, make_targets, parse_targets
from smolsum.errors import UsageError
from smolsum.rewards.meteor import wordnet_problem
from smolsum.tasks.base import Messages, chat, with_instruction
from smolsum.tasks.data import Example

PLAIN = "plain"
"""the baseline's prompt where each prompt states its own length"""
TOKENS_OF = {"tokens": 1.0, "words": 2.0, "sentences": 40.0}
"""tokens that a unit takes at most in common texts, for the check of the token limit"""


@dataclass(frozen=True)
class TldrConfig(TaskConfig):
    """What a summary has to be."""

    system_prompt: str = "Summarise the post. Keep the key points and who did what."
    """System message of every prompt. It states no length: length is learnt from the reward."""
    target_tokens: PositiveCount = 64
    """Length of a perfect completion in tokens (or in `unit`), without the end-of-sequence token, where `targets` is
    empty."""
    tolerance_tokens: Count = 5
    """Distance from the target that still counts as on target. Where nothing sets it, it follows the target: 5 for 64,
    in proportion, at least 1."""
    tolerance_share: NonNegative = 0.0
    """That distance as a share of the target, at least 1; 0: `tolerance_tokens`. With `targets` it is 5/64 where
    nothing sets a tolerance."""
    targets: str = ""
    """Lengths that prompts ask for, each its own: a range (`16-128`), a list (`16,32,64`) or a range with a step
    (`16-128/8`). Empty: all have `target_tokens`, and no prompt states it."""
    held_out_targets: str = ""
    """Those of `targets` that training never asks for, written alike (`18-126/3`). Evaluations ask for all, and report
    these apart too."""
    target_curriculum: Share = 0.0
    """Share of the first stage's steps over which training goes from four targets, spread over all, to all of them; 0:
    all from the start."""
    length_request: str = "\n{target} {unit}"
    """What stands after the post, with `{target}` and `{unit}`, where `targets` is set."""
    unit: Unit = "tokens"
    """What targets and tolerance count."""

    @property
    def needed_tokens(self) -> int:
        """The longest summary that is on target, in tokens."""
        if self.unit != TOKENS:
            return round(self.longest * TOKENS_OF[self.unit])
        if self.targets and self.tolerance_share:
            return self.longest + max(1, round(self.tolerance_share * self.longest))
        return self.longest + self.tolerance_tokens

    @property
    def longest(self) -> int:
        """The largest target."""
        return parse_targets(self.targets, "task.targets")[-1] if self.targets else self.target_tokens

    @property
    def derived(self) -> dict[str, tuple[Any, ...]]:
        """The tolerance for the target, or for each of several."""
        share = TldrConfig.tolerance_tokens / TldrConfig.target_tokens
        if self.targets:
            return {"tolerance_share": (share, "derived from task.targets", "tolerance_tokens")}
        tolerance = max(1, round(share * self.target_tokens))
        return {"tolerance_tokens": (tolerance, "derived from task.target_tokens")}


def targets_of(config: Config) -> Targets | None:
    """Return the targets that prompts ask for; None where one target holds for all."""
    task = cast(TldrConfig, config.task)
    return make_targets(task.targets, task.held_out_targets) if task.targets else None


def messages(example: Example, config: Config) -> Messages:
    """Return the chat that asks for a summary, with the length that the example has, if any, after the post."""
    *before, last = chat(config.task.system_prompt, example)
    return (*before, {**last, "content": last["content"] + request(example, config)})


def request(example: Example, config: Config) -> str:
    """Return what stands after the post; empty where no prompt states a length."""
    task = cast(TldrConfig, config.task)
    if not task.targets or TARGET not in example.metadata:
        return ""
    return task.length_request.format(target=example.metadata[TARGET], unit=task.unit)


def check(config: Config) -> list[str]:
    """Return a warning where completions end before the target, and where non-words are bounded that nothing counts.
    Raises UsageError for settings of targets that cannot be read, or that mean nothing together."""
    _check_targets(config)
    return [*_too_short(config), *_uncounted(config)]


def _uncounted(config: Config) -> list[str]:
    bounded = any("nonwords" in stage.used_signals for stage in config.stages.values())
    if not bounded or (problem := wordnet_problem()) is None:
        return []
    return [f"a constraint on nonwords bounds nothing without WordNet: {problem.hint}"]


def _too_short(config: Config) -> list[str]:
    task, tokens = cast(TldrConfig, config.task), config.sampling.max_new_tokens
    longest, needed = task.longest, round(task.longest * TOKENS_OF[task.unit])
    if tokens >= needed:
        return []
    aim = f"{longest} {task.unit} ({'the largest of task.targets' if task.targets else 'task.target_tokens'})"
    what = f"no summary can reach {aim}" if task.unit == TOKENS else f"summaries of {aim} may need {needed} tokens"
    return [
        f"{what}, but sampling.max_new_tokens = {tokens};"
        f" --set sampling.max_new_tokens={2 * needed}, or a smaller target"
    ]


def _check_targets(config: Config) -> None:
    task = cast(TldrConfig, config.task)
    if task.unit != TOKENS and config.rewards.length_counts != "sampled":
        raise UsageError(
            f"rewards.length_counts = {config.rewards.length_counts} counts tokens, but task.unit = {task.unit}",
            hint="--set rewards.length_counts=sampled",
        )
    if not task.targets:
        own = {"held_out_targets": "", "target_curriculum": 0.0, "tolerance_share": 0.0}
        if unused := next((key for key, value in own.items() if getattr(task, key) != value), None):
            raise UsageError(
                f"task.{unused} means nothing without task.targets", hint="--set task.targets=16-128, or leave it out"
            )
        return
    make_targets(task.targets, task.held_out_targets)
    try:
        # of two targets, which a text that states its target tells apart
        texts = {task.length_request.format(target=target, unit=task.unit) for target in (1, 2)}
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"task.length_request = {task.length_request!r} cannot be filled in: {error!r:.80}",
            hint='--set task.length_request=" Use {target} {unit}."',
        ) from error
    if len(texts) == 1:
        raise UsageError(
            f"task.length_request = {task.length_request!r} does not state the target, so that no prompt asks for one",
            hint='--set task.length_request=" Use {target} {unit}."',
        )


def variant(task: TaskConfig, text: str) -> TaskConfig:
    """Return the settings with the system prompt that a baseline's `--prompt` means: `<N>-words` or `<N>-tokens` adds
    that length to the prompt that is set, several words are the prompt itself; with `task.targets`, where each prompt
    states its own length, `plain` is the prompt that is set. Raises UsageError for another single word."""
    stated = bool(cast(TldrConfig, task).targets)
    if stated and text == PLAIN:
        return task
    if match := re.fullmatch(r"([1-9]\d*)-(words|tokens)", text):
        if stated:
            raise UsageError(
                f"the prompt {text} asks for one length, but task.targets gives each prompt its own",
                hint=f"--prompt {PLAIN}, or leave task.targets out",
            )
        return replace(task, system_prompt=f"{task.system_prompt} Use exactly {match[1]} {match[2]}.".lstrip())
    return with_instruction(task, text, PLAIN if stated else "50-words, 64-tokens (or another number)")


def baselines(task: TaskConfig) -> tuple[str, ...]:
    """Return the prompts of a baseline without `--prompt`."""
    return (PLAIN,) if cast(TldrConfig, task).targets else ("50-words", "64-tokens")
