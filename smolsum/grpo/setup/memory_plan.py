"""How a run fits into this machine's memory: the chunks that its updates take, or what else would fit.

The choice is made before any weight is read. It is written to run.json, and a resumed run takes the same chunks again,
since other chunks round differently.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, inf
from typing import Any

import msgspec

from smolsum.config.sections import Config
from smolsum.errors import MachineError, SmolsumError
from smolsum.policy import distributed
from smolsum.policy.cpu.gradient import why_no_bfloat16
from smolsum.policy.device_memory import GB, VARIABLE, MemoryLimit, on_cpu, outside_arrays, set_limit, tightest_limit
from smolsum.policy.group_gradient import Chunking, fits_c
from smolsum.policy.load import Policy
from smolsum.policy.memory import MaxLengths, ModelShape, estimate, shape_of, ways
from smolsum.rollout.worker_client import reserved_here
from smolsum.runs.records import RunInfo
from smolsum.types import Prompt

LOADED_LATER = 0.15e9
"""bytes of what a run loads after the estimate: rewards, WordNet, the code of libraries"""
LEAST_TOKENS, LEAST_ROLLOUTS = 16, 2
"""what a suggestion goes down to"""
SLACK = 1.25
"""tokens of a suggestion, as a multiple of what the task needs: completions that are a little too long still end"""
STEADY = 0.98
"""share of a limit that a suggestion fits into: available RAM differs a little from start to start"""
HINTS = 4
"""how many are shown"""


@dataclass(frozen=True)
class MemoryPlan:
    """The chunks of a run's updates, and the memory that the run takes with them; sizes in bytes."""

    chunking: Chunking
    parts: Mapping[str, float]
    """by purpose; their sum is the peak"""
    whole: float
    """the peak without chunks"""
    limit: MemoryLimit
    lengths: MaxLengths
    group: int
    """rollouts of a prompt"""
    here: MemoryLimit
    """the limit of this machine, where a budget is the limit"""
    slow: bool
    """whether weights are quantised on the CPU"""

    @property
    def peak(self) -> float:
        """The most that the run holds."""
        return sum(self.parts.values())

    @property
    def line(self) -> str:
        if self.whole <= self.limit.size:
            peak, size = _distinct(self.peak, self.limit.size)
            return f"memory: {peak} at the peak, of {size} ({self.limit.source})"
        whole, size = _distinct(self.whole, self.limit.size)
        over = f"memory: {whole} at the peak is more than {size} ({self.limit.source})"
        if self.chunking.rows is None:  # a run that began like this
            return over
        return f"{over}, so updates take {_described(self.chunking, self.group)}: {_gb(self.peak)} at the peak"

    @property
    def warnings(self) -> list[str]:
        """What the user should know before starting."""
        found = []
        if self.peak > self.here.size:
            peak, size = _distinct(self.peak, self.here.size)
            found.append(
                f"{self.limit.source} allows {_gb(self.limit.size)}, and the run takes {peak}, but this machine has"
                f" {size} ({self.here.source})"
            )
        if self.slow:
            found.append(
                "model.quantize saves memory but no time on a CPU: sampling takes two to four times as long as with"
                " weights that are not quantised"
            )
        return found

    def record(self) -> dict[str, Any]:
        """Return what run.json keeps (`MemoryInfo`)."""
        return {
            "chunking": asdict(self.chunking),
            "estimate_gb": self.peak / GB,
            "whole_gb": self.whole / GB,
            "limit_gb": self.limit.size / GB,
            "source": self.limit.source,
            "prompt_tokens": self.lengths.prompt,
            "new_tokens": self.lengths.completion,
        }


