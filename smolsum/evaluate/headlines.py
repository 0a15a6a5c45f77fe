"""What people look at first: a row for the model at the start and after each stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smolsum.runs import RunPaths
from smolsum.tasks.task import Headline, Task


def headline_table(
    headlines: Sequence[Headline], results: Mapping[str, Mapping[str, float | None]]
) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of the metrics by label; a metric that has no value anywhere is left out."""
    known = [name for metrics in results.values() for name, value in metrics.items() if value is not None]
    shown = [h for h in headlines if h.metric in known]
    rows = []
    for label, metrics in results.items():
        cells = [h.show(v) if (v := metrics.get(h.metric)) is not None else "-" for h in shown]
        rows.append([label if label == "start" else f"after {label}", *cells])
    return ["model", *(h.title for h in shown)], rows


def lacking(
    task: Task, results: Mapping[str, Mapping[str, float | None]], examples: int, run: RunPaths
) -> Iterator[str]:
    """A sentence for each label whose means are not of all examples; those of the last can be asked again."""
    for label, metrics in results.items():
        if lacks := task.lacks(metrics, examples):
            yield f"{label}: {lacks}" + (f"; {run.evaluate_command} asks again" if label == list(results)[-1] else "")
