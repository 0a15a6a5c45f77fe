"""One attempt at a run: its directory, what it resumes or reuses, its checkpoints, evaluations and end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.console import stop_signals
from smolsum.errors import InterruptedRun, MachineError, PluginError, SmolsumError, UnreachableError
from smolsum.evaluate.tables import headline_table, missing_warnings
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import distributed
from smolsum.policy.load import FUSED, snapshot
from smolsum.rollout.sampling_count import SamplingCount, ShowCount
from smolsum.runs import run_info
from smolsum.runs.checkpoints import Checkpoint, Validation, list_checkpoints, validation
from smolsum.runs.control import Heartbeat, is_requested, take_request, wait_while_paused, withdraw_all
from smolsum.runs.mirror import Mirror
from smolsum.runs.paths import RunPaths, acquire, create_run, last_attempt, open_run, planned_name
from smolsum.runs.reader import Run
from smolsum.runs.records import NOTES, RunInfo, State
from smolsum.runs.run_writer import RunWriter, discard_after
from smolsum.runs.standstill import ADVICE, STEPS, standstill
from smolsum.runs.trackers import Trackers
from smolsum.tasks.plugin_files import plugin_copies
from smolsum.training.progress import Progress, StepClock
from smolsum.training.resume import OPTIMIZER, StageCheckpoints, fingerprints, read_state, span
from smolsum.training.setup import Setup
from smolsum.training.system_metrics import SystemMeter

COUNT_S = 1.0
"""Seconds between two counts of completions in status.json."""


class Session:
    """One attempt at a run, on the rank that owns the run directory and the screen.

    `stage` is the current stage, `step` counts optimizer steps over all stages, `stage_step` those of the current one,
    and `plan` holds the number of steps by stage. `state` is what the stage needs to go on apart from weights and
    optimizer: values in JSON by name, which each checkpoint keeps. `reference` are the parameters (or adapters) that
    the stage's KL term compares with (`grpo.reference`); None where beta is 0. `results` are the metrics of the
    evaluations; `interruptible` is set while one is made.
    """

    evaluates = True

    def __init__(
        self, config: Config, paths: RunPaths | None, progress: Progress, files: ExitStack, mirror: Mirror
    ) -> None:
        self.config, self.runs_dir, self.progress = config, Path(config.run.dir), progress
        self.stage, self.step, self.stage_step = "", 0, 0
        self.clock, self._system = StepClock(), SystemMeter()
        self.stop_requested = self.in_step = False
        self.results: dict[str, Mapping[str, float | None]] = {}
        self._resumed, self._paths, self._files, self._mirror = paths is not None, paths, files, mirror
        self._trackers = Trackers("")
        self._writer: RunWriter | None = None
        self._restored: Checkpoint | None = None
        self.state: dict[str, Any] = {}
        self.reference = self._run_start = None
        self._validation: Validation = {}
        self._leaving = self.interruptible = False
        self._counted = 0.0
        self._written: Run | None = None
        self._still = ""

    @property
    def paths(self) -> RunPaths:
        """The run directory, from `begin` on."""
        assert self._paths is not None
        return self._paths

    @property
    def writer(self) -> RunWriter:
        """The writer of the run directory, from `begin` on."""
        assert self._writer is not None
        return self._writer

    @classmethod
    @contextmanager
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[Session]:
        """A session for a new run or, with `resume`, for an existing one. Any way that it ends is written down."""
        runs_dir = Path(config.run.dir)
        with ExitStack() as files:
            paths = open_run(resume, runs_dir) if resume else None
            if paths is None and config.run.name and (runs_dir / config.run.name).exists():
                create_run(runs_dir, config.run.name)  # refuses before anything is loaded
            session = cls(config, paths, progress, files, Mirror(config.run.mirror))
            session._trackers = Trackers(config.run.track)
            if paths is None and config.run.name:
                session._mirror.expect_none(config.run.name)
            try:
                with stop_signals(session.request_stop):
                    yield session
            except InterruptedRun:
                raise
            except BaseException as error:
                session._fail(error)
                if isinstance(error, KeyboardInterrupt) and session._writer:
                    raise InterruptedRun(
                        "interrupted; the run can go on from what was last saved", hint=session.paths.resume_command
                    ) from error
                raise
            finally:
                with suppress(SmolsumError):  # a full disk is reported already
                    session._trackers.settle(progress.phase)
                    session._mirror.settle(session.notify, progress.phase)

    def begun_with(self) -> RunInfo | None:
        """Return run.json of a resumed run, which may lack it; None for a new run."""
        return run_info.begun_with(self.paths) if self._resumed else None

    def begin(self, setup: Setup, plan: Mapping[str, int], begun: Callable[[Path], None]) -> None:
        """Make or take over the run directory, give it to `begun`, and find out where to go on. Raises UsageError where
        another rank would train something else, or where a resumed run would."""
        self._compare_ranks(setup, plan)
        if self._paths is None:
            name = planned_name(self.config, setup.task.presets.strategies, self.runs_dir)
            self._mirror.expect_none(name)
            self._paths = create_run(self.runs_dir, name)
        self._files.enter_context(acquire(self.paths))
        attempt = last_attempt(self.paths) + 1
        if self._resumed and self.paths.info.exists():
            run_info.check_resume(self.paths, self.plan, self.fingerprints, setup.provenance)
        else:
            run_info.write(self.paths, self.config, self.plan, self.fingerprints, setup.provenance)
            run_info.copy_plugins(self.paths, plugin_copies(setup.plugins))
        self._saved = StageCheckpoints(
            self.paths, self.config, self.plan, self.fingerprints, busy=lambda: self._mirror.busy
        )
        point, damaged = self._saved.point, self._saved.damaged
        if self._resumed:
            discard_after(self.paths, point)
        self._mirror.begin(self.paths)
        self._writer = self._files.enter_context(RunWriter(self.paths, attempt))
        withdraw_all(self.paths)  # requests to an earlier attempt
        self._files.enter_context(Heartbeat(self.paths, self.writer, lambda: self.interruptible))
        self.writer.event("started", f"attempt {attempt} from step {point}", step=point)
        for path, problem in (damaged[step] for step in sorted(damaged) if step > point):
            message = f"checkpoint {path.name} is damaged and was passed over: {problem}"
            self.notify("checkpoint_damaged", message, point)
        self.notify("memory", setup.memory.line, point)
        for warning in setup.warnings:
            self.notify("warning", warning, point)
        rewarded = [stage.trained_rewards for stage in self.config.stages.values()]
        signals = {name: (f"rewards/{name}/mean",) for weights in rewarded if len(weights) > 1 for name in weights}
        self.progress.plan(list(self.plan.items()), {**signals, **setup.task.evaluation.watched})
        self.writer.status("starting", step=point, phase="loaded", stage=next(iter(self.plan)))
        self._trackers.begin(self.paths, self.config.run.track_project, self.notify)
        begun(self.paths.root)

    def _compare_ranks(self, setup: Setup, plan: Mapping[str, int]) -> None:
        """Take over the setup and compute the stages' fingerprints. Raises UsageError where another rank has others."""
        self.setup, self.config, self.plan = setup, setup.config, dict(plan)
        self.fingerprints = fingerprints(self.config, setup.provenance, plan)

    def restore(self, stage: str) -> bool:
        """Make this stage the current one and bring the model to where it begins or goes on; True if the stage is
        finished already. The end of a stage is copied from another run that trained the same one, except for the last
        stage."""
        self.stage, (start, end) = stage, span(self.plan, stage)
        self.reference = self._take_reference()
        self._restored = self._find_checkpoint()
        self.step = distributed.gathered(self._restored.step if self._restored else start)[0]
        self.stage_step = self.step - start
        if self._restored:
            self._saved.load(stage, self._restored, self.setup.policy)
        self.state = distributed.gathered(read_state(self._restored.path) if self._restored else {})[0]
        model = self.setup.policy.model
        model.update(distributed.from_first(model.trainable_parameters()))
        return self.step == end

    def _take_reference(self) -> Any:
        """Return the reference of the current stage, whose checkpoint is not loaded yet: the model is that which the
        stage begins with. A reference keeps a copy of the weights alive, so there is one only where a KL term reads it.
        """
        model, stages = self.setup.policy.model, self.config.stages
        beta = stages[self.stage].beta
        if self.config.grpo.reference == "stage":
            return snapshot(model) if beta > 0 else None
        if self.stage == next(iter(stages)) and any(stage.beta > 0 for stage in stages.values()):
            self._run_start = snapshot(model)
        return self._run_start if beta > 0 else None

    def _find_checkpoint(self) -> Checkpoint | None:
        """Return this run's checkpoint to go on from, or the end of the stage in another run."""
        own = self._saved.own(self.stage)
        if own or (found := self._saved.of_another(self.stage, self.runs_dir)) is None:
            return own
        copied, origin = found
        self.notify(
            "stage_reused",
            f"stage {self.stage} was trained before, with the same model, data and settings: "
            f"its {self.plan[self.stage]} steps are taken from {origin}",
            copied.step,
            stage=self.stage,
            origin=origin.parents[1].name,
        )
        return copied

    def load_optimizer(self, optimizer: Optimizer) -> None:
        """Restore the optimizer where the stage goes on from a checkpoint, or keeps the moments of the stage before."""
        kept = self.config.optimizer.between_stages == "kept" and self.step > 0 and self.stage_step == 0
        if self._restored or kept:
            folder = self._restored.path if self._restored else self.paths.checkpoint(self.step)
            optimizer.load(folder / OPTIMIZER, self.setup.policy.model)
        optimizer.follow_first()

    def steps(self, optimizer: Optimizer) -> Iterator[int]:
        """Yield the current stage's remaining steps, from 0. After each one, saves a checkpoint if one is due, then
        pauses or stops if the user of any rank requested it."""
        self._announce_stage()
        for k in range(self.stage_step, self.plan[self.stage]):
            self.step, self.in_step = self.step + 1, True
            self.clock.start()
            self._system.start()
            yield k
            self._leaving = distributed.any_rank(self._is_requested())
            self._save(optimizer, self._validation)
            if self._leaving and distributed.any_rank(not self._pause()):
                self._interrupt()
            self.in_step = False

    def _announce_stage(self) -> None:
        self.progress.phase(f"training stage {self.stage}")
        self._status("running", self.stage, phase="training")

    @contextmanager
    def checkpoint_on_failure(self, optimizer: Optimizer) -> Iterator[None]:
        """Where a step cannot get its rollouts or rewards, save the steps before it, then raise the error."""
        try:
            yield
        except SmolsumError:
            self.step, self._leaving = self.step - 1, True
            if self.stage_step:
                self._save(optimizer, {})
            if self.should_stop():
                self._interrupt()
            raise

    def validates(self, k: int) -> bool:
        """Return whether the stage's step `k` (from 0) ends with a validation."""
        every = self.config.train.validate_every
        return bool(every) and (k + 1) % every == 0

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Write a finished step to the run directory and to the screen: its metrics with the clock's times and the
        process's load, and a row for each rollout."""
        self.stage_step += 1
        metrics = {**metrics, **self.clock.times(), **self._system.metrics()}
        self.writer.completions(self.step, rollouts)
        self.writer.metrics({"step": self.step, "stage": self.stage, "stage_step": self.stage_step, **metrics})
        self._status("running", self.stage, phase="training")
        self._mirror.pass_on(self.notify)
        self._trackers.look(self.step)
        self.progress.step(self.stage, self.step, metrics)
        shown = {key.removeprefix("validation/"): v for key, v in metrics.items() if key.startswith("validation/")}
        self._validation = validation(metrics, self.setup.task.evaluation.score) if shown else {}
        if shown:
            self.progress.validation(self.step, shown)
        if self.stage_step % STEPS == 0 and self._still != self.stage:
            self._check_standstill()
        if metrics.get("update/skipped"):
            message = f"step {self.step} had a gradient that is not finite; the weights stay as they were"
            self.notify("update_skipped", message)

    def _check_standstill(self) -> None:
        """Say so, once in a stage, if the policy stands still."""
        self._written = self._written or Run(self.paths)
        while self._written.poll() and self._written.behind():
            pass
        if sentence := standstill(self._written):
            self._still = self.stage
            self.notify("stands_still", sentence, hint=ADVICE)

    def _save(self, optimizer: Optimizer, validation: Validation) -> None:
        """Save a checkpoint if one is due (`StageCheckpoints.save`) or the run is about to pause or stop."""
        policy, anyway = self.setup.policy, self._leaving
        if self._saved.save(self.stage, self.step, policy, optimizer, validation, state=self.state, anyway=anyway):
            self.writer.event("checkpoint", f"checkpoint of step {self.step} saved", step=self.step)
            self._mirror.wake()

    @contextmanager
    def counting(self, doing: str, phase: str, stage: str = "") -> Iterator[ShowCount]:
        """Show completions on the screen and in status.json while they are sampled, by the function that is given."""

        def show(count: SamplingCount) -> None:
            self.progress.counting(doing, count)
            self._show_count(count, phase, stage or self.stage)

        yield show
        self._status("running", stage or self.stage, phase=phase)

    def show_rollouts(self, count: SamplingCount) -> None:
        """Show the rollouts of the step while they are sampled."""
        self.progress.counting("sampling", count, of=f"step {self.step}", then=f"update of step {self.step}")
        self._show_count(count, "training", self.stage)

    def _show_count(self, count: SamplingCount, phase: str, stage: str) -> None:
        now = time.monotonic()
        if count.left_s is None or now - self._counted >= COUNT_S:
            self._counted = now
            self._status("running", stage, phase=phase, count=count)

    def finish(self) -> None:
        """Mark the run as finished and show the evaluations side by side."""
        task, n = self.setup.task, len(self.setup.prompts["test"])
        head, rows = headline_table(task.evaluation.columns(*self.results.values()), self.results)
        warnings = missing_warnings(task, self.results, n, self.paths)
        self.progress.results(f"test split, {n} prompts, greedy", head, rows, warnings)
        self.writer.status("finished", step=self.step, phase="finished", stage=next(reversed(self.plan)))
        self.writer.event("finished", f"finished at step {self.step}", step=self.step)

    def _is_requested(self) -> bool:
        """Return whether this rank's user wants the run to pause or to stop."""
        return self.stop_requested or is_requested(self.paths, "pause") or is_requested(self.paths, "stop")

    def _pause(self) -> bool:
        """Wait as long as a pause is requested; False where the run should stop. Everything is saved by then, and the
        other ranks wait for this answer."""
        if is_requested(self.paths, "pause") and not self.should_stop():
            self.notify("paused", f"paused after step {self.step}; space in smolsum watch resumes it")
            self._status("paused", phase="paused")
            if wait_while_paused(self.paths, self.should_stop):
                self.notify("resumed", f"resumed after step {self.step}")
                self._status("running", phase="training")
        return not self.should_stop()

    def should_stop(self) -> bool:
        """Return whether the user stopped the run, with Ctrl-C or with `control/stop`, which is removed."""
        self.stop_requested = take_request(self.paths, "stop") or self.stop_requested
        return self.stop_requested

    def request_stop(self) -> bool:
        """Request a stop after the current step; False if no step is under way."""
        self.stop_requested = self.in_step
        return self.in_step

    def _interrupt(self) -> None:
        """End the run after a stop; the last step is finished and saved."""
        self.writer.status("interrupted", step=self.step, phase="stopped", stage="")
        self.writer.event("interrupted", f"stopped by the user after step {self.step}", step=self.step)
        raise InterruptedRun(f"stopped after step {self.step}; a checkpoint is saved", hint=self.paths.resume_command)

    def notify(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """Write an event and show it."""
        self.writer.event(kind, message, step=self.step if step is None else step, **fields)
        if kind in NOTES:
            self.progress.note(message)
        else:
            self.progress.warn(f"{message}; {fields['hint']}" if fields.get("hint") else message)

    def _status(self, state: State, stage: str = "", *, phase: str, count: SamplingCount | None = None) -> None:
        """Write what the run is doing, its number of steps, and the count of what it samples to status.json."""
        step = self.step - (self.in_step and count is not None)  # it is not finished
        counted = {
            "completions": count.total, "done": count.done, "tok_s": count.tok_s, "left_s": count.left_s,
        } if count else {}  # fmt: skip
        self.writer.status(state, step=step, phase=phase, stage=stage, steps=sum(self.plan.values()), **counted)

    def _fail(self, error: BaseException) -> None:
        """Write the failure down, as far as the disk allows. An error that may pass, or that came after the first step,
        gets the command that resumes the run as its hint."""
        if self._writer is None:
            return
        passes = isinstance(error, UnreachableError) or (self.step and not isinstance(error, MachineError))
        resume = self.paths.resume_command
        if isinstance(error, PluginError):
            error.hint = "; ".join(filter(None, (error.hint, self._restart())))
        elif isinstance(error, SmolsumError) and passes and resume not in (error.hint or ""):
            error.hint = "; ".join(filter(None, (error.hint, f"{resume} goes on with the run")))
        try:
            self.writer.failure(error, self.step)
        except SmolsumError:
            self.progress.warn("the failure could not be written to the run directory")

    def _restart(self) -> str:
        """Return how to begin again with corrected code, since a run goes on only with the code that it began with."""
        new = f"corrected code needs a new run: {self.paths.restart_command()}"
        weights = [last.path / part for last in list_checkpoints(self.paths)[-1:] for part in (FUSED, "")]
        if whole := [path for path in weights if (path / "config.json").is_file()]:
            new += (
                f", which takes over finished stages (--model {shlex.quote(str(whole[0]))} begins with these weights)"
            )
        return f"{new}; {self.paths.resume_command} goes on if the cause was outside of the file"


class FollowerSession(Session):
    """The session of every other rank: it trains its share, follows the first rank, and writes nothing."""

    evaluates = False

    @classmethod
    @contextmanager
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[Session]:
        """A session without a run directory, which shows only warnings and errors."""
        progress.close()
        session = cls(config, None, progress, ExitStack(), Mirror(""))
        with stop_signals(session.request_stop):
            yield session

    def begin(self, setup: Setup, plan: Mapping[str, int], begun: Callable[[Path], None]) -> None:
        self._compare_ranks(setup, plan)

    def _find_checkpoint(self) -> None:
        return None

    def load_optimizer(self, optimizer: Optimizer) -> None:
        optimizer.follow_first()

    def _announce_stage(self) -> None:
        pass

    def validates(self, k: int) -> bool:
        return False

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.stage_step += 1

    def _save(self, optimizer: Optimizer, validation: Validation) -> None:
        pass

    def show_rollouts(self, count: SamplingCount) -> None:
        pass

    @contextmanager
    def counting(self, doing: str, phase: str, stage: str = "") -> Iterator[ShowCount]:
        yield lambda count: None

    def finish(self) -> None:
        pass

    def _is_requested(self) -> bool:
        return self.stop_requested

    def _pause(self) -> bool:
        return not self.stop_requested  # the first rank waits, and this rank waits for its answer

    def should_stop(self) -> bool:
        return self.stop_requested

    def _interrupt(self) -> None:
        raise InterruptedRun(f"stopped after step {self.step}")

    def notify(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        self.progress.warn(message)
