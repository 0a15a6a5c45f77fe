"""Validation between steps: greedy completions of the same prompts of the validation split every time."""

from statistics import fmean

from smolsum.config.stage import StageConfig
from smolsum.config.stages import end_weights
from smolsum.errors import SmolsumError
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup
from smolsum.results.evaluate.sampling import greedy
from smolsum.results.evaluate.tables import error_shares
from smolsum.rewards.combine import score_and_combine
from smolsum.rollout.sampling_count import SamplingCounter


def validate(session: Session, setup: Setup, stage: StageConfig) -> dict[str, float]:
    """Return the metrics of a validation, under `validation/`: mean reward and length, the task's score and summary.

    The reward is left out unless every prompt has one: a mean over other prompts would not compare with earlier
    validations. Empty where the rewards or measures could not be computed at all.
    """
    task, config = setup.task, session.config
    prompts = setup.prompts["validation"][: config.train.validation_prompts]
    with session.keeper.counting("validation", "validating") as show:
        groups = greedy(setup.policy, prompts, config, SamplingCounter(len(prompts), show), version=session.at.step)
    try:
        # the weights of the stage's end, so that all its validations compare
        totals = score_and_combine(groups, end_weights(stage), config, task.rewards.signals)[1]
        task.evaluation.ask_ahead([(g.prompt, g.rollouts[0]) for g in groups], config)
        rows = [setup.measure(g.prompt, g.rollouts[0]) for g in groups]
    except SmolsumError as error:  # the update has been made; the next step waits, or stops with a checkpoint
        session.keeper.notify("not_validated", f"no validation after step {session.at.step}: {error.message}")
        return {}
    rewards = [row[0] for row in totals if row[0] is not None]
    column = [row[task.evaluation.score] for row in rows if row.get(task.evaluation.score) is not None]
    tokens = {"completions/mean_length": fmean(g.rollouts[0].length for g in groups)}
    summary = {task.evaluation.score: fmean(column) if column else None} | tokens | task.evaluation.summarise(rows)
    summary |= error_shares(task.evaluation.errors, rows)
    # a prompt without references lacks its overlap in every validation, so its absence changes no comparison
    lost = sum(row[0] is None and bool(g.prompt.references) for row, g in zip(totals, groups, strict=True))
    lacks = task.evaluation.lacks(summary, len(rows)) or (f"{lost} of {len(rows)} without a value" if lost else "")
    if lacks:
        message = f"validation after step {session.at.step} has no reward and chooses no checkpoint: {lacks}"
        session.keeper.notify("partly_validated", message)
        rewards = []
    found = {"validation/reward": fmean(rewards)} if rewards else {}
    return found | {f"validation/{key}": value for key, value in summary.items() if value is not None}
