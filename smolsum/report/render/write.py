"""A report on disk, in one of its forms.

A report as one JSON document: every cell with its unrounded value, its source and, if empty, its command.
"""

from __future__ import annotations

from dataclasses import replace as but
from pathlib import Path
from typing import Any, Literal

from smolsum.console import visible
from smolsum.files import replace, to_json
from smolsum.report.document import Cell, Figure, Item, Page, Section
from smolsum.report.render.html import to_html
from smolsum.report.render.latex import to_latex
from smolsum.report.render.markdown import figures, to_markdown

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
                "items": [_item_document(item, folder) for item in section.items],
            }
            for section in page.sections
        ],
    }


def _item_document(item: Item, folder: Path) -> dict[str, Any]:
    if isinstance(item, Figure):
        return {"figure": item.number, "title": item.title, "alt": item.alt, "notes": list(item.notes)}
    return {
        "table": item.number,
        "title": item.title,
        "columns": list(item.columns),
        "rows": [[_cell_document(cell, folder) for cell in row] for row in item.rows],
        "notes": list(item.notes),
    }


def _cell_document(cell: Cell, folder: Path) -> dict[str, Any]:
    if cell.command:
        return {"text": None, "command": cell.command}
    found: dict[str, Any] = {"text": cell.text}
    if cell.value is not None:
        found["value"] = cell.value
    if cell.source is not None:
        found |= {"file": cell.source.link(folder), "field": cell.source.field}
    return found


Form = Literal["html", "md", "json", "latex"]
NAMES: dict[Form, str] = {"html": "report.html", "md": "report.md", "json": "report.json", "latex": "report.tex"}


def write(page: Page, folder: Path, form: Form) -> Path:
    """Writes the report into `folder`, with Markdown its figures too; returns its file. Errors as of `disk.writing`."""
    remedy = "smolsum report again, or with --out DIR"
    if form != "json":  # which has escapes of its own
        page = _visible(page)
    files = {NAMES[form]: _content(page, folder, form)}
    if form == "md":
        files |= {name: svg.encode("utf-8", "backslashreplace") for name, svg in figures(page).items()}
    for name, content in files.items():
        replace(folder / name, content, remedy)
    return folder / NAMES[form]


def _content(page: Page, folder: Path, form: Form) -> bytes:
    if form == "json":
        return to_json(to_document(page, folder), indent=1)
    text = {
        "html": lambda: to_html(page, folder),
        "md": lambda: to_markdown(page, folder),
        "latex": lambda: to_latex(page),
    }
    # half a surrogate pair in a completion is no text in UTF-8
    return text[form]().encode("utf-8", "backslashreplace")


def _visible(page: Page) -> Page:
    """The page with control characters as signs, before a form's own escapes: a completion may hold any."""
    sections = tuple(
        Section(_shown(one.title), tuple(map(_item, one.items)), tuple(map(_shown, one.text))) for one in page.sections
    )
    return Page(_shown(page.title), _shown(page.verdict), sections)


def _item(item: Item) -> Item:
    notes = tuple(map(_shown, item.notes))
    if isinstance(item, Figure):
        parts = tuple(map(_shown, item.parts))
        return but(item, title=_shown(item.title), svg=_shown(item.svg), alt=_shown(item.alt), notes=notes, parts=parts)
    rows = tuple(tuple(map(_cell, row)) for row in item.rows)
    return but(item, title=_shown(item.title), columns=tuple(map(_shown, item.columns)), rows=rows, notes=notes)


def _cell(cell: Cell) -> Cell:
    source = cell.source and but(cell.source, field=_shown(cell.source.field))
    return but(cell, text=_shown(cell.text), command=_shown(cell.command), source=source)


def _shown(text: str) -> str:
    return visible(text.replace("\r\n", "\n"))
