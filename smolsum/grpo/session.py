"""A training on one rank: what it consists of, where it is, and how it begins, continues and stops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError
from smolsum.grpo.guard import RETRY, Guard
from smolsum.grpo.keeper import Keeper
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.progress import StepClock
from smolsum.grpo.resume import OPTIMIZER, fingerprints, read_state, safe_step, span
from smolsum.grpo.setup.prepare import Setup, load_shapes
from smolsum.grpo.stateful import Stateful
from smolsum.grpo.system_metrics import SystemMeter
from smolsum.policy import distributed
from smolsum.policy.load import snapshot
from smolsum.policy.weights import begin_again, load_trained
from smolsum.runs.checkpoints import Checkpoint


class Session:
    """The training of a run, which `keeper` writes down.

    `at` is where it is. `state` is what the stage needs to continue apart from weights and optimizer: values in JSON by
    name, as the checkpoint had them; `adopt` adds what changes with the steps. `reference` are the parameters (or
    adapters) that the stage's KL term compares with (`grpo.reference`); None where beta is 0. `sampler` are those that
    a stage begins with and samples with to its end; None where it samples with the newest.
    """

    def __init__(self, config: Config, keeper: Keeper) -> None:
        self.config, self.keeper, self.progress, self.at = config, keeper, keeper.progress, keeper.at
        self.clock, self._system = StepClock(), SystemMeter()
        self.stop_requested = False
        self.state: dict[str, Any] = {}
        self._parts: tuple[Stateful, ...] = ()
        self.reference = self._run_start = self.sampler = None
        self._restored: Checkpoint | None = None
        self._leaving = False  # whether a pause or a stop follows, before which every step is saved
        self._alarm: SmolsumError | None = None  # with which the guard ends the run

    def begin(self, setup: Setup, plan: Mapping[str, int], started: Callable[[Path], None]) -> None:
        """Take over the setup and the steps by stage, and find out where to continue; `started` gets the run's
        directory. Raises UsageError where another rank would train something else, or where a resumed run would."""
        self.setup, self.config, self.at.plan = setup, setup.config, dict(plan)
        self.fingerprints = fingerprints(self.config, setup.provenance, plan)
        self.keeper.begin(setup, self.fingerprints, started)

    def restore(self, stage: str) -> bool:
        """Make this stage the current one and bring the model to where it begins or continues; True if the stage is
        finished already. The end of a stage is copied from another run that trained the same one, except for the last
        stage."""
        self.at.stage, (start, end) = stage, span(self.at.plan, stage)
        self.reference = self._take_reference()
        self.sampler = snapshot(self.setup.policy.model) if self.config.stages[stage].learn == "recombined" else None
        self._restored = self.keeper.restore(self.setup.policy)  # None on other ranks, which have no files of the run
        self.at.step = distributed.gathered(self._restored.step if self._restored else start)[0]
        self.at.stage_step = self.at.step - start
        self.state = distributed.gathered(read_state(self._restored.path) if self._restored else {})[0]
        self._parts = ()
        model = self.setup.policy.model
        model.update(distributed.from_first(model.trainable_parameters()))
        return self.at.step == end

    def _take_reference(self) -> Any:
        """Return the reference of the current stage, whose checkpoint is not loaded yet: the model is that which the
        stage begins with. A reference keeps a copy of the weights alive, so there is one only where a KL term reads it.
        """
        model, stages = self.setup.policy.model, self.config.stages
        beta = stages[self.at.stage].beta
        if self.config.grpo.reference == "stage":
            return snapshot(model) if beta > 0 else None
        if self.at.stage == next(iter(stages)) and any(stage.beta > 0 for stage in stages.values()):
            self._run_start = snapshot(model)
        return self._run_start if beta > 0 else None

    def load_optimizer(self, optimizer: Optimizer) -> None:
        """Restore the optimizer where the stage continues from a checkpoint or keeps the moments of the one before."""
        kept = self.config.optimizer.between_stages == "kept" and self.at.step > 0 and self.at.stage_step == 0
        before = self.keeper.checkpoint(self.at.step) if kept else None
        if folder := self._restored.path if self._restored else before:
            optimizer.load(folder / OPTIMIZER, self.setup.policy.model)
        optimizer.follow_first()

    def adopt(self, *parts: Stateful) -> None:
        """Give these parts of the stage their state in the checkpoint, and save it with those to come."""
        for part in parts:
            if part.name in self.state:
                part.load(self.state[part.name])
        self._parts = parts

    def steps(self, optimizer: Optimizer) -> Iterator[int]:
        """Yield the current stage's remaining steps, from 0. After each one, saves a checkpoint if one is due, then
        pauses or stops if the user of any rank requested it."""
        self.keeper.begin_stage()
        for k in range(self.at.stage_step, self.at.plan[self.at.stage]):
            self.at.step, self.at.in_step = self.at.step + 1, True
            self.clock.start()
            self._system.start()
            yield k
            # all ranks leave together, or the others would wait for one that has ended
            requested = self.stop_requested or self.keeper.is_requested() or self._alarm is not None
            self._leaving = distributed.any_rank(requested)
            self._save(optimizer)
            if self._alarm:
                raise self._alarm
            if self._leaving and distributed.any_rank(not self._pause()):
                raise self.keeper.stopped()
            self.at.in_step = False

    @contextmanager
    def checkpoint_on_failure(self, optimizer: Optimizer) -> Iterator[None]:
        """Where a step cannot get its rollouts or rewards, save the steps before it, then raise the error."""
        try:
            yield
        except SmolsumError:
            self.at.step, self._leaving = self.at.step - 1, True  # the step under way is lost
            if self.at.stage_step:  # else the stage is where it began: at the model, or at a checkpoint that is kept
                self._save(optimizer)
            if self.should_stop():
                raise self.keeper.stopped() from None
            raise

    def heed(self, guard: Guard, optimizer: Optimizer) -> None:
        """Tell the user of the guard's alarms, and do what `train.guard` says: nothing more, stop once the step is
        saved, or go back."""
        how, worse = self.config.train.guard, " and ".join(map(str, guard.alarms))
        sentence = f"the reward pulls what has got worse since the stage began: {worse}"
        if how == "stop":
            self._alarm = SmolsumError(f"stopped by the guard after step {self.at.step}: {sentence}", hint=RETRY)
            return
        advice = f"{RETRY}; --guard stop or rollback acts by itself"
        self.keeper.notify("guard", sentence, hint=advice if how == "warn" else "")
        if how == "rollback":
            step = self._go_back(guard.undone, optimizer)
            guard.begin_again(self.at.step, step)

    def _go_back(self, undone: Sequence[int], optimizer: Optimizer) -> int:
        """Give model and optimizer the state of the last checkpoint that was due before the guard's newest steps, or
        that of the stage's start, and return its step."""
        policy, (start, _) = self.setup.policy, span(self.at.plan, self.at.stage)
        step = safe_step(self.config, start, self.at.step, undone)
        folder = self.keeper.checkpoint(step) if step else None
        if folder:
            load_trained(policy, folder)
        elif distributed.leads():
            begin_again(policy, load_shapes(self.config))
        if folder and (step > start or self.config.optimizer.between_stages == "kept"):
            optimizer.load(folder / OPTIMIZER, policy.model)
        else:
            optimizer.reset(policy.model)
        policy.model.update(distributed.from_first(policy.model.trainable_parameters()))
        optimizer.follow_first()
        self.keeper.notify("rolled_back", f"back to the weights of step {step}, with half the learning rate")
        return step

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Count a finished step and write it down: its metrics with the clock's times and the process's load, and a row
        for each rollout."""
        self.at.stage_step += 1
        self.keeper.log({**metrics, **self.clock.times(), **self._system.metrics()}, rollouts)

    def _save(self, optimizer: Optimizer) -> None:
        part_states = {part.name: state for part in self._parts if (state := part.state()) is not None}
        self.keeper.save(self.setup.policy, optimizer, self.state | part_states, leaving=self._leaving)

    def _pause(self) -> bool:
        """Wait as long as a pause is requested; False where the training should stop."""
        self.keeper.wait_while_paused(self.should_stop)
        return not self.should_stop()

    def should_stop(self) -> bool:
        """Return whether the user stopped the training, with Ctrl-C or with `control/stop`, which is removed."""
        # asked first, so that the request is taken away in any case
        self.stop_requested = self.keeper.takes_stop() or self.stop_requested
        return self.stop_requested

    def request_stop(self) -> bool:
        """Request a stop after the current step; False if no step is under way."""
        self.stop_requested = self.at.in_step
        return self.at.in_step
