"""The order of prompts that a stage asks for: the kinds that it mixes, measured where a reward decides them."""

from collections.abc import Mapping
from statistics import fmean

from smolsum.config.stages import stage_at
from smolsum.grpo.difficulty import described, in_bands, known_values, planned_kinds
from smolsum.grpo.prompt_order import LearningOrder, PromptOrder, SkippingOrder
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy import distributed
from smolsum.results.evaluate.sampling import DecodingSettings, complete
from smolsum.rewards.combine import score_and_combine
from smolsum.rollout.sampling_count import SamplingCounter

DIFFICULTY = "difficulty"
"""the name of measured rewards in a checkpoint's state"""


def open_order(session: Session, setup: Setup, ahead: int = 0) -> PromptOrder:
    """Return the order of the prompts of the session's stage, whose rollouts may be requested so many steps `ahead`.
    Says how its bands are cut when the stage begins."""
    config, prompts = session.config, setup.prompts["train"]
    name, settings = session.at.stage, config.difficulty
    stage, steps = config.stages[name], session.at.plan[name]
    if not stage.mix or settings.by == "none":
        kinds = planned_kinds(config, setup.task, prompts)
    else:
        values = _measured(session, setup) if settings.by == "reward" else known_values(settings, prompts)
        kinds = in_bands(values, settings, prompts)
        if session.at.stage_step == 0 and distributed.leads():
            lost = kinds.count("")
            left_out = f"; {lost} prompts without a value are left out" if lost else ""
            text = described(settings, kinds, values, [prompt.id for prompt in prompts])
            session.keeper.notify("difficulty", f"stage {name} mixes prompts by {settings.by}: {text}{left_out}")
    ask = setup.writer.at_steps(name, steps) if setup.writer else None
    if stage.mix and settings.adapt:
        return LearningOrder(prompts, config, name, kinds, ahead=ahead, steps=steps, ask=ask)
    if config.train.skip_untaught:
        return SkippingOrder(prompts, config, name, kinds, ahead=ahead, steps=steps, ask=ask)
    return PromptOrder(prompts, config, name, kinds, steps=steps, ask=ask)


def _measured(session: Session, setup: Setup) -> Mapping[str, float | None]:
    """Return the mean reward of `difficulty.samples` completions of each training prompt, by the model and with the
    weights that the stage begins with; None for a prompt without any reward.

    Measured when the stage begins, and then kept in its checkpoints, since a resumed run has other weights.
    """
    if DIFFICULTY in session.state:
        found: Mapping[str, float | None] = session.state[DIFFICULTY]
        return found
    config, prompts = session.config, setup.prompts["train"]
    count, stage = config.difficulty.samples, stage_at(config.stages[session.at.stage], 0, 1)
    session.progress.phase(f"measuring the difficulty of {len(prompts)} prompts, {count} completions each")
    decoding = DecodingSettings(stage.temperature, config.train.seed, count)
    values: dict[str, float | None] = {}
    with session.keeper.counting("difficulty", "measuring") as show:
        counter = SamplingCounter(len(prompts) * count, show)
        counter.begin()
        batches = complete(setup.policy, prompts, config, counter.within, version=session.at.step, decoding=decoding)
        for groups in batches:
            counter.add(groups)
            totals = score_and_combine(groups, stage.rewards, config, setup.task.rewards.signals)[1]
            for group, row in zip(groups, totals, strict=True):
                kept = [total for total in row if total is not None]
                values[group.prompt.id] = fmean(kept) if kept else None
    values = distributed.gathered(values)[0]  # each rank measured all, perhaps rounded otherwise: all take the first's
    session.state[DIFFICULTY] = values
    return values
