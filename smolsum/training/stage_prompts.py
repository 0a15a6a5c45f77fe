"""The prompts of a stage in their order: with the bands that its mix takes, for which rewards may be measured first."""

from collections.abc import Mapping
from statistics import fmean

from smolsum.config.stage_schedule import stage_at
from smolsum.evaluate.sampling import DecodingSettings, complete
from smolsum.policy import distributed
from smolsum.rewards.combine import score_and_combine
from smolsum.rollout.sampling_count import SamplingCounter
from smolsum.training.batch import PromptOrder
from smolsum.training.difficulty import described, in_bands, known_values, planned_kinds
from smolsum.training.session import Session
from smolsum.training.setup import Setup

DIFFICULTY = "difficulty"
"""the name of measured rewards in a checkpoint's state"""


def prompt_order(session: Session, setup: Setup) -> PromptOrder:
    """Return the order of the prompts of the session's stage. Says how its bands are cut when the stage begins."""
    config, prompts = session.config, setup.prompts["train"]
    stage, settings, steps = config.stages[session.stage], config.difficulty, session.plan[session.stage]
    ask = setup.writer.at_steps(session.stage, steps) if setup.writer else None
    if not stage.mix or settings.by == "none":
        kinds = planned_kinds(config, setup.task, prompts)
        return PromptOrder(prompts, config, session.stage, kinds, steps=steps, ask=ask)
    values = _measured(session, setup) if settings.by == "reward" else known_values(settings, prompts)
    kinds = in_bands(values, settings, prompts)
    if session.stage_step == 0 and distributed.leads():
        lost = kinds.count("")
        left_out = f"; {lost} prompts without a value are left out" if lost else ""
        text = described(settings, kinds, values, [prompt.id for prompt in prompts])
        session.notify("difficulty", f"stage {session.stage} mixes prompts by {settings.by}: {text}{left_out}")
    return PromptOrder(prompts, config, session.stage, kinds, steps=steps, ask=ask)


def _measured(session: Session, setup: Setup) -> Mapping[str, float | None]:
    """Return the mean reward of `difficulty.samples` completions of each training prompt, by the model and with the
    weights that the stage begins with; None for a prompt without any reward.

    Measured when the stage begins, and then kept in its checkpoints, since a resumed run has other weights.
    """
    if DIFFICULTY in session.state:
        found: Mapping[str, float | None] = session.state[DIFFICULTY]
        return found
    config, prompts = session.config, setup.prompts["train"]
    count, stage = config.difficulty.samples, stage_at(config.stages[session.stage], 0, 1)
    session.progress.phase(f"measuring the difficulty of {len(prompts)} prompts, {count} completions each")
    decoding = DecodingSettings(stage.temperature, config.train.seed, count)
    values: dict[str, float | None] = {}
    with session.counting("difficulty", "measuring") as show:
        counter = SamplingCounter(len(prompts) * count, show)
        counter.begin()
        batches = complete(setup.policy, prompts, config, counter.within, version=session.step, decoding=decoding)
        for groups in batches:
            counter.add(groups)
            totals = score_and_combine(groups, stage.rewards, config, setup.task.rewards.signals)[1]
            for group, row in zip(groups, totals, strict=True):
                kept = [total for total in row if total is not None]
                values[group.prompt.id] = fmean(kept) if kept else None
    values = distributed.gathered(values)[0]
    session.state[DIFFICULTY] = values
    return values
