"""The course of a stage: how many optimizer steps it has, what changes from the first to the last (temperature, weights
of rewards, mix of prompts), and which kinds of prompts it takes: in an epoch all, or as many as a mix allows; where the
mix changes, a kind for each place of each step. The learning rate has its own course (`smolsum/grpo/learning_rate.py`).

`stage_at` is a pure function of the step. So rollouts that are sampled ahead get the temperature of the step that
learns from them, and a resumed run continues where the schedule was.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from smolsum.config.fields import Course
from smolsum.config.sections import Config
from smolsum.config.stage import StageConfig
from smolsum.errors import UsageError, nearest


def progress(course: Course, step: int, steps: int) -> float:
    """Return how far a stage's step (from 0) of `steps` is on its way: 0 at the first step, 1 from the last on."""
    done = min(step, steps - 1) / max(1, steps - 1)
    return {"linear": done, "cosine": 0.5 * (1.0 - math.cos(math.pi * done))}[course]


def stage_at(stage: StageConfig, step: int, steps: int) -> StageConfig:
    """Return the stage as it is at its step (from 0) of `steps`: with the temperature, weights and mix of that step."""
    if stage.temperature_end:
        done = progress(stage.temperature_schedule, step, steps)
        stage = replace(stage, temperature=between(stage.temperature, stage.temperature_end, done))
    if stage.rewards_end:
        done = progress(stage.rewards_schedule, step, steps)
        ends = end_weights(stage)
        stage = replace(stage, rewards={name: between(stage.rewards.get(name, 0.0), ends[name], done) for name in ends})
    if stage.mix_end:
        done = progress("linear", step, steps)
        kinds = {**stage.mix, **stage.mix_end}
        mix = {kind: between(stage.mix.get(kind, 0.0), stage.mix_end.get(kind, 0.0), done) for kind in kinds}
        stage = replace(stage, mix=mix)
    return stage


def end_weights(stage: StageConfig) -> dict[str, float]:
    """Return the weight of each signal at the stage's end: a signal that `rewards_end` leaves out keeps its weight."""
    return {**stage.rewards, **stage.rewards_end}


def between(start: float, end: float, done: float) -> float:
    """Return the value at a share of the way, exactly `start` at 0 and `end` at 1."""
    return (1.0 - done) * start + done * end


def schedule_metrics(stage: StageConfig, now: StageConfig) -> dict[str, float]:
    """Return what differs from step to step: temperature, weights and mix of a step (`now`), where they change;
    config.toml has what stays."""
    found = {"sampling/temperature": now.temperature} if stage.temperature_end else {}
    if stage.rewards_end:
        found |= {f"rewards/{name}/weight": weight for name, weight in now.rewards.items()}
    if stage.mix_end:
        found |= {f"mix/{kind}": share for kind, share in now.mix.items()}
    return found


def described(stage: StageConfig) -> str:
    """Return what the stage changes from its first step to its last, in words; empty where nothing changes."""
    parts = []
    if stage.temperature_end:
        parts.append(f"temperature {stage.temperature:g} to {stage.temperature_end:g} ({stage.temperature_schedule})")
    if stage.rewards_end:
        parts.append(f"weights {_listed(stage.rewards)} to {_listed(end_weights(stage))} ({stage.rewards_schedule})")
    if stage.mix_end:
        parts.append(f"mix {_listed(stage.mix)} to {_listed(stage.mix_end)}")
    return "; ".join(parts)


def _listed(table: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in table.items())


