"""GRPO, from prompts to weights.

For each stage, for each step: take prompts, sample G completions of each, score them with the stage's signals, turn
rewards into advantages within each group, take one optimizer step on the clipped loss, write the step down. The run's
seed and the step's number alone decide which prompts and which random numbers a step uses, so a resumed run repeats an
uninterrupted one bit for bit.
"""

from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from smolsum.config.constraints import parse_constraints
from smolsum.config.sections import Config
from smolsum.config.stages import planned_steps, schedule_metrics
from smolsum.console import WaitHook, stop_signals, use_hook
from smolsum.errors import SmolsumError
from smolsum.grpo.batch import BatchSampler, learn_from, step_metrics
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.constraints import Multipliers
from smolsum.grpo.countdown import add_countdown, counted
from smolsum.grpo.credit import EndCredit, sentence_ends
from smolsum.grpo.difficulty import planned_kinds
from smolsum.grpo.evaluations import START, evaluate
from smolsum.grpo.guard import open_guard
from smolsum.grpo.hindsight import add_hindsight
from smolsum.grpo.keeper import Keeper, RunKeeper
from smolsum.grpo.learning_rate import learning_rate
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.progress import Progress
from smolsum.grpo.recombine import StartSource, learn_from_recombined
from smolsum.grpo.relabel import relabelled
from smolsum.grpo.reward_balance import RewardBalance
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup, open_rollouts, prepare
from smolsum.grpo.stage_order import open_order
from smolsum.grpo.validate import validate
from smolsum.policy import distributed
from smolsum.policy.memory import peak_gb, reset_peak
from smolsum.rollout.source import ReferenceSource, Source
from smolsum.runs.paths import open_run
from smolsum.runs.writer import at_commit


def train(
    config: Config, *, resume: str | None, progress: Progress, started: Callable[[Path], None] = lambda root: None
) -> None:
    """Train every stage of a configuration, or finish the run `resume`.

    `started` gets the run's directory as soon as it exists, on the first rank. Raises InterruptedRun after a first
    Ctrl-C, once the step is finished and saved, and SmolsumError for everything that a user can fix.
    """
    if resume:
        with suppress(SmolsumError):  # the session reports what is wrong with the run
            config = at_commit(config, open_run(resume, Path(config.run.dir)))
    leads = distributed.leads()
    if not leads:
        progress.close()
    # the first rank owns the run directory and the screen
    keeping = RunKeeper.open(config, resume, progress) if leads else nullcontext(Keeper(progress))
    with keeping as keeper:
        session = Session(config, keeper)
        with stop_signals(session.request_stop):
            progress.phase(f"loading {config.model.path} and {config.data.path}")
            # while loading no step can be finished, so waits do not look for a stop
            with use_hook(WaitHook(notify=lambda kind, message: progress.warn(message), progress=progress.phase)):
                setup = prepare(config, keeper.recorded_info())
                config = setup.config  # with the learning rates that were left to the model
            notify, stopping, show = keeper.notify, session.should_stop, keeper.show_rollouts
            with closing(open_rollouts(setup, config, notify=notify, stopping=stopping, show=show)) as source:
                kinds = planned_kinds(config, setup.task, setup.prompts["train"])
                session.begin(setup, planned_steps(config, kinds), started)
                # from here on a wait ends when a stop is requested
                with use_hook(WaitHook(session.should_stop, keeper.notify, progress=lambda text: None)):
                    train_stages(session, setup, source)
                keeper.finish()


def train_stages(session: Session, setup: Setup, source: Source) -> None:
    """Train the stages that are not finished, and evaluate the start and the end of each."""
    evaluate(session, START, on_sample=True)
    for stage in setup.config.stages:
        if not session.restore(stage):
            train_stage(session, setup, source)
        evaluate(session, stage)
    evaluate(session, START)  # what the sample left out


