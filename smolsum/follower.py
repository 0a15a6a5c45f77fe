"""The session of a rank that is not the first: it trains its share, is told where to go on, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from smolsum.best import Validation
from smolsum.config import Config
from smolsum.errors import InterruptedRun
from smolsum.grpo.optimizer import Optimizer
from smolsum.interrupt import stop_signals
from smolsum.materials import Materials
from smolsum.mirror.upload import Mirror
from smolsum.progress import Progress
from smolsum.session import Session


class Follower(Session):
    """What the first rank's session does beyond the disk and the screen."""

    @classmethod
    @contextmanager
    def open(cls, config: Config, resume: str | None, progress: Progress) -> Iterator[Session]:
        """A session without a run directory; on the screen it gives warnings and errors only."""
        progress.close()
        session = cls(config, None, progress, ExitStack(), Mirror(""))
        with stop_signals(session.request_stop):
            yield session

    def begin(self, materials: Materials, steps: Mapping[str, int]) -> None:
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
