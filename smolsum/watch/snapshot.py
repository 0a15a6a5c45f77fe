"""One moment of the view, from which every pane is drawn; and the same as JSON for `--json`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from smolsum.files import finite
from smolsum.runs.reader import Run
from smolsum.runs.records import SampledRollout
from smolsum.runs.samples import EvaluationSamples, Group
from smolsum.runs.search import Scan
from smolsum.runs.state import RunState, pace, run_state
from smolsum.watch.alerts import find_alerts
from smolsum.watch.grid_follower import GridView, grid_of

SCHEMA_VERSION = 1
MAX_EVENTS = 10
SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weight of the past in a smoothed line."""


Listing = Literal["step", "hits", "time", "tests"]
"""What the browser of completions lists: the rollouts of a prompt at a step, what a search found, a prompt at all its
steps, the test split before and after training."""


@dataclass(frozen=True)
class ViewOptions:
    """What the user chose to see; each key changes one."""

    ascii: bool = False
    logs: frozenset[str] = frozenset()
    """titles of the charts whose scale was switched between linear and logarithmic"""
    smoothing: float = 0.0
    unit: str = "step"
    """what charts have along them: a key of `axes.UNITS`"""
    window: int = 0
    """steps that charts show; 0: all"""
    end: float | None = None
    """the last of them; None: the newest, as it comes"""
    cursor: float | None = None
    """the step whose values charts show; None: the newest"""
    chart: str = "chart0"
    """the enlarged chart: its pane, or a metric"""
    hidden: frozenset[str] = frozenset()
    """metrics whose curves a click on their legend has hidden"""
    metric_query: str = ""
    metric_row: int = 0
    """index of the metric under the bar of the page of metrics"""
    pinned: tuple[str, ...] = ()
    """metrics that come first on the page of charts"""
    step: int | None = None
    """step of the completions; None follows the newest"""
    group: int = 0
    rows: Mapping[Listing, int] = field(default_factory=dict)
    """the row under the bar of each listing; -1: the last one, as it comes"""
    sort: str = "sample"
    backwards: bool = False
    """whether the order is reversed"""
    query: str = ""
    """what all samples are searched for; empty: no search"""
    listing: Listing = "step"
    prompt: str = ""
    """id of the prompt that is listed over time"""
    later: int = -1
    """index of the evaluation that is compared with the first one; -1: the newest"""
    difference: bool = False
    scroll: int = 0
    asks: bool = False
    """whether the user can pause and stop the run"""


@dataclass(frozen=True)
class Found:
    """What a search has found so far."""

    scan: Scan
    order: Sequence[int] = ()
    """the hits as they are listed"""
    spans: Sequence[range] = ()
    """the hits of each step or evaluation"""
    near: Mapping[int, SampledRollout | None] = field(default_factory=dict)
    """hits around the bar, read from the disk; None for those that are there no more"""


@dataclass(frozen=True)
class BeforeAfter:
    """The same examples in two evaluations."""

    before: EvaluationSamples
    after: EvaluationSamples
    order: Sequence[str]
    """the ids of the examples as they are listed"""
    names: Sequence[str]
    """of all evaluations that can be compared with the first one"""
    missing: str = ""
    """why there is nothing to compare"""

    @property
    def alone(self) -> bool:
        """Whether there is no later evaluation yet."""
        return self.before is self.after

    @property
    def sort_keys(self) -> list[str]:
        return list(dict.fromkeys(["sample", "tokens", *self.after.metrics, "error"]))


@dataclass(frozen=True)
class Snapshot:
    """The runs, the options and the time that a page is drawn from."""

    run: Run
    options: ViewOptions = field(default_factory=ViewOptions)
    others: tuple[Run, ...] = ()
    groups: tuple[Group, ...] = ()
    """completions of the shown step"""
    first: Group | None = None
    """rollouts of the same prompt early in the run"""
    grid: GridView | None = None
    """the grid that the run belongs to, while one is at work"""
    found: Found | None = None
    """of the listings `hits` and `time`"""
    selected: tuple[str, int | None] | None = None
    """in these, prompt and number of the sample under the bar; without a number, of the first one in the order"""
    tests: BeforeAfter | None = None
    """of the listing `tests`"""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def run_state(self) -> RunState:
        return run_state(self.run, self.now)

    @property
    def step(self) -> int:
        """The step whose completions are shown."""
        return self.options.step if self.options.step is not None else self.run.step


def as_document(run: Run) -> dict[str, Any]:
    """Return state, newest metrics, alerts and events of a run as JSON can hold them; times in seconds, None for a
    value that is not finite."""
    now = datetime.now(UTC)
    state = run_state(run, now)
    took, grid = pace(run, state, now), grid_of(run.paths)
    found = {
        "schema_version": SCHEMA_VERSION,
        "name": run.paths.name,
        "path": str(run.paths.root),
        "state": state.state,
        "detail": state.detail,
        "hint": state.hint,
        "step": run.step,
        "steps": run.total,
        "stage": run.stage,
        "stages": run.stages,
        "elapsed_s": took.elapsed_s,
        "eta_s": took.eta_s,
        "metrics": {key: value for key, value in run.row.items() if key != "schema_version"},
        "signals": [asdict(alert) for alert in find_alerts(run)],
        "events": list(run.event_rows)[-MAX_EVENTS:],
        "grid": asdict(grid) if grid else None,
    }
    return dict(finite(found))
