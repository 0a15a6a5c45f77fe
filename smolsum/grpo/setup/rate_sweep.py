"""A sweep over learning rates: the first steps of a run with each of them, on weights that are put back afterwards.

Each trial trains the run's first stage with the loop of training, `train_stage`, from the same weights, on the same
prompts and with the same seeds. The rate is constant, without a warm-up. Nothing is written.

A trial is judged by what its last quarter of steps samples, compared with what the weights at the start sample in the
same steps, and by greedy completions of the validation split: a rate can raise the one and lower the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from smolsum.config.sections import Config
from smolsum.config.stage import StageConfig
from smolsum.console import WaitHook, stop_signals, use_hook
from smolsum.errors import InterruptedRun, UsageError
from smolsum.files import finite
from smolsum.grpo.batch import BatchSampler, step_metrics
from smolsum.grpo.keeper import Keeper
from smolsum.grpo.loop import train_stage
from smolsum.grpo.progress import Progress
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup, prepare
from smolsum.grpo.stage_order import open_order
from smolsum.grpo.validate import validate
from smolsum.policy import distributed
from smolsum.policy.load import snapshot
from smolsum.rollout.source import LocalSource, Source

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""the rates of a sweep, as multiples of the rate that the run would have"""
REPETITION = "repeated_trigrams"
MEASURED_BETA = 1e-8
"""least KL weight of a trial: too small to change a step, but then the KL divergence is measured"""
MAX_KL, MAX_REPEATED = 1.0, 0.1
"""KL divergence from the start in nats a token, and rise of the share of repeated trigrams, above which a model gains
reward with text that is no language any more"""
ENOUGH = 0.9
"""share of the best gain that makes a smaller rate the better choice"""


@dataclass(frozen=True)
class Trial:
    """What one rate did in a trial; a rate of 0 stands for the weights at the start.

    `reward`, `tokens`, `repeated` and `kl` are means over the last quarter of the trial's steps, of sampled
    completions; the values in `greedy` are those of a validation, without the prefix. None where a value is missing.
    """

    rate: float
    reward: float | None
    reward_std: float
    """mean standard deviation within a group"""
    tokens: float
    repeated: float
    """share of trigrams that a completion has said before"""
    kl: float | None
    skipped: int
    """steps whose gradient was not finite"""
    greedy: Mapping[str, float]

    def gains(self, start: Trial) -> tuple[float | None, float | None]:
        """Return what sampled and greedy reward gained, None for one without a value."""
        pairs = (self.reward, start.reward), (self.greedy.get("reward"), start.greedy.get("reward"))
        sampled, greedy = (None if after is None or before is None else after - before for after, before in pairs)
        return sampled, greedy

    def gain(self, start: Trial) -> float | None:
        """Return the smaller one of the gains; None where an update was not finite or a reward is missing."""
        gains = self.gains(start)[: 2 if "reward" in start.greedy else 1]
        known = [gain for gain in gains if gain is not None and isfinite(gain)]
        return min(known) if len(known) == len(gains) and not self.skipped else None

    def keeps_language(self, start: Trial) -> bool:
        """Return whether the text stayed near that of the start: its KL divergence and its repetitions are small."""
        before, after = (max(trial.repeated, trial.greedy.get(REPETITION, 0.0)) for trial in (start, self))
        return (self.kl is not None and self.kl <= MAX_KL) and after - before <= MAX_REPEATED


