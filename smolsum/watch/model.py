"""The model of the view: the runs at one moment and what the user chose, from which every widget draws itself."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from smolsum.linechart.braille import Ends
from smolsum.linechart.zoom import View
from smolsum.runs.alerts import Alert, find_alerts
from smolsum.runs.grid_follower import GridView
from smolsum.runs.reader import Run
from smolsum.runs.samples import clean
from smolsum.runs.state import TROUBLE, RunState, run_state

SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weight of the past in a smoothed line."""


@dataclass(frozen=True)
class ViewOptions:
    """What the user chose; each key changes one."""

    ascii: bool = False
    logs: frozenset[str] = frozenset()
    """titles of the charts whose scale was switched between linear and logarithmic"""
    smoothing: float = 0.0
    unit: str = "step"
    """what charts have along them: a key of `charts.UNITS`"""
    view: View = field(default_factory=View)
    """the steps that charts show, and their cursor"""
    hidden: frozenset[str] = frozenset()
    """metrics whose curves a click on their legend has hidden"""
    pinned: tuple[str, ...] = ()
    """metrics that come first on the page of charts"""
    grouped: bool = False
    """whether runs that differ in their seed alone share a row in the list of runs"""


@dataclass(frozen=True)
class Snapshot:
    """The runs, the options and the time that widgets are drawn from."""

    run: Run
    options: ViewOptions = field(default_factory=ViewOptions)
    others: tuple[Run, ...] = ()
    grid: GridView | None = None
    """the grid that the run belongs to, while one is at work"""
    asks: bool = False
    """whether the user can pause and stop the run"""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @cached_property
    def run_state(self) -> RunState:
        return run_state(self.run, self.now)

    @cached_property
    def alerts(self) -> list[Alert]:
        """Why the run failed, if it did, then what its metrics warn of."""
        state = self.run_state
        failed = [Alert("trouble", clean(state.detail), clean(state.hint))] if state.state in TROUBLE else []
        return failed + find_alerts(self.run)

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.run, *self.others)

    @cached_property
    def whole(self) -> Ends:
        """The first and the last step of all runs."""
        first = min((run.first_step for run in self.runs if run.row), default=0)
        return first, max(first, *(run.step for run in self.runs))

    @property
    def in_view(self) -> Ends:
        """The first and the last step that charts show."""
        return self.options.view.ends(self.whole)
