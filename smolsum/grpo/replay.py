"""Steps of a recorded run, derived again from a checkpoint, the data and the run's settings by the loop itself, and
compared with what the run wrote: prompts, rollouts, rewards, advantages, metrics and, where there is one, the next
checkpoint.

On the machine type that trained the run everything has to be equal, bit for bit. Elsewhere a token may differ that two
processors round to either side, and all that follows with it: there, and where workers sampled, a step learns from the
rollouts as they were written down (teacher forcing). Those are sampled again all the same, with the weights and seeds
that they are said to have, and counted.
"""

from __future__ import annotations

import filecmp
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError
from smolsum.files import finite, read_jsonl, to_json
from smolsum.grpo.keeper import Keeper
from smolsum.grpo.loop import train_stage
from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.progress import Progress
from smolsum.grpo.resume import OPTIMIZER, STATE, read_state, span
from smolsum.grpo.session import Session
from smolsum.grpo.setup.prepare import Setup, load_shapes
from smolsum.policy.cpu.gradient import TokenGroup
from smolsum.policy.group_gradient import logprobs_of_groups
from smolsum.policy.load import Policy
from smolsum.policy.weights import begin_again, load_trained, save_trained
from smolsum.rollout.source import GroupRequest, LocalSource, Source, decode, group_seeds, sample_seeded
from smolsum.runs.checkpoints import Checkpoint, check_all
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.types import Rollout, RolloutGroup

OWN = ("perf/", "system/", "workers/", "staleness/", "update/patch_density", "schema_version")
"""what a step says of its time and machine"""
ROUNDING = 2e-3
"""the difference, absolute or relative, that another processor may make"""
KEPT = 4
"""steps whose rollouts are not read again: the one under way, and those that workers were asked for ahead"""
RESTORE = "restore it from a copy"
SHOWN = 57
"""characters of a value in a sentence"""


@dataclass
class Derived:
    """What came of the steps that were derived again."""

    steps: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    """steps whose checkpoint was made again, and is the same bit for bit"""
    resampled: int = 0
    """rollouts that were sampled again, and how many of them came out token for token"""
    same: int = 0
    lost: list[str] = field(default_factory=list)
    """what could not be derived, and why"""
    differences: list[str] = field(default_factory=list)


class _DoneError(Exception):
    """The last step that was asked for is derived."""


class _LostError(Exception):
    """A step began with a checkpoint that is not left."""


@dataclass
class Recorded:
    """What the run at `paths` wrote, by step."""

    paths: RunPaths
    metrics: Mapping[int, Mapping[str, Any]]
    checkpoints: Mapping[int, Checkpoint]
    """whole ones"""
    damaged: Mapping[int, str]
    """what is wrong with each of the others"""
    rollouts: Callable[[int], list[dict[str, Any]]]
    """of a step, with the prompt and references of each group in its first one; the last few steps are kept, as each is
    sampled, learned from and compared"""

    @classmethod
    def read(cls, paths: RunPaths) -> Recorded:
        """Read a run."""
        try:
            rows = {int(row["step"]): row for row in read_jsonl(paths.metrics)}
        except (KeyError, TypeError, ValueError) as error:
            raise SmolsumError(f"{paths.metrics} is damaged: a line has no step", hint=RESTORE) from error
        whole, damaged = check_all(paths)
        rollouts = lru_cache(maxsize=KEPT)(lambda step: read_jsonl(paths.completions(step)))
        problems = {step: problem for step, (_, problem) in damaged.items()}
        return cls(paths, rows, {one.step: one for one in whole}, problems, rollouts)


