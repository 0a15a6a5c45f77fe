"""What is known to be wrong with settings before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smolsum import console

if TYPE_CHECKING:
    from smolsum.config import Config


def foresee(configs: Sequence[Config], *, warn: bool) -> None:
    """UsageError for a mirror that none can be; nobody is asked. With `warn` also the tasks' warnings, each once, which
    a run gives itself."""
    for url in {config.run.mirror for config in configs if config.run.mirror}:
        from smolsum.mirror.address import check_mirror

        check_mirror(url)
    if warn:
        from smolsum.tasks import TASKS

        for warning in dict.fromkeys(said for config in configs for said in TASKS[config.task.name].check(config)):
            console.warn(warning)
