"""The optimizer steps of each stage, and the prompts of each kind in an epoch: all, or as many as a mix allows."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from smolsum.config.sections import Config
from smolsum.errors import UsageError, nearest


def apportion(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Divide `count` by shares that sum to 1: the largest remainders are rounded up, the first of equal ones."""
    exact = {name: count * share for name, share in shares.items()}
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
    size = min(int((there[kind] + 1) / share) + 1 for kind, share in wanted.items())
    while not all(count <= there[kind] for kind, count in apportion(size, wanted).items()):
        size -= 1
    return {kind: count for kind, count in apportion(size, wanted).items() if count}


def planned_steps(config: Config, kinds: Sequence[str]) -> dict[str, int]:
    """Return the optimizer steps of every stage: its own number, or its epochs over the training prompts, whose kinds
    are given. Raises UsageError for an impossible mix."""
    per_step = config.train.prompts_per_step * config.train.accumulation_steps
    sizes = {name: sum(epoch_counts(name, stage.mix, kinds).values()) for name, stage in config.stages.items()}
    return {
        name: stage.steps or math.ceil(stage.epochs * sizes[name] / per_step) for name, stage in config.stages.items()
    }


def needs_data(config: Config) -> bool:
    """Whether the steps depend on the training data."""
    return any(stage.steps == 0 or stage.mix for stage in config.stages.values())