def plan_memory(
    config: Config, policy: Policy, prompts: Sequence[Prompt], begun: RunInfo | None, load: Callable[[Config], Policy]
) -> MemoryPlan:
    """Return the fastest way that fits, within `engine.memory_budget_gb` or else the limits of this machine.

    `begun` is run.json of a resumed run, whose chunks are taken again. `load` returns the policy of other settings,
    without reading weights. Where several ranks train together, all take the fastest chunks that fit on every rank.
    Raises MachineError, with the smallest changes that would fit, where none do, and where products cannot have the
    precision that is set.
    """
    shape = shape_of(policy.model)
    lengths = MaxLengths(max(len(prompt.token_ids) for prompt in prompts), config.sampling.max_new_tokens)
    here = tightest_limit(os.environ, reserved=lambda: reserved_here(config.workers.urls))
    budget = config.engine.memory_budget_gb * GB
    limit = set_limit(budget, "engine.memory_budget_gb") if budget else here
    if limit.of_arrays and not here.of_arrays:  # so that both compare with the same peak
        here = replace(here, size=here.for_arrays(outside_arrays() + LOADED_LATER), of_arrays=True)
    ledger = _Ledger(config, lengths, limit, here)
    choices = list(ways(shape, config))
    # the first rank alone has the run's files
    recorded = distributed.gathered(begun and begun.memory and msgspec.structs.asdict(begun.memory.chunking))[0]
    kept = [Chunking(**recorded)] if recorded else choices
    plans = [ledger.plan(shape, chunking, choices[0]) for chunking in kept]
    fitting = [n for n, plan in enumerate(plans) if plan.peak <= (here if recorded else limit).size]
    refusal = None
    if not fitting and recorded:
        refusal = _no_longer_fits(replace(plans[0], limit=here))
    elif not fitting:
        refusal = _nothing_fits(min(plans, key=lambda plan: plan.peak), here, config, lengths, load)
    plan = plans[_agreed(fitting, refusal)]
    distributed.together(lambda: _check_precision(plan.chunking, shape, resumed=bool(recorded)))
    return plan


def _check_precision(chunking: Chunking, shape: ModelShape, *, resumed: bool) -> None:
    """Raise MachineError where products cannot have the precision that is set."""
    if not chunking.bfloat16:
        return
    reason = why_no_bfloat16()
    if not reason and not shape.in_c:
        reason = "the library in C does not compute updates of this model (float32 weights on a CPU)"
    elif not reason and not fits_c(chunking):
        reason = "the library in C computes a prompt once for all its completions, which this run does not"
    if reason:
        hint = "leave it out: products are in float32 then"
        if resumed:
            hint = "resume it on a Linux CPU with AVX-512 BF16, or start a new run from its settings with --config"
        raise MachineError(f"optimizer.matmul_precision = medium: {reason}", hint=hint)


def _agreed(fitting: Sequence[int], refusal: MachineError | None) -> int:
    """Return the first of the plans that fit on every rank. Raises this rank's own refusal, and MachineError where
    another rank has one."""

    def check() -> None:
        if refusal:
            raise refusal

    distributed.together(check)
    ranks = distributed.gathered(list(fitting))
    common = set[int].intersection(*map(set, ranks))
    if not common:
        raise MachineError("no chunks fit on every rank", hint="train on machines with about the same memory")
    return min(common)


@dataclass(frozen=True)
class _Ledger:
    """What a plan is computed from, apart from the model and the chunks."""

    config: Config
    lengths: MaxLengths
    limit: MemoryLimit
    here: MemoryLimit

    def plan(self, shape: ModelShape, chunking: Chunking, whole: Chunking) -> MemoryPlan:
        parts = self._parts(shape, chunking)
        return MemoryPlan(
            chunking, parts, sum(self._parts(shape, whole).values()), self.limit, self.lengths,
            self.config.sampling.rollouts, self.here, bool(shape.unpacked) and on_cpu(),
        )  # fmt: skip

    def _parts(self, shape: ModelShape, chunking: Chunking) -> dict[str, float]:
        arrays = estimate(shape, self.config, chunking, self.lengths)
        return arrays if self.limit.of_arrays else {"process": outside_arrays() + LOADED_LATER, **arrays}


def _no_longer_fits(plan: MemoryPlan) -> MachineError:
    needed, there = _distinct(plan.peak, plan.limit.size)
    return MachineError(
        f"the run began with updates that take {_described(plan.chunking, plan.group)}, which needs"
        f" {needed}; this machine has {there} ({plan.limit.source})",
        hint=f"close other programs, or resume on a larger machine; {VARIABLE}={_above(plan.peak)} starts all the same",
    )


