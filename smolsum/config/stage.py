"""The record of a stage's settings; `stages.py` says how a stage changes from step to step."""

from dataclasses import dataclass, field

from smolsum.config import fields
from smolsum.config.constraints import LENGTH, parse_constraints


@dataclass(frozen=True)
class StageConfig:
    """One stage of a run, `[stages.NAME]`. What it leaves out is taken from the sections above."""

    rewards: dict[str, float]
    """Weight of each signal in the total reward."""
    steps: fields.Count
    """Optimizer steps; 0: computed from the epochs."""
    epochs: fields.Positive
    """Passes over the training split, used where steps is 0."""
    temperature: fields.Positive
    """Sampling temperature of this stage."""
    learning_rate: fields.NonNegative
    """Peak learning rate of this stage; 0: chosen as for the run."""
    schedule: fields.Schedule
    """Course of this stage's learning rate after the warm-up."""
    warmup_steps: fields.Count
    """Optimizer steps of this stage's warm-up."""
    beta: fields.NonNegative
    """KL weight of this stage."""
    hindsight: fields.NonNegative = 0.0
    """Weight of what this stage learns in hindsight (grpo.hindsight)."""
    hindsight_of: fields.Hindsight = "ends"
    """What this stage learns in hindsight (grpo.hindsight_of)."""
    countdown: fields.NonNegative = 0.0
    """Weight of what this stage learns of counting (grpo.countdown)."""
    length_credit: fields.LengthCredit = "all"
    """Tokens that have the part of an advantage that the length earned in this stage (grpo.length_credit)."""
    mix: dict[str, float] = field(default_factory=dict)
    """Share of each kind of prompt: of a band of [difficulty], or of a category of the task. Empty: all prompts."""
    constraints: str = ""
    """Constraints of this stage, as in grpo.constraints."""
    mask_truncated: bool = True
    """Whether the loss of this stage leaves out completions that reached max_new_tokens."""
    learn: fields.Learning = "rewards"
    """What this stage learns from: the `rewards` of its rollouts, by GRPO; by likelihood the `best` rollout of each
    group (RAFT, arXiv:2304.06767), or the best texts of the target's length that the sentences of a group's rollouts
    make (`recombined`); or the `references` of the data, without sampling (supervised fine-tuning)."""
    temperature_end: fields.NonNegative = 0.0
    """Sampling temperature at the stage's last step; `temperature` is that of its first. 0: it stays."""
    temperature_schedule: fields.Course = "linear"
    """Course of the temperature from the first step to the last."""
    rewards_end: dict[str, float] = field(default_factory=dict)
    """Weights at the stage's last step; `rewards` has those of its first. A signal that is left out keeps its weight,
    and one that `rewards` lacks starts at 0. Empty: all stay."""
    rewards_schedule: fields.Course = "linear"
    """Course of the weights from the first step to the last."""
    mix_end: dict[str, float] = field(default_factory=dict)
    """Shares at the stage's last step, reached in a straight line; `mix` has those of its first. Empty: the mix
    stays."""

    @property
    def trained_rewards(self) -> dict[str, float]:
        """The weight of each signal, and where that is 0 at the first step, the weight at the last."""
        later = {name: weight for name, weight in self.rewards_end.items() if not self.rewards.get(name)}
        return {**self.rewards, **later}

    @property
    def used_signals(self) -> dict[str, float]:
        """The trained rewards, and with the weight 1 what only constraints use: a signal, or a measure of the task."""
        found = self.trained_rewards
        bounded = [one.measured for one in parse_constraints(self.constraints) if one.measured != LENGTH]
        return {**found, **{name: 1.0 for name in bounded if not found.get(name)}}
