"""What changes within a stage, from the first step to the last: temperature, weights of rewards, mix of prompts.

`stage_at` is a pure function of the step. So rollouts that are sampled ahead get the temperature of the step that
learns from them, and a resumed run goes on where the schedule was.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from smolsum.config.fields import Course
from smolsum.config.sections import StageConfig
from smolsum.errors import UsageError


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


def check_schedules(prefix: str, stage: StageConfig, sources: Mapping[str, str]) -> None:
    """Raise UsageError for a schedule that changes nothing or lacks an end; `prefix` is `stages.NAME`, and `sources`
    gives the source of each key."""
    weights = {name: stage.rewards.get(name, 0.0) for name in stage.rewards_end}
    same = {
        "temperature": stage.temperature_end == stage.temperature,
        "rewards": bool(weights) and stage.rewards_end == weights,
    }
    for table, nothing in same.items():
        end, course = f"{prefix}.{table}_end", f"{prefix}.{table}_schedule"
        if not getattr(stage, f"{table}_end") and getattr(stage, f"{table}_schedule") != "linear":
            example = "0.7" if table == "temperature" else "{SIGNAL=WEIGHT}"
            raise UsageError(
                f"{sources[course]}: {course} is set, but {end} is not, so that nothing changes",
                hint=f"--set {end}={example}, or leave {course} out",
            )
        if nothing:
            source = sources.get(end) or sources[f"{end}.{next(iter(weights))}"]
            raise UsageError(
                f"{source}: {end} is what the stage begins with, so that nothing changes",
                hint=f"leave {end} out, or give it another value",
            )
    if stage.rewards_end and not any({**stage.rewards, **stage.rewards_end}.values()):
        raise UsageError(
            f"{sources[f'{prefix}.rewards_end.{next(iter(stage.rewards_end))}']}: at its end {prefix} has no"
            " reward of any weight",
            hint=f"--set {prefix}.rewards_end.{next(iter(stage.rewards_end))}=1.0",
        )
    if stage.mix_end and not stage.mix:
        first = next(iter(stage.mix_end))
        raise UsageError(
            f"{sources[f'{prefix}.mix_end.{first}']}: {prefix}.mix_end has no {prefix}.mix to start from",
            hint=f"--set {prefix}.mix={{{first}=1.0}}",
        )


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
