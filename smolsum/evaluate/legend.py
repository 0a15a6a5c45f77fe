"""What a summary says of its own metrics, so that whoever reads it needs to know no task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smolsum.tasks.task import ErrorKind, Headline, Row, Task


def legend(task: Task, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """The column that configurations are compared by, what a judge is asked, the headline metrics and those of each
    panel with their titles and values as they are shown, what is watched of a training, what each error means, and each
    of the task's own signals; `metrics` are the summary's."""
    panels = [{"title": panel.title, "headlines": _shown(panel.headlines, metrics)} for panel in task.panels]
    return {
        "score": task.score,
        "prompting": list(task.prompting),
        "criteria": [criterion.name for criterion in task.criteria],
        "headlines": _shown((*task.headlines, *filter(None, [task.missing])), metrics),
        "panels": [panel for panel in panels if panel["headlines"]],
        "watched": {name: list(chosen) for name, chosen in task.watched.items()},
        "errors": {kind.name: kind.meaning for kind in task.errors},
        "signals": {name: {"range": span, "meaning": words} for name, (span, words) in task.meanings.items()},
    }


def _shown(headlines: Sequence[Headline], metrics: Mapping[str, float | None]) -> list[dict[str, str]]:
    return [
        {"metric": h.metric, "title": h.title, "text": h.show(value)}
        for h in headlines
        if (value := metrics.get(h.metric)) is not None
    ]


def error_shares(kinds: Sequence[ErrorKind], rows: Sequence[Row]) -> dict[str, float | None]:
    """Returns `errors/<name>` for each kind: the share of the rows that have it, of those that can tell; None where
    none can."""
    shares: dict[str, float | None] = {}
    for kind in kinds:
        told = [shown for row in rows if (shown := kind.shown(row)) is not None]
        shares[f"errors/{kind.name}"] = sum(told) / len(told) if told else None
    return shares
