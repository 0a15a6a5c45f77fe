"""The optimizer steps of each stage, and which kinds of prompts it takes: in an epoch all, or as many as a mix allows;
where the mix changes, a kind for each place of each step."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from smolsum.config.fields import band_names
from smolsum.config.presets import ConfigurableTask
from smolsum.config.sections import Config, StageConfig
from smolsum.config.stage_schedule import stage_at
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
            kind = max(mix, key=lambda one: (mix[one] > 0, promised[one] - given.get(one, 0)))
            found.append((kind, given.get(kind, 0)))
            given[kind] = given.get(kind, 0) + 1
    return found


def check_mixes(config: Config, sources: Mapping[str, str], task: ConfigurableTask) -> None:
    """Raise UsageError for mixes of kinds that do not exist, and for a difficulty that nothing uses or that lacks what
    it is measured by."""
    difficulty, mixed = config.difficulty, {name: stage.mix for name, stage in config.stages.items() if stage.mix}
    if difficulty.adapt:
        first, kinds = next(iter(config.stages)), task.prompts.category or difficulty.by != "none"
        if not mixed:
            raise UsageError(
                f"{sources['difficulty.adapt']}: difficulty.adapt moves the mix of a stage, and no stage has a mix",
                hint=f"--set 'stages.{first}.mix={{KIND=SHARE, ...}}' is what it begins with"
                + ("" if kinds else ", and --set difficulty.by=length makes kinds"),
            )
        for name in mixed:
            if config.stages[name].mix_end:
                raise UsageError(
                    f"{sources['difficulty.adapt']}: difficulty.adapt moves the mix of stage {name}, and so does its "
                    "mix_end",
                    hint=f"--set difficulty.adapt=0, or leave stages.{name}.mix_end out",
                )
    if difficulty.by == "none":
        for name, mix in mixed.items():
            if not task.prompts.category:
                raise UsageError(
                    f"{sources[f'stages.{name}.mix.{next(iter(mix))}']}: stage {name} mixes prompts, and task "
                    f"{task.name} has no categories to mix",
                    hint="--set difficulty.by=length mixes easy, medium and hard ones",
                )
        unused = {"column": "", "scores": "", "harder": "auto"}
        for key, value in unused.items():
            if getattr(difficulty, key) != value:
                raise UsageError(
                    f"{sources[f'difficulty.{key}']}: difficulty.{key} has no use without difficulty.by",
                    hint=f"--set difficulty.by={'scores' if key == 'scores' else 'column'}",
                )
        return
    source = sources["difficulty.by"]
    if not mixed:
        name = next(iter(config.stages))
        bands = band_names(difficulty.bands)
        raise UsageError(
            f"{source}: difficulty.by = {difficulty.by} is for stages that mix prompts, and no stage has a mix",
            hint=f"--set 'stages.{name}.mix={{{bands[0]}=0.5, {bands[-1]}=0.5}}'",
        )
    needs = {"column": ("column",), "scores": ("scores", "column")}.get(difficulty.by, ())
    for key in needs:
        if not getattr(difficulty, key):
            raise UsageError(
                f"{source}: difficulty.by = {difficulty.by} needs difficulty.{key}",
                hint=f"--set difficulty.{key}={'FOLDER' if key == 'scores' else 'NAME'}",
            )
    for key in ("column", "scores"):
        if getattr(difficulty, key) and key not in needs:
            raise UsageError(
                f"{sources[f'difficulty.{key}']}: difficulty.by = {difficulty.by} does not read difficulty.{key}",
                hint=f"--set difficulty.by={key}, or leave difficulty.{key} out",
            )
    names = band_names(difficulty.bands)
    for stage, settings in config.stages.items():
        for table in ("mix", "mix_end"):
            for kind in getattr(settings, table):
                if kind not in names:
                    raise UsageError(
                        f"{sources[f'stages.{stage}.{table}.{kind}']}: stages.{stage}.{table} names {kind!r}, which is "
                        "no band of difficulty.bands",
                        hint=nearest(kind, names),
                    )


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
