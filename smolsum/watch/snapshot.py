"""What every pane is drawn from: the run, perhaps a second one, the time, and how the reader wants to look at them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from smolsum.runs.completions import Group
from smolsum.runs.reader import Run
from smolsum.runs.status import RunState, run_state

WINDOWS = (0, 512, 128, 32)
"""Steps that a chart shows, the newest ones; 0: all."""
SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weight of the past in a smoothed line."""


@dataclass(frozen=True)
class ViewOptions:
    """A reader's choices; each key changes one."""

    ascii: bool = False
    log: bool = False
    smoothing: float = 0.0
    window: int = 0
    chart: int = 0
    """place in CHARTS of the chart that is enlarged"""
    step: int | None = None
    """step of the completions; None follows the newest"""
    group: int = 0
    row: int = 0
    """place of the rollout in the table as it is sorted"""
    sort: str = "sample"
    query: str = ""
    difference: bool = False
    scroll: int = 0
    asks: bool = False
    """whether the reader has keys that ask something of the run"""


@dataclass(frozen=True)
class Snapshot:
    """One moment of a view."""

    run: Run
    look: ViewOptions = field(default_factory=ViewOptions)
    other: Run | None = None
    groups: tuple[Group, ...] = ()
    """the completions of the step that is looked at"""
    first: Group | None = None
    """the rollouts of the same prompt early in the run"""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def run_state(self) -> RunState:
        """How the run stands at this moment."""
        return run_state(self.run, self.now)

    @property
    def step(self) -> int:
        """The step whose completions are shown."""
        return self.look.step if self.look.step is not None else self.run.step
