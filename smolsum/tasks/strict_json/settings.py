"""The settings of strict JSON."""

from dataclasses import dataclass
from typing import cast

from smolsum.config.fields import PositiveCount, Seed, Share
from smolsum.config.sections import Config, TaskConfig

PLAIN = "Answer with one ```json block and nothing else."
THINKING = "First think in <think> and </think>, then answer with one ```json block and nothing else."


@dataclass(frozen=True)
class StrictJsonConfig(TaskConfig):
    """What is asked for, and how."""

    system_prompt: str = ""
    """System message of every prompt; empty: what `think` says."""
    think: bool = False
    """Whether a completion is to think in tags before it answers."""
    data_seed: Seed = 0
    """Seed of generated prompts."""
    train_prompts: PositiveCount = 1500
    """Generated prompts to train on."""
    validation_prompts: PositiveCount = 100
    """Generated prompts that checkpoints are chosen on."""
    test_prompts: PositiveCount = 300
    """Generated prompts that results are reported on."""
    simple: Share = 0.2
    """Share of simple prompts among those generated."""
    medium: Share = 0.3
    """Share of medium ones."""
    hard: Share = 0.5
    """Share of hard ones; the three make 1."""
    balanced_test: bool = False
    """Whether the test split has as many generated prompts of each level, whatever the shares."""
    held_out_templates: bool = False
    """Whether validation and test come from templates that training never sees."""

    @property
    def work(self) -> tuple[str, ...]:
        """`balanced_test` decides the test split alone, which has a fingerprint."""
        return ("balanced_test",)

    @property
    def instruction(self) -> str:
        """The system message."""
        return self.system_prompt or (THINKING if self.think else PLAIN)


def settings(config: Config) -> StrictJsonConfig:
    """Return the task's own part of a configuration."""
    return cast(StrictJsonConfig, config.task)