def train_stage(session: Session, setup: Setup, source: Source) -> None:
    """Train the session's stage, from the checkpoint that the session restored or from the stage's start."""
    config, policy, at = session.config, setup.policy, session.at
    stage, reference, mark = config.stages[at.stage], session.reference, session.clock.mark
    optimizer = Optimizer(policy.model, config.optimizer, seed=config.train.seed)
    session.load_optimizer(optimizer)
    steps, run_steps = at.plan[at.stage], sum(at.plan.values())
    first_step = at.step - at.stage_step + 1  # seeds and policy versions count over the whole run
    if stage.learn == "references":
        source = ReferenceSource(policy, config)
    elif stage.learn == "recombined":
        source = StartSource(source, policy, session.sampler, first_step - 1)
    order = open_order(session, setup, source.depth)
    multipliers = Multipliers(parse_constraints(stage.constraints), config.grpo)
    parts = (order, RewardBalance(config.grpo), multipliers)  # what changes with the steps; yours is one more
    guard = open_guard(config, stage, setup.task.evaluation)
    session.adopt(*parts, guard)
    # a quick measure asks nobody, and leaves out the rewards of plugins
    asks = {} if setup.measure_rollout else {"ask_ahead": setup.task.evaluation.ask_ahead}
    sampler = BatchSampler(
        source, order, config, stage, setup.task.rewards.signals, setup.measure_rollout or setup.measure,
        watches=bool(guard.watched), first_step=first_step, steps=steps, run_steps=run_steps, parts=parts, mark=mark,
        **asks,
    )  # fmt: skip
    at_ends = setup.task.rewards.end_signals if stage.length_credit == "ends" else []
    by_sentence = at_ends or stage.hindsight or stage.learn == "recombined"
    ends = sentence_ends(policy.tokenizer) if by_sentence else frozenset()
    source.publish(at.step, always=True)  # a restored or new stage is not one update from what workers hold
    for k in session.steps(optimizer):  # saves checkpoints, pauses and stops
        reset_peak()
        with session.checkpoint_on_failure(optimizer):
            sampled, chosen = sampler.collect(k)  # groups, signals and totals; groups that teach nothing refilled
        sampler.request_ahead(k)  # workers sample while the update runs
        sampled = replace(sampled, measured=multipliers.bound(sampled.measured))
        batch = sampled.take(chosen)
        now = sampler.stage_at_step(k)  # the weights that scored the step: `observe` moves those of the parts below
        if stage.learn == "recombined":
            learned = learn_from_recombined(batch, setup, now, ends)
        else:
            learned = learn_from(batch, now, multipliers.values, config.grpo, at_ends)
        grads, metrics = gradients(
            policy.model, learned.groups, learned.advantages_PG, config.grpo, now,
            max_new_tokens=config.sampling.max_new_tokens, chunking=setup.memory.chunking, reference=reference,
            credit=EndCredit(learned.ends_PG, ends) if at_ends else None, report=session.keeper.show_update,
        )  # fmt: skip
        asked = setup.writer.targets_at(at.stage, k, steps) if setup.writer else None
        if stage.hindsight and stage.learn == "rewards":
            grads, copied = add_hindsight(
                grads, policy.model, relabelled(batch, setup, now, asked, ends), now,
                rollouts=batch.totals.size, chunking=setup.memory.chunking,
            )  # fmt: skip
            metrics |= copied
        if stage.countdown:
            grads, counting = add_countdown(
                grads, policy.model, counted(batch, setup, asked, k), now, chunking=setup.memory.chunking
            )
            metrics |= counting
        mark("fwd_bwd_s")
        metrics |= learned.metrics
        metrics |= optimizer.step(policy.model, grads, learning_rate(stage, k, steps) * guard.rate)
        metrics |= guard.look(batch.measures, learned.by_place)
        if guard.alarms:
            session.heed(guard, optimizer)  # warns, stops, or goes back
        metrics["perf/peak_memory_gb"] = peak_gb()
        mark("optimizer_s")
        source.publish(at.step, always=guard.undone[1] == at.step)  # gone back, the weights are not one update on
        mark("publish_s")
        metrics |= step_metrics(sampled, learned.advantages_PG) | source.metrics() | schedule_metrics(stage, now)
        for part in parts:
            metrics |= part.observe(sampled, now.rewards)
        metrics |= setup.task.evaluation.step_metrics(sampled.groups, config)
        if session.keeper.validates(k):
            metrics |= validate(session, setup, stage)
            mark("validate_s")
        rows = sampled.rows(dict(zip(chosen, learned.by_place, strict=True)))
        session.log(sampled.logged_means() | metrics, rows)  # a metric of ours keeps its name
