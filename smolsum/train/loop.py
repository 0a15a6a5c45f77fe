"""GRPO, from prompts to weights.

For each stage, for each step: take prompts, sample G completions of each, score them with the stage's signals, turn
rewards into advantages within each group, take one optimizer step on the clipped loss, write down what happened. Which
prompts and which random numbers a step uses follows from the run's seed and the step alone, so a resumed run repeats
an uninterrupted one bit for bit.

Which source samples for a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

from smolsum.config.schedule import epoch_counts, planned_steps
from smolsum.config.sections import Config, StageConfig
from smolsum.errors import SmolsumError
from smolsum.evaluate.sampling import greedy
from smolsum.evaluate.tables import error_shares
from smolsum.grpo.advantages import advantages
from smolsum.grpo.optimizer import Optimizer, learning_rate
from smolsum.grpo.update import gradients
from smolsum.llm.retry import WaitHook, use_hook
from smolsum.policy import ranks
from smolsum.policy.load import Policy
from smolsum.rewards.combine import combine, score_all
from smolsum.rollout.sampler import LocalSource, Receiver, Source
from smolsum.rollout.workers import RemoteSource
from smolsum.runs.checkpoints import validation
from smolsum.train.batch import PromptOrder, advantage_metrics, ahead, collect, rollout_metrics, rollout_rows
from smolsum.train.progress import Progress
from smolsum.train.session import NullSession, Session
from smolsum.train.setup import Setup, prepare
from smolsum.types import Prompt


def open_source(
    policy: Policy,
    config: Config,
    prompts: Sequence[Prompt],
    *,
    tell: Callable[..., None],
    stopping: Callable[[], bool],
) -> Source:
    """Workers where `workers.urls` names some, else the policy itself; workers belong to the first rank.

    Arguments and errors as of RemoteSource.
    """
    if not config.workers.urls:
        return LocalSource(policy, config)
    if not ranks.leads():
        return Receiver()
    return RemoteSource(policy, config, prompts, tell=tell, stopping=stopping)


def train(
    config: Config, *, resume: str | None, progress: Progress, begun: Callable[[Path], None] = lambda root: None
) -> None:
    """Run every stage of a configuration, or what is left of the run `resume`; `begun` is given the run's directory
    once there is one, on the first rank.

    Raises InterruptedRun after a first Ctrl-C, once the step is finished and saved; SmolsumError for everything a user
    can mend.
    """
    role = Session if ranks.leads() else NullSession
    with role.open(config, resume, progress) as session:
        progress.phase(f"loading {config.model.path} and {config.data.path}")
        with use_hook(WaitHook(notify=lambda kind, message: progress.warn(message), progress=progress.phase)):
            materials = prepare(config)
        prompts = materials.prompts["train"]
        source = open_source(materials.policy, config, prompts, tell=session.tell, stopping=session.stops)
        with closing(source):
            session.begin(materials, planned_steps(config, materials.task.kinds(prompts)))
            if ranks.leads():
                begun(session.paths.root)
            with use_hook(WaitHook(session.stops, session.tell, progress=lambda text: None)):
                session.evaluate("start")
                for name in config.stages:
                    if not session.restore(name):
                        run_stage(session, materials, source, name)
                    session.evaluate(name)
            session.finish()


def run_stage(session: Session, materials: Setup, source: Source, name: str) -> None:
    """One leg of a run, from the checkpoint that the session restored or from the stage's start."""
    config, stage, policy = session.config, session.config.stages[name], materials.policy
    steps = session.steps[name]
    reference = session.stage_start
    optimizer = Optimizer(policy.model, config.optimizer, seed=config.train.seed)
    session.load_optimizer(optimizer)
    prompts = materials.prompts["train"]
    number, kinds = list(config.stages).index(name), materials.task.kinds(prompts)
    order = PromptOrder(prompts, config, number, kinds, epoch_counts(name, stage.mix, kinds))
    source.publish(session.step, always=True)
    for k in range(session.stage_step, steps):
        with session.next_step():
            clock = Clock()
            with session.saved_on_failure(name, optimizer):
                batch, used = collect(
                    source, order, k, config, stage, step=session.step, lap=clock.lap, signals=materials.task.signals
                )
            ahead(source, order, k, stage, step=session.step, steps=steps)
            chosen = batch.take(used)
            advantages_PG = advantages(chosen.totals, chosen.scores, stage.rewards, scale=config.grpo.advantage_scale)
            grads, metrics = gradients(
                policy.model,
                chosen.groups,
                advantages_PG,
                config.grpo,
                stage,
                max_new_tokens=config.sampling.max_new_tokens,
                chunking=materials.chunking,
                reference=reference,
            )
            clock.lap("fwd_bwd_s")
            metrics |= optimizer.step(policy.model, grads, learning_rate(stage, k, steps))
            clock.lap("optimizer_s")
            source.publish(session.step)
            clock.lap("publish_s")
            metrics |= rollout_metrics(batch) | advantage_metrics(advantages_PG) | source.metrics()
            metrics |= materials.task.step_metrics(batch.groups, config)
            if session.validates(k):
                metrics |= validate(session, materials, stage)
                clock.lap("validate_s")
            rows = rollout_rows(batch, dict(zip(used, advantages_PG.tolist(), strict=True)))
            session.record(name, metrics, clock.times(), rows)
            session.checkpoint(name, optimizer, validation(metrics, materials.task.score))


def validate(session: Session, materials: Setup, stage: StageConfig) -> dict[str, float]:
    """Greedy reward and metrics, on the same prompts of the validation split every time: no reward where it could not
    be had for all of them, nothing where the task could not ask."""
    prompts = materials.prompts["validation"][: session.config.train.validation_prompts]
    groups = greedy(materials.policy, prompts, session.config, version=session.step)
    try:
        scores = score_all(groups, stage.rewards, session.config, materials.task.signals)
        materials.task.ask_ahead([(g.prompt, g.rollouts[0]) for g in groups], session.config)
        rows = [materials.measure(g.prompt, g.rollouts[0]) for g in groups]
    except SmolsumError as error:  # the step is learnt from already; the next one will wait, or stop saved
        session.tell("not_validated", f"no validation after step {session.step}: {error.message}")
        return {}
    totals = combine(groups, scores, stage.rewards)
    rewards = [row[0] for row in totals if row[0] is not None]
    score = materials.task.score
    column = [row[score] for row in rows if row.get(score) is not None]
    summary = {score: fmean(column) if column else None} | materials.task.summarise(rows)
    summary |= error_shares(materials.task.errors, rows)
    # a prompt without references lacks its overlap every time; anything else would be a mean of other prompts
    lost = sum(row[0] is None and bool(g.prompt.references) for row, g in zip(totals, groups, strict=True))
    lacks = materials.task.lacks(summary, len(rows)) or (f"{lost} of {len(rows)} without a value" if lost else "")
    if lacks:
        told = f"validation after step {session.step} has no reward and chooses no checkpoint: {lacks}"
        session.tell("partly_validated", told)
        rewards = []
    found = {"validation/reward": fmean(rewards)} if rewards else {}
    return found | {f"validation/{key}": value for key, value in summary.items() if value is not None}


class Clock:
    """Where a step's time goes, in seconds, under TRL's `perf/` names."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `perf/<name>`."""
        now = time.perf_counter()
        self.laps[f"perf/{name}"] = self.laps.get(f"perf/{name}", 0.0) + now - self.last
        self.last = now

    def times(self) -> dict[str, float]:
        """All laps, and `perf/step_s` from the start to now."""
        return {"perf/step_s": time.perf_counter() - self.start, **self.laps}
