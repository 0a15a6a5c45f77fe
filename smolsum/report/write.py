"""A report on disk, in one of its forms."""

from __future__ import annotations

from dataclasses import replace as but
from pathlib import Path
from typing import Literal

from smolsum.console import visible
from smolsum.disk import replace, to_json
from smolsum.report.document import to_document
from smolsum.report.html import to_html
from smolsum.report.latex import to_latex
from smolsum.report.markdown import figures, to_markdown
from smolsum.report.page import Cell, Figure, Item, Page, Section

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
