"""Which source samples for a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smolsum.config import Config
from smolsum.policy import ranks
from smolsum.policy.load import Policy
from smolsum.rollout.exchange import Receiver
from smolsum.rollout.local import LocalSource
from smolsum.rollout.records import Prompt
from smolsum.rollout.remote import RemoteSource
from smolsum.rollout.source import Source


def open_source(
    policy: Policy,
    config: Config,
    prompts: Sequence[Prompt],
    *,
    tell: Callable[..., None],
    stopping: Callable[[], bool],
) -> Source:
    """Workers where `workers.urls` names some, else the policy itself; workers belong to the first rank.

    Arguments and errors as of RemoteSource.
    """
    if not config.workers.urls:
        return LocalSource(policy, config)
    if not ranks.leads():
        return Receiver()
    return RemoteSource(policy, config, prompts, tell=tell, stopping=stopping)
