"""One moment of the view, from which every pane is drawn; and the same as JSON for `--json`."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from smolsum.files import finite
from smolsum.runs.completion_groups import Group
from smolsum.runs.reader import Run
from smolsum.runs.run_state import RunState, pace, run_state
from smolsum.watch.alerts import find_alerts

SCHEMA_VERSION = 1
MAX_EVENTS = 10
WINDOWS = (0, 512, 128, 32)
"""The newest steps that a chart shows; 0: all."""
SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weight of the past in a smoothed line."""


@dataclass(frozen=True)
class ViewOptions:
    """What the user chose to see; each key changes one."""

    ascii: bool = False
    log: bool = False
    smoothing: float = 0.0
    window: int = 0
    chart: int = 0
    """index in CHARTS of the enlarged chart"""
    step: int | None = None
    """step of the completions; None follows the newest"""
    group: int = 0
    row: int = 0
    """index of the rollout in the sorted table"""
    sort: str = "sample"
    query: str = ""
    difference: bool = False
    scroll: int = 0
    asks: bool = False
    """whether the user can pause and stop the run"""


@dataclass(frozen=True)
class Snapshot:
    """The runs, the options and the time that a page is drawn from."""

    run: Run
    options: ViewOptions = field(default_factory=ViewOptions)
    other: Run | None = None
    groups: tuple[Group, ...] = ()
    """completions of the shown step"""
    first: Group | None = None
    """rollouts of the same prompt early in the run"""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def run_state(self) -> RunState:
        """The state of the run at this moment."""
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
    took = pace(run, state, now)
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
    }
    return dict(finite(found))
