"""What keeps a training: nothing, or the run directory and the screen."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smolsum.config.differences import rewarded
from smolsum.config.sections import Config
from smolsum.errors import InterruptedRun, MachineError, PluginError, SmolsumError, UnreachableError
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.progress import Progress
from smolsum.grpo.resume import StageCheckpoints
from smolsum.grpo.setup.prepare import Setup
from smolsum.policy.load import FUSED, Policy
from smolsum.results.evaluate.tables import closing_tables, missing_warnings
from smolsum.rollout.sampling_count import SamplingCount, ShowCount
from smolsum.runs.checkpoints import Checkpoint, Validation, list_checkpoints, validation
from smolsum.runs.control import Heartbeat, is_requested, take_request, wait_while_paused, withdraw_all
from smolsum.runs.digests import record_files
from smolsum.runs.mirror import Mirror
from smolsum.runs.paths import RunPaths, acquire, create_run, last_attempt, open_run, planned_name
from smolsum.runs.reader import Run
from smolsum.runs.records import NOTES, RunInfo, State
from smolsum.runs.standstill import ADVICE, STEPS, standstill
from smolsum.runs.trackers import Trackers
from smolsum.runs.writer import RunWriter, check_resume, copy_plugins, discard_after, recorded_info, write_info
from smolsum.tasks.plugin_files import plugin_copies

COUNT_S = 1.0
"""Seconds between two counts of completions in status.json."""


@dataclass
class Position:
    """Where a training is."""

    stage: str = ""
    step: int = 0
    """the optimizer step under way, or the last one that is finished, counted from 1 over all stages"""
    stage_step: int = 0
    """the finished optimizer steps of this stage: less by one than the step's place in it while that is under way"""
    in_step: bool = False
    """whether a step is under way"""
    plan: Mapping[str, int] = field(default_factory=dict)
    """the number of steps by stage"""