@dataclass
class Sweep:
    """The trials of a sweep so far."""

    stage: str
    steps: int
    samples: int
    """completions that a mean of sampled rewards is over"""
    start: Trial
    trials: list[Trial] = field(default_factory=list)

    @property
    def noise(self) -> float:
        """Two standard errors of a mean of sampled rewards: a gain below it may be chance."""
        return 2 * self.start.reward_std / sqrt(self.samples)

    def recommended(self) -> Trial | None:
        """Return, of the trials that keep the language, the one with the smallest rate that gains at least `ENOUGH` of
        the best gain: a larger one would only move the model further from its start. None where no gain is above the
        noise."""
        sound = [trial for trial in self.trials if trial.keeps_language(self.start)]
        gains = [(trial, gain) for trial in sound if (gain := trial.gain(self.start)) is not None]
        best = max((gain for _, gain in gains), default=0.0)
        good = [trial for trial, gain in gains if gain > self.noise and gain >= ENOUGH * best]
        return min(good, key=lambda trial: trial.rate, default=None)

    def verdict(self, trial: Trial) -> str:
        """Return what a trial shows, in a few words."""
        if trial is self.recommended():
            return "recommended"
        if trial.skipped:
            return "not finite"
        (sampled, greedy), noise = trial.gains(self.start), self.noise
        known = [gain for gain in (sampled, greedy) if gain is not None]
        if sampled is not None and sampled > noise and greedy is not None and greedy < -noise:
            return "samples better, greedy worse"
        if any(gain < -noise for gain in known):
            return "worse"
        if all(gain <= noise for gain in known):
            return "no change"
        return "better" if trial.keeps_language(self.start) else "reward without language"

    def record(self, config: Config, command: str | None) -> dict[str, Any]:
        """Return all that was measured, for JSON, with the command that trains with the recommended rate."""
        best = self.recommended()
        found = {
            "schema_version": 1,
            "model": config.model.path,
            "data": config.data.path,
            "task": config.task.name,
            "adapter": config.model.adapter,
            "stage": self.stage,
            "steps": self.steps,
            "seed": config.train.seed,
            "noise": self.noise,
            "start": asdict(self.start),
            "trials": [asdict(trial) | {"gain": trial.gain(self.start)} for trial in self.trials],
            "recommended": best.rate if best else None,
            "command": command,
        }
        return dict(finite(found))


