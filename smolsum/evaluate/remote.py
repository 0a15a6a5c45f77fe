"""Completions of a split sampled by workers, which are given its weights first and proven to serve them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing

from smolsum import console
from smolsum.config import Config
from smolsum.evaluate.generate import GREEDY, Sampler, completion_seeds, in_batches
from smolsum.policy.load import Policy
from smolsum.rollout.fleet import Fleet
from smolsum.rollout.http import Wanted
from smolsum.rollout.pool import Ticket
from smolsum.rollout.records import Prompt, RolloutGroup

AHEAD = 2
"""batches under way for each worker"""
TROUBLE = ("worker_down", "workers_lost", "worker_resynced")
"""events that somebody who waits for an evaluation should see at once"""


def complete_remotely(
    policy: Policy, prompts: Sequence[Prompt], config: Config, *, version: int, sampler: Sampler = GREEDY
) -> Iterator[list[RolloutGroup]]:
    """As `smolsum.evaluate.generate.complete`, through the workers of `workers.urls`.

    `AHEAD` batches a worker are under way at a time: enough that none waits for another, and no more are lost should
    this process die. Raises WorkerError where no worker is left for `workers.wait_s`, and what Fleet raises.
    """
    fleet = Fleet(policy, prompts, config.workers, max_new_tokens=config.sampling.max_new_tokens, tell=_tell)
    with closing(fleet):
        fleet.publish(version)
        under_way: deque[tuple[Sequence[Prompt], Ticket]] = deque()
        for batch in in_batches(prompts, config, sampler.samples):
            if len(under_way) == AHEAD * len(fleet.pool.members):
                yield _collected(fleet, *under_way.popleft(), sampler)
            wanted = [
                Wanted(_name(p, n), p.token_ids, seed)
                for p in batch
                for n, seed in enumerate(completion_seeds(sampler, p))
            ]
            under_way.append((batch, fleet.submit(wanted, sampler.temperature, least_version=version)))
        while under_way:
            yield _collected(fleet, *under_way.popleft(), sampler)


def _collected(fleet: Fleet, batch: Sequence[Prompt], ticket: Ticket, sampler: Sampler) -> list[RolloutGroup]:
    found = fleet.collect(ticket)
    return [
        RolloutGroup(
            p, tuple(fleet.rollout(found[_name(p, n)], seed) for n, seed in enumerate(completion_seeds(sampler, p)))
        )
        for p in batch
    ]


def _name(prompt: Prompt, sample: int) -> str:
    return f"{prompt.id} sample {sample}" if sample else prompt.id


def _tell(kind: str, message: str, *, hint: str | None, worker: str | None) -> None:
    if kind in TROUBLE:
        console.warn(f"{message}; {hint}" if hint else message)