class ReplayKeeper(Keeper):
    """Follows a recorded run after step `after` until step `until`; compares each step, and keeps nothing else."""

    def __init__(
        self,
        progress: Progress,
        recorded: Recorded,
        config: Config,
        found: Derived,
        *,
        after: int = 0,
        until: int = 0,
        exact: bool = True,
    ) -> None:
        super().__init__(progress)
        self._recorded, self._config, self._found = recorded, config, found
        self._after, self._until, self._exact = after, until, exact

    def restore(self, policy: Policy) -> Checkpoint | None:
        """Give the policy the weights of the end of a stage before, or of the checkpoint to begin with."""
        start, end = span(self.at.plan, self.at.stage)
        step = min(end, self._after)
        if step == start:
            return None
        checkpoint = self._recorded.checkpoints[step]
        load_trained(policy, checkpoint.path)
        return checkpoint

    def checkpoint(self, step: int) -> Path | None:
        if step not in self._recorded.checkpoints:
            raise _LostError(f"the checkpoint of step {step}, to which the guard went back, is not left")
        return self._recorded.paths.checkpoint(step)

    def validates(self, k: int) -> bool:
        every = self._config.train.validate_every
        return bool(every) and (k + 1) % every == 0

    def notify(self, kind: str, message: str, step: int | None = None, **fields: Any) -> None:
        """Keep quiet: the run has said so once."""

    def log(self, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Compare a finished step with what the run wrote of it."""
        step, tolerance = self.at.step, 0.0 if self._exact else ROUNDING
        then = self._recorded.metrics.get(step, {})
        now = {"step": step, "stage": self.at.stage, "stage_step": self.at.stage_step, **metrics}
        found = [*unequal(plain(now), then, f"step {step}", tolerance)]
        written = self._recorded.rollouts(step)
        if len(written) != len(rollouts):
            found.append(f"step {step}: {len(written)} rollouts were written, {len(rollouts)} derived")
        for n, (one, row) in enumerate(zip(rollouts, written, strict=False)):
            # all but this follows from the tokens, which no processor rounds
            row = {**row, "advantage": _close(one.get("advantage"), row.get("advantage"), tolerance)}
            found += unequal(plain(one), row, f"step {step}, rollout {n}", 0.0)
        self._found.steps.append(step)
        self._found.differences += found
        self.progress.step(str(step), len(self._found.steps), metrics)

    def save(self, policy: Policy, optimizer: Optimizer, state: Mapping[str, Any], *, leaving: bool) -> None:
        """Compare with the checkpoint of the step, where the run has one; then end after the last step."""
        there = self._recorded.checkpoints.get(self.at.step)
        if there and self._exact:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                save_trained(policy, folder)
                optimizer.save(folder / OPTIMIZER)
                made = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
                wanted = [path for path in there.meta.files if path != STATE]
                unlike = [path for path in wanted if path not in made or not _same_bytes(made[path], there.path / path)]
                if plain(state) != read_state(there.path):
                    unlike.append(STATE)
            self._found.checkpoints += [] if unlike else [self.at.step]
            self._found.differences += [f"checkpoint of step {self.at.step}: another {path}" for path in unlike]
        if self.at.step >= self._until:
            raise _DoneError


class RecordedSource(Source):
    """The rollouts as a run wrote them down; those that the present weights are said to have sampled are sampled
    again, to be compared."""

    def __init__(self, policy: Policy, config: Config, recorded: Recorded, found: Derived, after: int) -> None:
        self.depth = max(0, config.workers.max_staleness - config.workers.sync_every + 1) if config.workers.urls else 0
        self._policy, self._config, self._recorded, self._found = policy, config, recorded, found
        self._version = after
        self._open: dict[int, GroupRequest] = {}
        self._came_out: dict[int, list[bool]] = {}  # by step, for each rollout that was sampled again

    def publish(self, version: int, *, always: bool = False) -> None:
        self._version = version
        for request in self._open.values():
            self._sample_again(request)

    def ahead(self, request: GroupRequest) -> None:
        if request.step not in self._open:
            self._open[request.step] = request
            self._sample_again(request)

    def sample(self, request: GroupRequest) -> list[RolloutGroup]:
        """Return the step's groups at these places. Raises SmolsumError where they are not all there."""
        if not self._open.pop(request.step, None) or request.first_place:
            self._sample_again(request)
        came_out = self._came_out.pop(request.step, [])
        self._found.resampled += len(came_out)
        self._found.same += sum(came_out)
        groups = [
            RolloutGroup(prompt, tuple(self._rollout(row, seed) for row, seed in zip(own, seeds, strict=True)))
            for prompt, own, seeds in zip(request.prompts, self._rows(request), self._seeds(request), strict=True)
        ]
        return [self._logprobs(group, request.temperature) for group in groups]

    def _rollout(self, row: Mapping[str, Any], seed: int) -> Rollout:
        ids, logprobs = tuple(row["token_ids"]), tuple(row.get("logprobs", ()))
        text = decode(self._policy, ids)
        return Rollout(ids, logprobs, row["finish_reason"], row["policy_version"], row["worker"], seed, text)

    def _seeds(self, request: GroupRequest) -> list[list[int]]:
        return group_seeds(request, self._config.sampling.rollouts, self._config.train.seed)

    def _rows(self, request: GroupRequest) -> list[list[dict[str, Any]]]:
        size, every = self._config.sampling.rollouts, self._recorded.rollouts(request.step)
        places = range(request.first_place, request.first_place + len(request.prompts))
        found = [every[place * size : (place + 1) * size] for place in places]
        if any(len(own) != size for own in found):
            raise SmolsumError(f"step {request.step} has no rollouts at some of the places {places}")
        return found

    def _logprobs(self, group: RolloutGroup, temperature: float) -> RolloutGroup:
        """Return the group with log-probs of the present weights, where the run wrote none: it sampled with these."""
        if all(rollout.logprobs for rollout in group.rollouts):
            return group
        tokens = TokenGroup(group.prompt.token_ids, [rollout.token_ids for rollout in group.rollouts])
        (logp_GT,) = logprobs_of_groups(self._policy.model, [tokens], temperature=temperature)
        rows = [row[: len(rollout.token_ids)] for row, rollout in zip(logp_GT.tolist(), group.rollouts, strict=True)]
        return replace(
            group,
            rollouts=tuple(replace(one, logprobs=tuple(row)) for one, row in zip(group.rollouts, rows, strict=True)),
        )

    def _sample_again(self, request: GroupRequest) -> None:
        """Sample the rollouts of the request that the present weights are said to have sampled."""
        rows, seeds = self._rows(request), self._seeds(request)
        due = [[g for g, row in enumerate(own) if row["policy_version"] == self._version] for own in rows]
        if not any(due):
            return
        wanted = [
            (prompt, [own[g] for g in places]) for prompt, own, places in zip(request.prompts, seeds, due, strict=True)
        ]
        groups = sample_seeded(
            self._policy, [prompt for prompt, own in wanted if own], [own for _, own in wanted if own],
            request.temperature, max_new_tokens=self._config.sampling.max_new_tokens, version=self._version,
        )  # fmt: skip
        written = [[own[g] for g in places] for own, places in zip(rows, due, strict=True) if places]
        for group, own in zip(groups, written, strict=True):
            for rollout, row in zip(group.rollouts, own, strict=True):
                same = list(rollout.token_ids) == row["token_ids"]
                self._came_out.setdefault(request.step, []).append(same)


def same_machine(info: RunInfo, setup: Setup) -> bool:
    """Return whether this machine computes as the one that trained the run: processor, kernels and versions."""
    now = setup.provenance
    versions = dict(now["versions"])
    return (
        bool(info.machine.get("kernels"))
        and all(info.machine.get(key) == now["machine"][key] for key in ("processor", "kernels"))
        and info.native == now["native"]
        and all(info.versions.get(name) == versions[name] for name in ("smolsum", "mlx", "mlx-lm"))
    )


def segments(plan: Mapping[str, int], recorded: Recorded, drawn: Iterable[int]) -> tuple[dict[int, int], list[int]]:
    """Return from which steps to begin, each with the last step to derive from there, and the drawn steps that cannot
    be derived as no checkpoint before them is left in their stage."""
    found: dict[int, int] = {}
    lost: list[int] = []
    for step in sorted(drawn):
        start = max(one for one in (span(plan, name)[0] for name in plan) if one < step)
        begins = [start] if start == 0 or start in recorded.checkpoints else []
        begins += [one for one in recorded.checkpoints if begins and start < one < step]
        if begins:
            found[max(begins)] = step
        else:
            lost.append(step)
    return found, lost


def derive(
    recorded: Recorded,
    setup: Setup,
    plan: Mapping[str, int],
    spans: Mapping[int, int],
    found: Derived,
    progress: Progress,
    *,
    exact: bool,
) -> None:
    """Derive the steps after each step of `spans` to the one that it maps to. What fails is one of the differences."""
    config = setup.config
    if config.train.guard == "stop":  # a run that it ended has gone on where later steps are known
        config = replace(config, train=replace(config.train, guard="warn"))
        setup = replace(setup, config=config)
    forced = bool(config.workers.urls) or not exact
    for number, (after, until) in enumerate(spans.items()):
        if number:
            begin_again(setup.policy, load_shapes(config))
        progress.phase(f"deriving {f'step {until}' if until == after + 1 else f'steps {after + 1} to {until}'}")
        keeper = ReplayKeeper(progress, recorded, config, found, after=after, until=until, exact=exact)
        session = Session(config, keeper)
        session.begin(setup, plan, lambda root: None)
        source = (
            RecordedSource(setup.policy, config, recorded, found, after)
            if forced
            else LocalSource(setup.policy, config)
        )
        try:
            for stage in config.stages:
                if not session.restore(stage):
                    train_stage(session, setup, source)
        except _DoneError:
            continue
        except _LostError as error:
            found.lost.append(f"steps {session.at.step} to {until}: {error}")
        except (
            SmolsumError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            OSError,
        ) as error:  # anything may be there
            found.differences.append(f"step {session.at.step} cannot be derived: {error or type(error).__name__}")


def _close(now: float | None, then: Any, tolerance: float) -> Any:
    """Return the number now, where it is close to what was written, else that."""
    return then if unequal(now, then, "", tolerance) else now


def _same_bytes(one: Path, two: Path) -> bool:
    return filecmp.cmp(one, two, shallow=False)


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a file has it."""
    return dict(json.loads(to_json(finite(dict(row)))))


def unequal(now: Any, then: Any, where: str, tolerance: float) -> list[str]:
    """Return a sentence on each value that differs: numbers by more than `tolerance`, absolute and relative; whatever
    is about time and machine alone may."""
    if isinstance(now, dict) and isinstance(then, dict):
        keys = [key for key in {**now, **then} if not key.startswith(OWN)]
        return [text for key in keys for text in unequal(now.get(key), then.get(key), f"{where}: {key}", tolerance)]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        pairs = zip(now, then, strict=True)
        return [text for n, (a, b) in enumerate(pairs) for text in unequal(a, b, f"{where}[{n}]", tolerance)]
    rounded = tolerance and all(isinstance(one, float) for one in (now, then))
    if now == then or (rounded and math.isclose(now, then, rel_tol=tolerance, abs_tol=tolerance)):
        return []
    texts = [json.dumps(value, ensure_ascii=False) for value in (then, now)]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - SHOWN // 2) if max(map(len, texts)) > SHOWN else 0
    was, is_now = (_part(text, start) for text in texts)
    return [f"{where} is {was}, derived {is_now}"]


def _part(text: str, start: int) -> str:
    """Return the part of a long text that begins there."""
    end = start + SHOWN
    return ("…" if start else "") + text[start:end] + ("…" if len(text) > end else "")
