"""Rollouts sampled by workers: weights out, groups in, and how old they may be.

A rollout for step s is sampled with version s - 1 - max_staleness or a later one, so none is ever too old to learn
from: a worker that is not there yet is brought there first. With max_staleness above `sync_every` - 1 the next steps
are asked for before the update begins, and sampled while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from smolsum.config import Config
from smolsum.policy.generate import rollout_seed
from smolsum.policy.load import Policy
from smolsum.rollout.exchange import from_first
from smolsum.rollout.fleet import Fleet
from smolsum.rollout.http import Wanted
from smolsum.rollout.pool import Ticket
from smolsum.rollout.records import Prompt, RolloutGroup
from smolsum.rollout.source import Asked


class RemoteSource:
    """Samples through workers; see `smolsum.rollout.source.Source`."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        prompts: Sequence[Prompt],
        *,
        tell: Callable[..., None],
        stopping: Callable[[], bool],
    ) -> None:
        """Arguments and errors as of Fleet."""
        self.config, self.settings = config, config.workers
        self.depth = self.settings.max_staleness - self.settings.sync_every + 1
        self.fleet = Fleet(
            policy,
            prompts,
            self.settings,
            max_new_tokens=config.sampling.max_new_tokens,
            tell=tell,
            stopping=stopping,
        )
        self._tickets: dict[int, Ticket] = {}
        self._staleness: list[int] = []

    def publish(self, version: int, *, always: bool = False) -> None:
        """Send the weights to all workers, where it is due; see `Fleet.publish`."""
        first = self.fleet.version is None
        if version != self.fleet.version and (first or always or version % self.settings.sync_every == 0):
            self.fleet.publish(version)

    def ahead(self, asked: Asked) -> None:
        if asked.step not in self._tickets:
            self._tickets[asked.step] = self._submit(asked)

    def sample(self, asked: Asked) -> list[RolloutGroup]:
        ticket = (self._tickets.pop(asked.step, None) if asked.first_place == 0 else None) or self._submit(asked)
        found = self.fleet.collect(ticket)
        groups = [
            RolloutGroup(
                prompt,
                tuple(
                    self.fleet.rollout(found[_id(asked, p, g)], seed) for g, seed in enumerate(self._seeds(asked, p))
                ),
            )
            for p, prompt in enumerate(asked.prompts)
        ]
        if asked.first_place == 0:
            self._staleness = []
        self._staleness += [asked.step - 1 - r.policy_version for group in groups for r in group.rollouts]
        return from_first(groups, asked.prompts)

    def metrics(self) -> dict[str, float]:
        """Staleness in updates, and what `Fleet.metrics` tells."""
        self.fleet.look()
        staleness = {"staleness/mean": fmean(self._staleness), "staleness/max": float(max(self._staleness))}
        return staleness | self.fleet.metrics()

    def close(self) -> None:
        self.fleet.close()

    def _submit(self, asked: Asked) -> Ticket:
        wanted = [
            Wanted(_id(asked, p, g), prompt.token_ids, seed)
            for p, prompt in enumerate(asked.prompts)
            for g, seed in enumerate(self._seeds(asked, p))
        ]
        oldest = asked.step - 1 - self.settings.max_staleness
        return self.fleet.submit(wanted, asked.temperature, least_version=oldest)

    def _seeds(self, asked: Asked, place: int) -> list[int]:
        spot, name = asked.first_place + place, asked.prompts[place].id
        count = self.config.sampling.rollouts
        return [rollout_seed(self.config.train.seed, asked.step, spot, name, g) for g in range(count)]


def _id(asked: Asked, place: int, sample: int) -> str:
    """A name that no other rollout of the run has."""
    return f"{asked.step}-{asked.first_place + place}-{sample}"
