"""The settings of A/B judging."""

from dataclasses import dataclass
from typing import cast

from smolsum.config.fields import NonNegative, Positive, PositiveCount, Seed, Text
from smolsum.config.sections import Config, TaskConfig

NOTES_TOKENS = "{notes_tokens}"


@dataclass(frozen=True)
class AbJudgeConfig(TaskConfig):
    """What a judgement has to be, and how the pairs are made."""

    system_prompt: str = (
        "You are shown two samples of a text, A and B. One is the original; in the other something was changed for the "
        f"worse. Compare them in notes of {NOTES_TOKENS} tokens, then judge which one is the original. Answer in this "
        "form and add nothing:\n<notes>what you notice</notes>\n<judgement>A or B</judgement>"
    )
    """System message of every prompt; `{notes_tokens}` in it stands for the number."""
    notes_tokens: PositiveCount = 128
    """Length of perfect notes in tokens."""
    notes_width: Positive = 32.0
    """Distance from that length at which the signal `notes_length` has fallen to 0.61."""
    accuracy_power: NonNegative = 4.0
    """Power of the batch's accuracy that a right judgement is worth; 0: always 1."""
    corruptor: Text = "rules"
    """What corrupts the texts: `rules`, or a model at $SMOLSUM_CORRUPTOR_URL (without it, $OPENAI_BASE_URL)."""
    faults: Text = "all"
    """Kinds of fault that the rules may cause, by comma (`swapped,number,name`)."""
    pairs_seed: Seed = 0
    """Seed of the faults and of the order in each pair; that of the run changes neither."""


def settings(config: Config) -> AbJudgeConfig:
    """Return the task's own part of a configuration."""
    return cast(AbJudgeConfig, config.task)