class Keeper:
    """Keeps nothing, and shows warnings only: for a trial, and for every rank but the first, which follows that one."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.at = progress, Position()

    def recorded_info(self) -> RunInfo | None:
        """Return run.json of a resumed run, which may lack it; None for a new run."""
        return None

    def begin(self, setup: Setup, fingerprints: Mapping[str, str], started: Callable[[Path], None]) -> None:
        """Make or take over the run directory, give it to `started`, and find out where to continue."""

    def begin_stage(self) -> None:
        """Say that the stage's steps begin."""

    def restore(self, policy: Policy) -> Checkpoint | None:
        """Give the policy the weights of the checkpoint from which the stage continues, or with which another run ended
        it, and return that; None where the stage begins."""
        return None

    def checkpoint(self, step: int) -> Path | None:
        """Return the folder of the checkpoint of a step."""
        return None

    def validates(self, k: int) -> bool:
        """Return whether the stage's step `k` (from 0) ends with a validation."""
        return False

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Take the metrics of a finished step, and a row for each rollout."""

    def save(self, policy: Policy, optimizer: Optimizer, state: Mapping[str, Any], *, leaving: bool) -> None:
        """Save a checkpoint if one is due, or if the run is `leaving`: about to pause or stop."""

    def counting(self, doing: str, phase: str, stage: str = "") -> AbstractContextManager[ShowCount]:
        """Show completions while they are sampled, by the function that is given."""
        return nullcontext(lambda count: None)

    def show_rollouts(self, count: SamplingCount) -> None:
        """Show the rollouts of the step while they are sampled."""

    def show_update(self, done: int, total: int) -> None:
        """Show how many groups of the step have their gradient."""

    def is_requested(self) -> bool:
        """Return whether a pause or a stop is requested in the run directory."""
        return False

    def takes_stop(self) -> bool:
        """Return whether a stop is requested in the run directory, and take the request away."""
        return False

    def wait_while_paused(self, stopping: Callable[[], bool]) -> None:
        """Wait as long as a pause is requested; the other ranks wait for the first one."""

    def stopped(self) -> InterruptedRun:
        """Return the error that ends the training after a stop; the last step is finished and saved."""
        return InterruptedRun(f"stopped after step {self.at.step}")

    def finish(self) -> None:
        """Mark the training as finished."""

    def notify(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """Tell the user of an event of this kind (`runs/records.py` has them)."""
        self.progress.warn(message)


class RunKeeper(Keeper):
    """Keeps one attempt at a run: its directory with metrics, rollouts, checkpoints and events, its mirror and
    trackers, and the screen.

    `results` are the metrics of the evaluations; `interruptible` is set while one is made.
    """

    def __init__(
        self, config: Config, paths: RunPaths | None, progress: Progress, files: ExitStack, mirror: Mirror
    ) -> None:
        super().__init__(progress)
        self.config, self.runs_dir = config, Path(config.run.dir)
        self.results: dict[str, Mapping[str, float | None]] = {}
        self.interruptible = False
        self._resumed, self._paths, self._files, self._mirror = paths is not None, paths, files, mirror
        self._trackers = Trackers(config.run.track)
        self._writer: RunWriter | None = None
        self._validation: Validation = {}
        self._count_shown_at = self._update_began = 0.0
        self._own_run: Run | None = None  # reads what this keeper writes
        self._standstill_told = ""  # the stage of which it was said

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
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[RunKeeper]:
        """The keeper of a new run or, with `resume`, of an existing one. Any way that it ends is written down."""
        runs_dir = Path(config.run.dir)
        with ExitStack() as files:
            paths = open_run(resume, runs_dir) if resume else None
            if paths is None and config.run.name and (runs_dir / config.run.name).exists():
                create_run(runs_dir, config.run.name)  # refuses before anything is loaded
            keeper = cls(config, paths, progress, files, Mirror(config.run.mirror))
            if paths is None and config.run.name:
                keeper._mirror.expect_none(config.run.name)
            try:
                yield keeper
            except InterruptedRun:  # `stopped` has written it down
                raise
            except BaseException as error:
                keeper._fail(error)
                if isinstance(error, KeyboardInterrupt) and keeper._writer:
                    raise InterruptedRun(
                        "interrupted; the run can continue from what was last saved", hint=keeper.paths.resume_command
                    ) from error
                raise
            finally:
                with suppress(SmolsumError):  # a full disk is reported already
                    keeper._trackers.settle(progress.phase)
                    keeper._mirror.settle(keeper.notify, progress.phase)

    def recorded_info(self) -> RunInfo | None:
        return recorded_info(self.paths) if self._resumed else None

    def begin(self, setup: Setup, fingerprints: Mapping[str, str], started: Callable[[Path], None]) -> None:
        """Make or take over the run directory, give it to `started`, and find out where to continue. Raises UsageError
        where a resumed run would train something else."""
        self.config, plan = setup.config, dict(self.at.plan)
        if self._paths is None:
            name = planned_name(self.config, setup.task.presets.strategies, self.runs_dir)
            self._mirror.expect_none(name)
            self._paths = create_run(self.runs_dir, name)
        self._files.enter_context(acquire(self.paths))
        attempt = last_attempt(self.paths) + 1
        if self._resumed and self.paths.info.exists():
            check_resume(self.paths, plan, dict(fingerprints), setup.provenance)
        else:
            write_info(self.paths, self.config, plan, dict(fingerprints), setup.provenance)
            copy_plugins(self.paths, plugin_copies(setup.plugins))
        record_files(self.paths, self.paths.config, self.paths.info, *sorted(self.paths.plugins.rglob("*")))
        self._saved = StageCheckpoints(self.paths, self.config, plan, fingerprints, busy=lambda: self._mirror.busy)
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
        # a stage's only signal is its reward, which is shown anyway
        rewarded = [stage.trained_rewards for stage in self.config.stages.values()]
        signals = {name: (f"rewards/{name}/mean",) for weights in rewarded if len(weights) > 1 for name in weights}
        self.progress.plan(list(plan.items()), {**signals, **setup.task.evaluation.watched})
        self.writer.status("starting", step=point, phase="loaded", stage=next(iter(plan)))
        self._trackers.begin(self.paths, self.config.run.track_project, self.notify)
        started(self.paths.root)
        self._setup = setup

    def begin_stage(self) -> None:
        self.progress.phase(f"training stage {self.at.stage}")
        if self.at.stage_step == 0:
            steps, weights = self.at.plan[self.at.stage], self.config.stages[self.at.stage].trained_rewards
            why = f", rewarded for {rewarded(weights)}" if weights else ""
            self.writer.event("stage", f"stage {self.at.stage} begins: {steps} steps{why}", step=self.at.step)
        self._status("running", self.at.stage, phase="training")

    def restore(self, policy: Policy) -> Checkpoint | None:
        found = self._find_checkpoint()
        if found:
            self._saved.load(self.at.stage, found, policy)
        return found

    def _find_checkpoint(self) -> Checkpoint | None:
        stage = self.at.stage
        own = self._saved.own(stage)
        if own or (found := self._saved.of_another(stage, self.runs_dir)) is None:
            return own
        copied, origin = found
        self.notify(
            "stage_reused",
            f"stage {stage} was trained before, with the same model, data and settings: "
            f"its {self.at.plan[stage]} steps are taken from {origin}",
            copied.step,
            stage=stage,
            origin=origin.parents[1].name,
        )
        return copied

    def checkpoint(self, step: int) -> Path | None:
        return self.paths.checkpoint(step)

    def validates(self, k: int) -> bool:
        every = self.config.train.validate_every
        return bool(every) and (k + 1) % every == 0

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Write a finished step to the run directory and to the screen."""
        stage, step, stage_step = self.at.stage, self.at.step, self.at.stage_step
        self.writer.completions(step, rollouts)
        self.writer.metrics({"step": step, "stage": stage, "stage_step": stage_step, **metrics})
        self._status("running", stage, phase="training")
        self._mirror.pass_on(self.notify)
        self._trackers.look(step)
        self.progress.step(stage, step, metrics)
        shown = {key.removeprefix("validation/"): v for key, v in metrics.items() if key.startswith("validation/")}
        self._validation = validation(metrics, self._setup.task.evaluation.score) if shown else {}
        if shown:
            self.progress.validation(step, shown)
        if stage_step % STEPS == 0 and self._standstill_told != stage:
            self._check_standstill()
        if metrics.get("update/skipped"):
            message = f"step {step} had a gradient that is not finite; the weights stay as they were"
            self.notify("update_skipped", message)

    def _check_standstill(self) -> None:
        """Say so, once in a stage, if the policy stands still."""
        self._own_run = self._own_run or Run(self.paths)
        while self._own_run.poll() and self._own_run.behind():
            pass
        if sentence := standstill(self._own_run):
            self._standstill_told = self.at.stage
            self.notify("stands_still", sentence, hint=ADVICE)

    def save(self, policy: Policy, optimizer: Optimizer, state: Mapping[str, Any], *, leaving: bool) -> None:
        step = self.at.step
        if self._saved.save(self.at.stage, step, policy, optimizer, self._validation, state=state, anyway=leaving):
            self.writer.event("checkpoint", f"checkpoint of step {step} saved", step=step)
            self._mirror.wake()

    @contextmanager
    def counting(self, doing: str, phase: str, stage: str = "") -> Iterator[ShowCount]:
        """Show completions on the screen and in status.json while they are sampled, by the function that is given."""

        def show(count: SamplingCount) -> None:
            self.progress.counting(doing, count)
            self._show_count(count, phase, stage or self.at.stage)

        yield show
        self._status("running", stage or self.at.stage, phase=phase)

    def show_rollouts(self, count: SamplingCount) -> None:
        step = self.at.step
        self.progress.counting("sampling", count, of=f"step {step}", then=f"update of step {step}")
        self._show_count(count, "training", self.at.stage)

    def show_update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not done:
            self._update_began = now
        left_s = (now - self._update_began) / done * (total - done) if done else None
        count = SamplingCount(done, total, left_s=left_s, noun="groups")
        self.progress.counting("update", count, of=f"of step {self.at.step}")
        if done:  # a status for each short step would say nothing
            self._show_count(count, "updating", self.at.stage)

    def _show_count(self, count: SamplingCount, phase: str, stage: str) -> None:
        now = time.monotonic()
        if count.left_s is None or now - self._count_shown_at >= COUNT_S:
            self._count_shown_at = now
            self._status("running", stage, phase=phase, count=count)

    def finish(self) -> None:
        """Mark the run as finished and show the evaluations side by side."""
        task, n, step = self._setup.task, len(self._setup.prompts["test"]), self.at.step
        tables = closing_tables(task, self.results, f"test split, {n} prompts, greedy")
        self.progress.results(tables, missing_warnings(task, self.results, n, self.paths))
        self.writer.status("finished", step=step, phase="finished", stage=list(self.at.plan)[-1])
        self.writer.event("finished", f"finished at step {step}", step=step)

    def is_requested(self) -> bool:
        return is_requested(self.paths, "pause") or is_requested(self.paths, "stop")

    def takes_stop(self) -> bool:
        return take_request(self.paths, "stop")

    def wait_while_paused(self, stopping: Callable[[], bool]) -> None:
        """Wait as long as a pause is requested. Everything is saved by then."""
        if not is_requested(self.paths, "pause") or stopping():
            return
        self.notify("paused", f"paused after step {self.at.step}; space in smolsum watch resumes it")
        self._status("paused", phase="paused")
        if wait_while_paused(self.paths, stopping):
            self.notify("resumed", f"resumed after step {self.at.step}")
            self._status("running", phase="training")

    def stopped(self) -> InterruptedRun:
        step = self.at.step
        self.writer.status("interrupted", step=step, phase="stopped", stage="")
        self.writer.event("interrupted", f"stopped by the user after step {step}", step=step)
        return InterruptedRun(f"stopped after step {step}; a checkpoint is saved", hint=self.paths.resume_command)

    def notify(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """Write an event and show it."""
        self.writer.event(kind, message, step=self.at.step if step is None else step, **fields)
        if kind in NOTES:
            self.progress.note(message)
        else:
            self.progress.warn(f"{message}; {fields['hint']}" if fields.get("hint") else message)

    def _status(self, state: State, stage: str = "", *, phase: str, count: SamplingCount | None = None) -> None:
        """Write what the run is doing, its number of steps, and the count of what it samples to status.json."""
        # what counts in a step are its rollouts: its number is taken, but it is not finished
        step = self.at.step - (self.at.in_step and count is not None)
        counted = {
            "completions": count.total, "done": count.done, "tok_s": count.tok_s, "left_s": count.left_s,
        } if count else {}  # fmt: skip
        self.writer.status(state, step=step, phase=phase, stage=stage, steps=sum(self.at.plan.values()), **counted)

    def _fail(self, error: BaseException) -> None:
        """Write the failure down, as far as the disk allows. An error that may pass, or that came after the first step,
        gets the command that resumes the run as its hint."""
        if self._writer is None:
            return
        passes = isinstance(error, UnreachableError) or (self.at.step and not isinstance(error, MachineError))
        resume = self.paths.resume_command
        if isinstance(error, PluginError):
            error.hint = "; ".join(filter(None, (error.hint, self._restart())))
        elif isinstance(error, SmolsumError) and passes and resume not in (error.hint or ""):
            error.hint = "; ".join(filter(None, (error.hint, f"{resume} continues the run")))
        try:
            self.writer.failure(error, self.at.step)
        except SmolsumError:
            self.progress.warn("the failure could not be written to the run directory")

    def _restart(self) -> str:
        """Return how to begin again with corrected code, since a run resumes only with the code that it began with."""
        new = f"corrected code needs a new run: {self.paths.restart_command()}"
        weights = [last.path / part for last in list_checkpoints(self.paths)[-1:] for part in (FUSED, "")]
        if whole := [path for path in weights if (path / "config.json").is_file()]:
            new += (
                f", which takes over finished stages (--model {shlex.quote(str(whole[0]))} begins with these weights)"
            )
        return f"{new}; {self.paths.resume_command} continues if the cause was outside of the file"
