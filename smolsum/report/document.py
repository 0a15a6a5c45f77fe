"""A report as one JSON document: every cell with its unrounded value, its source and, if empty, its command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smolsum.report.html import relative
from smolsum.report.page import Cell, Figure, Item, Page

SCHEMA_VERSION = 1


def to_document(page: Page, folder: Path) -> dict[str, Any]:
    """Returns the page; paths are relative to `folder`. A figure is told by its alternative text."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": page.title,
        "verdict": page.verdict,
        "sections": [
            {
                "title": section.title,
                "text": list(section.text),
                "items": [_item(item, folder) for item in section.items],
            }
            for section in page.sections
        ],
    }


def _item(item: Item, folder: Path) -> dict[str, Any]:
    if isinstance(item, Figure):
        return {"figure": item.number, "title": item.title, "alt": item.alt, "notes": list(item.notes)}
    return {
        "table": item.number,
        "title": item.title,
        "columns": list(item.columns),
        "rows": [[_cell(cell, folder) for cell in row] for row in item.rows],
        "notes": list(item.notes),
    }


def _cell(cell: Cell, folder: Path) -> dict[str, Any]:
    if cell.command:
        return {"text": None, "command": cell.command}
    found: dict[str, Any] = {"text": cell.text}
    if cell.value is not None:
        found["value"] = cell.value
    if cell.source is not None:
        found |= {"file": relative(cell.source.path, folder), "field": cell.source.field}
    return found
