"""The session of a rank that is not the first: it trains its share, is told where to go on, and writes nothing.

The lifetime of one attempt at a run: its directory, what is resumed or reused, checkpoints, evaluations, the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.console import stop_signals
from smolsum.errors import InterruptedRun, MachineError, SmolsumError, UnreachableError
from smolsum.evaluate.stages import score_stage
from smolsum.evaluate.tables import headline_table, lacking
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import ranks
from smolsum.policy.load import snapshot
from smolsum.runs import manifest
from smolsum.runs.checkpoints import Checkpoint, Validation
from smolsum.runs.control import Heartbeat, asked, forget, heed, hold
from smolsum.runs.journal import Journal, State, discard_after
from smolsum.runs.mirror.upload import Mirror
from smolsum.runs.paths import RunPaths, acquire, create_run, last_attempt, open_run, planned_name
from smolsum.runs.records import has_scores, read_summary
from smolsum.train.progress import Progress
from smolsum.train.resume import OPTIMIZER, StageCheckpoints, fingerprints, span
from smolsum.train.setup import Setup

NOTES = (
    "stage_reused", "paused", "resumed", "worker_up", "workers_back", "worker_resynced", "mirror", "mirror_back",
    "reader_back", "grader_back",
)  # fmt: skip
"""events that are no warnings"""


class Session:
    """One attempt. `step` counts optimizer steps over all stages, `stage_step` those of the stage at hand;
    `stage_start` are the parameters (or adapters) that it began with, for its KL term; None where beta is 0."""

    def __init__(
        self, config: Config, paths: RunPaths | None, progress: Progress, files: ExitStack, mirror: Mirror
    ) -> None:
        self.config, self.runs_dir, self.progress = config, Path(config.run.dir), progress
        self._mirror = mirror
        self.resumed = paths is not None
        self.step = self.stage_step = 0
        self.stop_requested = self.in_step = self._asked = self._evaluating = False
        self.results: dict[str, Mapping[str, float | None]] = {}
        self._paths, self._files = paths, files
        self._middle: Checkpoint | None = None

    @property
    def paths(self) -> RunPaths:
        """The run directory; there once `begin` was called."""
        assert self._paths is not None
        return self._paths

    @classmethod
    @contextmanager
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[Session]:
        """A session for a new run or, with `resume`, for one that exists; its end, however it comes, is written
        down."""
        runs_dir = Path(config.run.dir)
        with ExitStack() as files:
            paths = open_run(resume, runs_dir) if resume else None
            if paths is None and config.run.name and (runs_dir / config.run.name).exists():
                create_run(runs_dir, config.run.name)  # refuses before anything is loaded
            session = cls(config, paths, progress, files, Mirror(config.run.mirror))
            if paths is None and config.run.name:
                session._mirror.expect_none(config.run.name)
            try:
                with stop_signals(session.request_stop):
                    yield session
            except InterruptedRun:
                raise
            except BaseException as error:
                session._fail(error)
                if isinstance(error, KeyboardInterrupt) and "journal" in vars(session):
                    raise InterruptedRun(
                        "interrupted; the run can go on from what was last saved", hint=session.paths.resume_command
                    ) from error
                raise
            finally:
                with suppress(SmolsumError):  # a full disk has been told
                    session._mirror.settle(session.tell, progress.phase)

    def _prepare(self, materials: Setup, steps: Mapping[str, int]) -> None:
        """Fingerprints of the stages; UsageError where another rank would train something else."""
        self.materials, self.steps = materials, dict(steps)
        self.fingerprints = fingerprints(self.config, materials.provenance, steps)

    def begin(self, materials: Setup, steps: Mapping[str, int]) -> None:
        """Make or take over the run directory, and find out where to go on."""
        self._prepare(materials, steps)
        if self._paths is None:
            name = planned_name(self.config, self.runs_dir)
            self._mirror.expect_none(name)
            self._paths = create_run(self.runs_dir, name)
        self._files.enter_context(acquire(self.paths))
        attempt = last_attempt(self.paths) + 1
        if self.resumed and self.paths.info.exists():
            manifest.take_up(self.paths, self.steps, self.fingerprints, materials.provenance)
        else:
            manifest.write(self.paths, self.config, self.steps, self.fingerprints, materials.provenance)
        self._saved = StageCheckpoints(
            self.paths, self.config, self.steps, self.fingerprints, busy=lambda: self._mirror.busy
        )
        point, damaged = self._saved.point, self._saved.damaged
        if self.resumed:
            discard_after(self.paths, point)
        self._mirror.begin(self.paths)
        self.journal = self._files.enter_context(Journal(self.paths, attempt))
        forget(self.paths)  # what was asked of an earlier attempt
        self._files.enter_context(Heartbeat(self.paths, self.journal, lambda: self._evaluating))
        self.journal.event("started", f"attempt {attempt} from step {point}", step=point)
        for path, problem in (damaged[step] for step in sorted(damaged) if step > point):
            self.tell("checkpoint_damaged", f"checkpoint {path.name} is damaged and was passed over: {problem}", point)
        for warning in materials.warnings:
            self.tell("warning", warning, point)
        self.progress.plan(list(self.steps.items()), materials.task.watched)
        self.journal.status("starting", step=point, phase="loaded", stage=next(iter(self.steps)))

    def restore(self, name: str) -> bool:
        """Bring the model to where the stage begins or goes on; True if the stage is finished already.

        A stage that others follow is taken from another run that trained it, if there is one; the last one is what the
        run is for.
        """
        start, end = span(self.steps, name)
        # held only where it is read: it keeps a copy of the weights alive
        self.stage_start = snapshot(self.materials.policy.model) if self.config.stages[name].beta > 0 else None
        self._middle = self._find(name)
        self.step = ranks.gathered(self._middle.step if self._middle else start)[0]
        self.stage_step = self.step - start
        if self._middle:
            self._saved.load(name, self._middle, self.materials.policy)
        ranks.take_weights(self.materials.policy.model)
        return self.step == end

    def _find(self, name: str) -> Checkpoint | None:
        """The checkpoint to go on from: one of this run's, or the stage's end in another."""
        own = self._saved.own(name)
        if own or (found := self._saved.of_another(name, self.runs_dir)) is None:
            return own
        copied, origin = found
        self.tell(
            "stage_reused",
            f"stage {name} was trained before, with the same model, data and settings: "
            f"its {self.steps[name]} steps are taken from {origin}",
            copied.step,
        )
        return copied

    def validates(self, k: int) -> bool:
        """Whether the stage's step `k` (from 0) ends with a validation."""
        every = self.config.train.validate_every
        return bool(every) and (k + 1) % every == 0

    def load_optimizer(self, optimizer: Optimizer) -> None:
        """Restore the optimizer where a stage goes on in its middle, or begins with that of the stage before."""
        kept = self.config.optimizer.between_stages == "kept" and self.step > 0 and self.stage_step == 0
        if self._middle or kept:
            folder = self._middle.path if self._middle else self.paths.checkpoint(self.step)
            optimizer.load(folder / OPTIMIZER, self.materials.policy.model)
        optimizer.follow_first()

    def record(
        self,
        name: str,
        metrics: Mapping[str, float],
        times: Mapping[str, float],
        rollouts: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write a finished step to the run directory and to the screen."""
        self.stage_step += 1
        self.journal.completions(self.step, rollouts)
        self.journal.metrics({"step": self.step, "stage": name, "stage_step": self.stage_step, **metrics, **times})
        self._status("running", name, phase="training")
        self._mirror.pass_on(self.tell)
        self.progress.step(name, self.step, {**metrics, **times})
        validation = {key.removeprefix("validation/"): v for key, v in metrics.items() if key.startswith("validation/")}
        if validation:
            self.progress.validation(self.step, validation)
        if metrics.get("update/skipped"):
            self.tell(
                "update_skipped", f"step {self.step} had a gradient that is not finite; the weights stay as they were"
            )

    def checkpoint(self, name: str, optimizer: Optimizer, validation: Validation) -> None:
        """Save when it is due (`StageCheckpoints.save`), or before a stop, which one rank's user asks of all."""
        self._asked = ranks.any_rank(self._asks())
        self._save(name, optimizer, validation)

    def _save(self, name: str, optimizer: Optimizer, validation: Validation) -> None:
        if self._saved.save(name, self.step, self.materials.policy, optimizer, validation, anyway=self._asked):
            self.journal.event("checkpoint", f"checkpoint of step {self.step} saved", step=self.step)
            self._mirror.wake()

    def evaluate(self, label: str) -> None:
        """Greedy results of the model as it stands on the test split; kept in `eval/<label>-test`, made once."""
        folder = self.paths.stage_evaluation(label)
        if not has_scores(folder):
            self.progress.phase(f"evaluating on the test split: {label}")
            self._status("running", label, phase="evaluating")
            self._evaluating = True
            trained = self.fingerprints.get(label, "")
            made = self.materials
            score_stage(
                made.policy,
                made.task,
                made.prompts["test"],
                made.measure,
                made.provenance,
                self.config,
                self.paths,
                label=label,
                step=self.step,
                trained=trained,
            )
            self._evaluating = False
        self.results[label] = read_summary(folder)["metrics"]

    def finish(self) -> None:
        """Mark the run as finished and show what it did to the model."""
        task, n = self.materials.task, len(self.materials.prompts["test"])
        head, rows = headline_table(task.columns(*self.results.values()), self.results)
        told = lacking(task, self.results, n, self.paths)
        self.progress.results(f"test split, {n} prompts, greedy", head, rows, told)
        self.journal.status("finished", step=self.step, phase="finished", stage=next(reversed(self.steps)))
        self.journal.event("finished", f"finished at step {self.step}", step=self.step)

    @contextmanager
    def next_step(self) -> Iterator[None]:
        """One optimizer step, up to its checkpoint, and the rest that a user asked for in it."""
        self.step += 1
        self.in_step = True
        yield
        if self._asked and ranks.any_rank(not self._rest()):
            self._interrupt()
        self.in_step = False

    def _asks(self) -> bool:
        """Whether this rank's user wants the run to pause or to stop."""
        return self.stop_requested or asked(self.paths, "pause") or asked(self.paths, "stop")

    def _rest(self) -> bool:
        """Wait for as long as a pause is asked for, everything being saved; False where the run is to stop. The other
        ranks wait for the answer."""
        if asked(self.paths, "pause") and not self.stops():
            self.tell("paused", f"paused after step {self.step}; space in smolsum watch resumes it")
            self._status("paused", phase="paused")
            if hold(self.paths, self.stops):
                self.tell("resumed", f"resumed after step {self.step}")
                self._status("running", phase="training")
        return not self.stops()

    def stops(self) -> bool:
        """Whether the run is to stop, by Ctrl-C or by a file, which is answered by this."""
        self.stop_requested = heed(self.paths, "stop") or self.stop_requested
        return self.stop_requested

    def _status(self, state: State, stage: str = "", *, phase: str) -> None:
        """Say what the run does now, of how many steps."""
        self.journal.status(state, step=self.step, phase=phase, stage=stage, steps=sum(self.steps.values()))

    @contextmanager
    def saved_on_failure(self, name: str, optimizer: Optimizer) -> Iterator[None]:
        """Where what the step needs from elsewhere cannot be had, keep what was trained so far, before the error."""
        try:
            yield
        except SmolsumError:
            self.step, self._asked = self.step - 1, True
            if self.stage_step:
                self._save(name, optimizer, {})
            if self.stops():
                self._interrupt()
            raise

    def _interrupt(self) -> None:
        """Leave after the user's signal; the step is finished and saved."""
        self.journal.status("interrupted", step=self.step, phase="stopped", stage="")
        self.journal.event("interrupted", f"stopped by the user after step {self.step}", step=self.step)
        raise InterruptedRun(f"stopped after step {self.step}; a checkpoint is saved", hint=self.paths.resume_command)

    def request_stop(self) -> bool:
        """Stop after the step at hand; whether there is one."""
        self.stop_requested = self.in_step
        return self.in_step

    def tell(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """Write down an event, and show it."""
        self.journal.event(kind, message, step=self.step if step is None else step, **fields)
        if kind in NOTES:
            self.progress.note(message)
        else:
            self.progress.warn(f"{message}; {fields['hint']}" if fields.get("hint") else message)

    def _fail(self, error: BaseException) -> None:
        """Write the failure down, as far as the disk lets us; what may pass, or came in the midst of a run, also gets
        the command that goes on."""
        try:
            if "journal" in vars(self):
                passes = isinstance(error, UnreachableError) or (self.step and not isinstance(error, MachineError))
                resume = self.paths.resume_command
                if isinstance(error, SmolsumError) and passes and resume not in (error.hint or ""):
                    error.hint = "; ".join(filter(None, (error.hint, f"{resume} goes on with the run")))
                self.journal.failure(error, self.step)
        except SmolsumError:
            self.progress.warn("the failure could not be written to the run directory")


class NullSession(Session):
    """What the first rank's session does beyond the disk and the screen."""

    @classmethod
    @contextmanager
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[Session]:
        """A session without a run directory; on the screen it gives warnings and errors only."""
        progress.close()
        session = cls(config, None, progress, ExitStack(), Mirror(""))
        with stop_signals(session.request_stop):
            yield session

    def begin(self, materials: Setup, steps: Mapping[str, int]) -> None:
        """Compare what was loaded with the first rank's."""
        self._prepare(materials, steps)

    def record(self, *_: Any) -> None:
        """Count the step."""
        self.stage_step += 1

    def load_optimizer(self, optimizer: Optimizer) -> None:
        """Take the first rank's: nothing is on this rank's disk."""
        optimizer.follow_first()

    def evaluate(self, label: str) -> None:
        """The first rank's work."""

    def finish(self) -> None:
        """The first rank's work."""

    def validates(self, k: int) -> bool:
        """Never: the first rank does."""
        return False

    def _find(self, name: str) -> None:
        """Nothing is on this rank's disk."""
        return None

    def _save(self, name: str, optimizer: Optimizer, validation: Validation) -> None:
        """Nothing goes to this rank's disk."""

    def _asks(self) -> bool:
        """Nobody writes to this rank's disk."""
        return self.stop_requested

    def stops(self) -> bool:
        """By this rank's own user."""
        return self.stop_requested

    def _rest(self) -> bool:
        """The first rank rests, and the others wait for its answer."""
        return not self.stop_requested

    def _interrupt(self) -> None:
        raise InterruptedRun(f"stopped after step {self.step}")

    def tell(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """On the screen alone."""
        self.progress.warn(message)
