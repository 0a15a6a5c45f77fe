"""What a summary says of its own metrics, so that whoever reads it needs to know no task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.tasks.task import ErrorKind, Row, Task


def legend(task: Task, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """The column that configurations are compared by, what a judge is asked, the headline metrics with their titles and
    values as they are shown, what each error means, and each of the task's own signals; `metrics` are the summary's."""
    return {
        "score": task.score,
        "prompting": list(task.prompting),
        "criteria": [criterion.name for criterion in task.criteria],
        "headlines": [
            {"metric": h.metric, "title": h.title, "text": h.show(value)}
            for h in task.headlines
            if (value := metrics.get(h.metric)) is not None
        ],
        "errors": {kind.name: kind.meaning for kind in task.errors},
        "signals": {name: {"range": span, "meaning": words} for name, (span, words) in task.meanings.items()},
    }


def error_shares(kinds: Sequence[ErrorKind], rows: Sequence[Row]) -> dict[str, float | None]:
    """Returns `errors/<name>` for each kind: the share of the rows that have it, of those that can tell; None where
    none can."""
    shares: dict[str, float | None] = {}
    for kind in kinds:
        told = [shown for row in rows if (shown := kind.shown(row)) is not None]
        shares[f"errors/{kind.name}"] = sum(told) / len(told) if told else None
    return shares
