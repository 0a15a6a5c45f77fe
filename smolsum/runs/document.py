"""A run as JSON, for other programs: state, newest metrics, alerts and events."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from smolsum.files import finite
from smolsum.runs.alerts import find_alerts
from smolsum.runs.grid_follower import grid_of
from smolsum.runs.reader import Run
from smolsum.runs.records import Status
from smolsum.runs.state import pace, run_state

SCHEMA_VERSION = 1
MAX_EVENTS = 10


def as_document(run: Run) -> dict[str, Any]:
    """Return state, newest metrics, alerts and events of a run as JSON can hold them; times in seconds, None for a
    value that is not finite."""
    now, grid = datetime.now(UTC), grid_of(run.paths)
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
        "sampling": _sampling(run.status) if state.alive else None,
        "metrics": {key: value for key, value in run.row.items() if key != "schema_version"},
        "signals": [asdict(alert) for alert in find_alerts(run)],
        "events": list(run.event_rows)[-MAX_EVENTS:],
        "grid": asdict(grid) if grid else None,
    }
    return dict(finite(found))


def _sampling(status: Status) -> dict[str, float | None] | None:
    """Return how far the evaluation, the validation or the step under way is with its completions; None where none are
    being sampled."""
    if not status.completions or status.phase == "updating":  # which counts groups
        return None
    return {name: getattr(status, name) for name in ("completions", "done", "tok_s", "left_s")}