class TrialKeeper(Keeper):
    """Keeps the metrics of a trial's steps, and shows them."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self.rows: list[Mapping[str, float]] = []
        self.label, self.earlier = "", 0
        """the rate as text, and the steps of the trials before: what the progress bar shows"""

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.rows.append(metrics)
        self.progress.step(self.label, self.earlier + self.at.step, metrics)


def default_rates(rate: float) -> tuple[float, ...]:
    """Return the rates to try around the rate that a run would have, with one digit each."""
    return tuple(float(f"{rate * factor:.0e}") for factor in FACTORS)


def sweep_rates(
    config: Config, rates: Sequence[float], steps: int, progress: Progress, started: Callable[[Sweep], None]
) -> Sweep:
    """Try each of the rates (empty: `default_rates`) for so many steps, and return the sweep; `started` gets it when
    its first trial begins. Workers are not used: they would get weights that are thrown away.

    Raises InterruptedRun after Ctrl-C, when the sweep has the finished trials; UsageError with several ranks; and the
    errors of training.
    """
    if not distributed.alone():
        raise UsageError("--find-lr runs in one process", hint="start it without mlx.launch")
    config = _measured(config)
    keeper = TrialKeeper(progress)
    session = Session(config, keeper)
    progress.phase(f"loading {config.model.path} and {config.data.path}")
    with (
        stop_signals(session.request_stop, "finishing the step, then showing the rates tried so far"),
        use_hook(WaitHook(session.should_stop, keeper.notify, progress=lambda text: None)),
    ):
        setup = prepare(config)
        for warning in setup.warnings:
            progress.warn(warning)
        stage = next(iter(setup.config.stages))
        source = LocalSource(setup.policy, setup.config)
        rates = sorted(rates) or default_rates(setup.config.stages[stage].learning_rate)
        start = snapshot(setup.policy.model)
        _begin_trial(session, keeper, setup, stage, 0.0, steps, start)
        progress.phase(f"measuring the weights at the start, stage {stage}")
        sweep = _measure_start(session, keeper, setup, source)
        started(sweep)
        progress.plan([(f"{rate:g}", steps) for rate in rates], setup.task.evaluation.watched, part="rate")
        for rate in rates:
            progress.phase(f"trying learning rate {rate:g}, {steps} steps")
            _begin_trial(session, keeper, setup, stage, rate, steps, start)
            try:
                train_stage(session, setup, source)
                sweep.trials.append(_measure(session, keeper, setup, rate))
            except InterruptedRun:
                done = f"{len(sweep.trials)} of {len(rates)} rates"
                raise InterruptedRun(f"sweep stopped after {done}; nothing was trained", hint=None) from None
            finally:
                setup.policy.model.update(start)
                session.at.in_step = False
    return sweep


def _measured(config: Config) -> Config:
    """Return the settings of a sweep: without workers, and with a KL term in the first stage, for whose reference the
    memory is planned too."""
    name, stage = next(iter(config.stages.items()))
    stages = {**config.stages, name: replace(stage, beta=max(stage.beta, MEASURED_BETA))}
    return replace(config, workers=replace(config.workers, urls=""), stages=stages)


def _of_trial(config: Config, name: str, rate: float, steps: int) -> Config:
    """Return the settings of a trial: this stage with a constant rate."""
    tried = replace(config.stages[name], learning_rate=rate, schedule="constant", warmup_steps=0, steps=steps)
    return replace(config, stages={**config.stages, name: tried})


def _last(steps: int) -> Iterator[int]:
    """The steps of a trial, from 0, that its means are over."""
    yield from range(steps - ceil(steps / 4), steps)


def _begin_trial(
    session: Session, keeper: TrialKeeper, setup: Setup, stage: str, rate: float, steps: int, start: Any
) -> None:
    """Prepare the session for a trial of this rate, whose KL term compares with the weights `start`."""
    at = session.at
    keeper.earlier += at.stage_step if keeper.label else 0
    keeper.rows, keeper.label = [], f"{rate:g}" if rate else ""
    session.setup, session.config = setup, _of_trial(setup.config, stage, rate, steps)
    at.stage, at.plan, at.step, at.stage_step = stage, {stage: steps}, 0, 0
    session.reference = start


def _measure_start(session: Session, keeper: TrialKeeper, setup: Setup, source: Source) -> Sweep:
    """Return a sweep without trials: what the weights at the start sample in the steps that trials are judged by."""
    config, stage = session.config, _stage(session)
    steps, order = session.at.plan[session.at.stage], open_order(session, setup)
    sampler = BatchSampler(
        source,
        order,
        config,
        stage,
        setup.task.rewards.signals,
        setup.measure,
        first_step=1,
        steps=steps,
        run_steps=steps,
    )
    batches = [sampler.collect(k)[0] for k in _last(steps)]
    keeper.rows = [step_metrics(batch, np.zeros_like(batch.totals)) for batch in batches]
    samples = sum(int(np.isfinite(batch.totals).sum()) for batch in batches)
    return Sweep(session.at.stage, steps, max(samples, 1), _measure(session, keeper, setup, 0.0))


def _measure(session: Session, keeper: TrialKeeper, setup: Setup, rate: float) -> Trial:
    """Return the trial that the session has finished."""
    rows = keeper.rows[-len([*_last(session.at.plan[session.at.stage])]) :]
    found = validate(session, setup, _stage(session))
    return Trial(
        rate=rate,
        reward=_mean(rows, "reward"),
        reward_std=_mean(rows, "reward_std") or 0.0,
        tokens=_mean(rows, "completions/mean_length") or 0.0,
        repeated=_mean(rows, f"completions/{REPETITION}") or 0.0,
        kl=_mean([row for row in keeper.rows if "kl" in row][-len(rows) :], "kl") if rate else 0.0,
        skipped=sum(bool(row.get("update/skipped")) for row in keeper.rows),
        greedy={key.removeprefix("validation/"): value for key, value in found.items()},
    )


def _stage(session: Session) -> StageConfig:
    return session.config.stages[session.at.stage]


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return fmean(values) if values else None