def apportion(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Divide `count` by shares that sum to 1: the largest remainders are rounded up, the first of equal ones."""
    exact = {name: count * share for name, share in shares.items()}
    # a float may be just below the whole number that a share makes
    whole = {name: int(value + 1e-9) for name, value in exact.items()}
    left = sorted(exact, key=lambda name: whole[name] - exact[name])[: count - sum(whole.values())]
    return {name: n + (name in left) for name, n in whole.items()}


def epoch_counts(stage: str, mix: Mapping[str, float], kinds: Sequence[str]) -> dict[str, int]:
    """Return the prompts of each kind in an epoch of a stage: the most for which the mix holds without repeating a
    prompt. Without a mix all prompts count as one kind "".

    `kinds` has the kind of every prompt. Raises UsageError for shares that do not sum to 1, and for a kind without
    prompts, whatever its share.
    """
    if not mix:
        return {"": len(kinds)}
    key = f"stages.{stage}.mix"
    if abs(sum(mix.values()) - 1) > 1e-6:
        shares = ", ".join(f"{kind} = {share:g}" for kind, share in mix.items())
        raise UsageError(
            f"the mix of stage {stage} makes {sum(mix.values()):g}, not 1: {shares}",
            hint=f"--set {key}.{next(iter(mix))}=SHARE",
        )
    there, wanted = Counter(kinds), {kind: share for kind, share in mix.items() if share > 0}
    for kind in mix:  # also without a share: it may be misspelt
        if not there[kind]:
            raise UsageError(
                f"stage {stage} mixes in {kind!r} prompts, and the training data has none",
                hint=f"{nearest(kind, sorted(filter(None, there)))} (a whole mix: --set {key}={{KIND=SHARE, ...}})"
                if any(there)
                else f"--set {key}={{}}",
            )
    # no size above fits, as rounding adds less than one; from here down to the first that does
    size = min(int((there[kind] + 1) / share) + 1 for kind, share in wanted.items())
    while not all(count <= there[kind] for kind, count in apportion(size, wanted).items()):
        size -= 1
    return {kind: count for kind, count in apportion(size, wanted).items() if count}


def mean_mix(name: str, stage: StageConfig, kinds: Sequence[str]) -> dict[str, float]:
    """Return the stage's mix, in the mean over its steps. Raises UsageError as `epoch_counts` does."""
    if not stage.mix_end:
        return stage.mix
    for table in (stage.mix, stage.mix_end):
        epoch_counts(name, table, kinds)
    kinds_of_both = {**stage.mix, **stage.mix_end}
    return {kind: (stage.mix.get(kind, 0.0) + stage.mix_end.get(kind, 0.0)) / 2 for kind in kinds_of_both}


def kinds_by_place(stage: StageConfig, size: int, steps: int, further: int) -> list[tuple[str, int]]:
    """Return, for each place of a stage's `steps` of `size` prompts and of `further` steps, a kind, and how many of
    that kind came before.

    Each place goes to the kind that is furthest behind what the mixes so far have promised it, so that every kind is
    within one prompt of its share at any time, and all of it follows from the step.
    """
    promised: dict[str, float] = {}
    given: dict[str, int] = {}
    found = []
    for step in range(steps + further):
        mix = stage_at(stage, step, steps).mix
        for _ in range(size):
            for kind, share in mix.items():
                promised[kind] = promised.get(kind, 0.0) + share
            # a kind whose share has fallen to 0 comes no more, whatever it was promised
            kind = max(mix, key=lambda one: (mix[one] > 0, promised[one] - given.get(one, 0)))
            found.append((kind, given.get(kind, 0)))
            given[kind] = given.get(kind, 0) + 1
    return found


def planned_steps(config: Config, kinds: Sequence[str]) -> dict[str, int]:
    """Return the optimizer steps of every stage: its own number, or its epochs over the training prompts, whose kinds
    are given. Raises UsageError for an impossible mix."""
    per_step = config.train.prompts_per_step * config.train.accumulation_steps
    sizes = {
        name: sum(epoch_counts(name, mean_mix(name, stage, kinds), kinds).values())
        for name, stage in config.stages.items()
    }
    return {
        name: stage.steps or math.ceil(stage.epochs * sizes[name] / per_step) for name, stage in config.stages.items()
    }


def needs_data(config: Config) -> bool:
    """Whether the steps depend on the training data."""
    return any(stage.steps == 0 or stage.mix for stage in config.stages.values())