def _nothing_fits(
    least: MemoryPlan, here: MemoryLimit, config: Config, lengths: MaxLengths, load: Callable[[Config], Policy]
) -> MachineError:
    """Return the error that says what would fit: the smallest changes first, each with its peak."""
    limit, hints, found = least.limit, list[str](), list[dict[str, Any]]()
    room = STEADY * limit.size
    shapes = cache(lambda adapter, quantize: _shape_with(config, adapter, quantize, load))

    def peak_with(sets: Mapping[str, Any]) -> float:
        changed = _with(config, sets)
        shape = shapes(changed.model.adapter, changed.model.quantize)
        if shape is None or (changed.optimizer.matmul_precision == "medium" and not shape.in_c):
            return inf
        ledger = _Ledger(changed, replace(lengths, completion=changed.sampling.max_new_tokens), limit, here)
        return min(ledger.plan(shape, chunking, chunking).peak for chunking in ways(shape, changed))

    if limit != here and least.peak <= here.size:
        hints.append(f"--set engine.memory_budget_gb={_above(least.peak)}")
    smallest = (least.peak, dict[str, Any]())
    for alternative in _smaller(config):
        sets, peak = next(((sets, peak) for sets in alternative if (peak := peak_with(sets)) <= room), ({}, 0.0))
        if sets and not any(_covers(first, sets) for first in found):
            found.append(sets)
            hints.append(f"{_flags(sets)} ({_gb(peak)})")
        elif alternative and not sets:
            smallest = min(smallest, (peak_with(alternative[-1]), alternative[-1]), key=lambda one: one[0])
    needed, there = _distinct(least.peak, limit.size)
    own = "--set engine.memory_budget_gb" if limit != here else VARIABLE
    nearest = f"; the least that this model takes is {_gb(smallest[0])}, with {_flags(smallest[1])}"
    other = (
        f"a smaller model, or a machine with more memory{nearest if smallest[1] else ''}; "
        f"{own}={_above(least.peak)} tries it as it is"
    )
    return MachineError(
        f"training needs at least {needed}, in the smallest chunks; there are {there} ({limit.source})",
        hint="; or ".join(hints[:HINTS]) or other,
    )


def _flags(sets: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in sets.items())


def _covers(first: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Return whether the later settings change all that the first ones do and have no more rollouts, so that they offer
    nothing."""
    rollouts = "sampling.rollouts"
    same = all(key in later and (value == later[key] or key == rollouts) for key, value in first.items())
    return same and first.get(rollouts, 0) >= later.get(rollouts, 0) * (rollouts in first)


def _shape_with(config: Config, adapter: str, quantize: int, load: Callable[[Config], Policy]) -> ModelShape | None:
    """Return the shape of the model with this adapter and so many bits; None where it cannot be trained so."""
    try:
        policy = load(_with(config, {"model.adapter": adapter, "model.quantize": quantize}))
    except SmolsumError:
        return None
    return shape_of(policy.model)


def _smaller(config: Config) -> Iterator[list[dict[str, Any]]]:
    """Yield settings that need less memory, in the order in which a user would accept them: lists of alternatives, the
    smallest change first, of which one is enough."""
    if config.optimizer.matmul_precision == "medium":  # others may come in parts
        yield [{"optimizer.matmul_precision": "highest"}]
    adapter = {} if config.model.adapter == "lora" else {"model.adapter": "lora"}
    bits = {} if config.model.quantize == 4 else {"model.quantize": 4}
    if adapter:
        yield [adapter]
    if bits:
        yield [adapter | bits]
    shorter = [{"sampling.max_new_tokens": tokens} for tokens in _fewer_tokens(config)]
    rollouts = config.sampling.rollouts
    for own in ({}, adapter | bits) if adapter | bits else ({},):
        yield [own | tokens for tokens in shorter]
        for divisor in (2, 4):
            if rollouts // divisor >= LEAST_ROLLOUTS:
                fewer = {
                    "sampling.rollouts": rollouts // divisor,
                    "train.eval_batch": config.train.eval_batch // 4 or 1,
                }
                yield [own | tokens | fewer for tokens in shorter or [{}]]


def _fewer_tokens(config: Config) -> list[int]:
    """Return halves of `sampling.max_new_tokens`, again and again, down to what the task's completions need."""
    least = max(LEAST_TOKENS, ceil(SLACK * config.task.needed_tokens))
    tokens, found = config.sampling.max_new_tokens, list[int]()
    while tokens > least:
        tokens = max(tokens // 2, least)
        found.append(tokens)
    return found


def _with(config: Config, sets: Mapping[str, Any]) -> Config:
    for key, value in sets.items():
        section, name = key.split(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def _described(chunking: Chunking, group: int) -> str:
    """Return the chunks in words."""
    if chunking.rows is None:
        return "all rollouts at once"
    rows = "a group at a time" if chunking.rows >= group else f"{chunking.rows} of {group} rollouts at a time"
    return f"{rows}, and compute layers twice" if chunking.checkpointing else rows


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB" if size < 10 * GB else f"{size / GB:.0f} GB"


def _distinct(first: float, second: float) -> tuple[str, str]:
    """Return two sizes in words, with more digits where they would look equal."""
    texts = _gb(first), _gb(second)
    for digits in (1, 2, 3):
        if float(texts[0].split()[0]) != float(texts[1].split()[0]):
            break
        texts = f"{first / GB:.{digits}f} GB", f"{second / GB:.{digits}f} GB"
    return texts


def _above(size: float) -> str:
    """Return a number of GB that the size surely fits into."""
    return f"{size / GB * 1.02 + 0.05:.1f}"
