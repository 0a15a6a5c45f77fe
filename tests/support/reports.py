"""Reports of run directories, and changes of their records."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from smolsum.results.report.build import build
from smolsum.results.report.collect import ReportInputs, gather
from smolsum.results.report.compatibility import comparable
from smolsum.results.report.document import Figure, Page, Table


def read(folder: Path) -> ReportInputs:
    """All runs and evaluations of a folder, as the report reads them."""
    return comparable(gather([str(path) for path in sorted(folder.iterdir())], folder))


def report_of(*roots: Path) -> Page:
    """The report of these runs."""
    return build(comparable(gather([str(root) for root in roots], roots[0].parent)))


def tables(page: Page) -> dict[str, Table]:
    """The tables of a report by their numbers."""
    return {item.number: item for section in page.sections for item in section.items if isinstance(item, Table)}


def figures(page: Page) -> dict[str, Figure]:
    """The figures of a report by their numbers."""
    return {item.number: item for section in page.sections for item in section.items if isinstance(item, Figure)}


def commands(page: Page) -> set[str]:
    """The commands that fill what a report lacks."""
    found = tables(page).values()
    cells = {cell.command for table in found for row in table.rows for cell in row if cell.command}
    return cells | {command for table in found if table.gap for command in table.gap.commands}


def edit(path: Path, **changes: Any) -> None:
    """Give a JSON record other values under these keys."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_lines(path: Path, change: Callable[[int, dict[str, Any]], dict[str, Any] | None]) -> None:
    """Put other rows into a JSON Lines file, each made from its number and the old one; None leaves it out."""
    old: Iterable[dict[str, Any]] = map(json.loads, path.read_text().splitlines())
    rows = [row for place, one in enumerate(old) if (row := change(place, one)) is not None]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
