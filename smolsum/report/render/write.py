"""A report on disk, in one of its formats. The JSON document has every cell with its unrounded value, its source and,
if it is empty, its command."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any, Literal

from smolsum.console import visible
from smolsum.files import replace, to_json
from smolsum.report.document import Cell, Figure, Item, Page
from smolsum.report.render.html import to_html
from smolsum.report.render.latex import to_latex
from smolsum.report.render.markdown import figures, to_markdown

SCHEMA_VERSION = 1
Format = Literal["html", "md", "json", "latex"]
NAMES: dict[Format, str] = {"html": "report.html", "md": "report.md", "json": "report.json", "latex": "report.tex"}


def write(page: Page, folder: Path, form: Format) -> Path:
    """Write the report into `folder`, with the figures of Markdown as files, and return its path. Raises SmolsumError
    if a file cannot be written."""
    path = folder / NAMES[form]
    if form == "json":
        files = {path: to_json(to_document(page, folder), indent=1)}
    else:
        page = printable(page)
        render: Callable[[Page, Path], str] = {"html": to_html, "md": to_markdown, "latex": to_latex}[form]
        texts = {path: render(page, folder)}
        if form == "md":
            texts |= {folder / name: svg for name, svg in figures(page.sections).items()}
        # half a surrogate pair in a completion has no UTF-8
        files = {file: text.encode("utf-8", "backslashreplace") for file, text in texts.items()}
    for file, content in files.items():
        replace(file, content, "smolsum report again, or with --output DIR")
    return path


def to_document(page: Page, folder: Path) -> dict[str, Any]:
    """Return the page for JSON; paths are relative to `folder`, and a figure has its alternative text."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": page.title,
        "verdict": " ".join(page.verdict.splitlines()),
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
        **({"better": dict(item.better)} if item.better else {}),
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
        found |= {"file": cell.source.link(folder), "field": cell.source.field}
    return found


def printable(part: Any) -> Any:
    """Return a part of a report with control characters as visible escapes: a completion may contain any. JSON escapes
    them itself."""
    if isinstance(part, str):
        return visible(part.replace("\r\n", "\n"))
    if isinstance(part, tuple):
        return tuple(map(printable, part))
    if is_dataclass(part) and not isinstance(part, type):
        return with_fields(part, **{field.name: printable(getattr(part, field.name)) for field in fields(part)})
    return part
