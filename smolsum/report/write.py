"""A report on disk, in one of its forms."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from smolsum.disk import replace, to_json
from smolsum.report.document import to_document
from smolsum.report.html import to_html
from smolsum.report.latex import to_latex
from smolsum.report.markdown import figures, to_markdown
from smolsum.report.page import Page

Form = Literal["html", "md", "json", "latex"]
NAMES: dict[Form, str] = {"html": "report.html", "md": "report.md", "json": "report.json", "latex": "report.tex"}


def write(page: Page, folder: Path, form: Form) -> Path:
    """Writes the report into `folder`, with Markdown its figures too; returns its file. Errors as of `disk.writing`."""
    remedy = "smolsum report again, or with --out DIR"
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
