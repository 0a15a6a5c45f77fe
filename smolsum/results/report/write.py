"""A report on disk: as JSON, where every cell has its unrounded value, its source and, if it is empty, its command; as
one HTML file without network, light and dark, for a phone, a screen and paper, whose short script sorts tables, filters
legends and copies, and is not needed to read it; as Markdown with its figures as SVG files next to it; as LaTeX; and as
a file for each table (`table_files.py`)."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from dataclasses import replace as with_fields
from functools import cache
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from smolsum.console import visible
from smolsum.files import replace, to_json
from smolsum.results.report.document import Cell, Figure, Gap, Item, Page, Section, sentence
from smolsum.results.report.latex import to_latex
from smolsum.results.report.table_files import FOLDER, table_files

SCHEMA_VERSION = 1
Format = Literal["html", "md", "json", "latex", "csv", "parquet"]
AROUND = 40
"""bytes of a line that are shown before and after the first one that differs"""


def write(files: Mapping[Path, bytes]) -> None:
    """Write the files of a report. Raises SmolsumError if one cannot be written."""
    for file, content in files.items():
        replace(file, content, "smolsum report again, or with --output DIR")


def differences(files: Mapping[Path, bytes]) -> list[str]:
    """Return a sentence on each line on the disk that is not what the runs give, and on each file that is missing."""
    found: list[str] = []
    for file, content in files.items():
        if not file.is_file():
            found.append(f"{file} is missing")
            continue
        if file.suffix == ".parquet":  # it has no lines
            found += [] if file.read_bytes() == content else [f"{file} is not what the runs give"]
            continue
        pairs = zip_longest(file.read_bytes().splitlines(), content.splitlines(), fillvalue=b"")
        found += [
            f"{file}:{number} is {_near(then, now)}, the runs give {_near(now, then)}"
            for number, (then, now) in enumerate(pairs, start=1)
            if then != now
        ]
    return found


def left_over(files: Mapping[Path, bytes], folder: Path) -> list[Path]:
    """Return the files in `folder`, of the kind of these, that are not among them: an earlier report wrote them."""
    kind = next(iter(files)).suffix
    return sorted(path for path in folder.rglob(f"*{kind}") if path not in files)


def _near(line: bytes, other: bytes) -> str:
    """Return the part of a line where it differs from another."""
    pairs = zip_longest(line, other)
    same = next((place for place, (one, two) in enumerate(pairs) if one != two), 0)
    text = line[max(0, same - AROUND) : same + AROUND].decode("utf-8", "replace").strip()
    return repr(text)


def report_files(page: Page, folder: Path, form: Format) -> dict[Path, bytes]:
    """Return the content of each file of the report in `folder`; the first one is the report itself. Figures of
    Markdown are files of their own, and so are the tables as CSV or Parquet."""
    if form == "csv" or form == "parquet":
        return {folder / FOLDER / name: content for name, content in table_files(page, form).items()}
    if form == "json":
        return {folder / "report.json": to_json(to_document(page, folder), indent=1)}
    page = printable(page)
    if form == "html":
        texts = {"report.html": to_html(page, folder)}
    elif form == "latex":
        texts = {"report.tex": to_latex(page)}
    else:
        texts = {"report.md": to_markdown(page, folder), **figures(page.sections)}
    # half a surrogate pair in a completion has no UTF-8
    return {folder / name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}


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


def to_html(page: Page, folder: Path) -> str:
    """Return the page for a file in `folder`, with links relative to it."""
    template = templates(escaped=True).get_template("page.html.j2")
    return template.render(page=page, folder=folder, style=Markup(style()), script=Markup(script()), classes=_classes)


@cache
def style() -> str:
    """Return the style sheet, which has the colours of the page and of the charts."""
    return templates(escaped=True).get_template("style.css.j2").render().strip()


@cache
def script() -> str:
    """Return the script of the page."""
    return templates(escaped=True).get_template("page.js.j2").render().strip()


@cache
def templates(*, escaped: bool) -> Environment:
    """Return the templates; where they are `escaped`, every value in them that is not `Markup` is."""
    found = Environment(
        loader=PackageLoader("smolsum.results.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: escape(str(value)) if escaped and not isinstance(value, Markup) else value,
    )
    found.filters |= {"quote": shlex.quote, "printable": printable}
    return found


def _classes(cell: Cell, numeric: bool) -> Markup:
    """The class attribute of a filled cell; empty if it needs none."""
    size = len(cell.text)
    kinds = {
        "n": numeric and size < 20,
        "r": numeric and size >= 20,
        "b": cell.best,
        "w": size > 60,
        "k": not numeric and size < 34,
        "l": not numeric and 34 <= size <= 60,
    }
    found = " ".join(kind for kind, holds in kinds.items() if holds)
    return Markup(f' class="{found}"' if found else "")


def to_markdown(page: Page, folder: Path) -> str:
    """Return the page for a file in `folder`, with links relative to it."""
    lines = [f"# {page.title}", ""]
    for line in page.verdict.splitlines():
        lines += [_plain(line), ""]
    for section in page.sections:
        lines += section_lines(section, folder)
    return "\n".join(lines)


def section_lines(section: Section, folder: Path, figures_in: str = "") -> list[str]:
    """Return the lines of a section; its figures are in `figures_in`, a folder in `folder` with its slash."""
    lines = [f"## {section.title}", ""]
    lines += [f"- {_plain(line)}" for line in section.text] + ([""] if section.text else [])
    for item in section.items:
        lines += [*_markdown_item(item, folder, figures_in), ""]
    return lines


def figures(sections: Iterable[Section]) -> dict[str, str]:
    """Return the SVG files of sections by name; each has its own colours."""
    found = {}
    for section in sections:
        for item in section.items:
            if isinstance(item, Figure):
                opening, _, rest = item.svg.partition(">")
                found[f"figure-{item.number}.svg"] = f"{opening}><style>{style()}</style>{rest}\n"
    return found


def _markdown_item(item: Item, folder: Path, figures_in: str) -> list[str]:
    notes = [line for note in item.notes for line in ("", _plain(note))]
    if isinstance(item, Figure):
        drawing = f"![{_plain(item.alt)}]({figures_in}figure-{item.number}.svg)"
        return [f"**Figure {item.number}: {_plain(item.title)}**", "", drawing, *notes]
    caption, gap = f"**Table {item.number}: {_plain(item.title)}**", _gap(item.gap)
    if not item.filled:
        return [f"{caption}: {gap}"]
    rules = ["--:" if right else ":--" for right in item.numeric]
    rows = [list(map(_plain, item.headings)), rules, *(list(_markdown_row(row, folder)) for row in item.filled)]
    return [caption, "", *(f"| {' | '.join(row)} |" for row in rows), *(["", sentence(gap)] if gap else []), *notes]


def _gap(gap: Gap | None) -> str:
    """The rows that nothing fills, with the commands that would; empty if every row is shown."""
    if gap is None:
        return ""
    names = f": {_plain(', '.join(gap.names))}" if gap.names else ""
    return f"{gap.text}{names}: {'; '.join(f'`{command}`' for command in gap.commands)}"


def _markdown_row(row: Sequence[Cell], folder: Path) -> Iterator[str]:
    """The cells of a row; a command that fills several neighbours is named once."""
    command = ""
    for cell in row:
        shown = f"**{_plain(cell.text)}**" if cell.best else _plain(cell.text)
        if cell.command:
            yield f"*{cell.text}*" if cell.command == command else f"*{cell.text}:* `{cell.command}`"
        elif cell.source:
            yield f'[{shown}]({cell.source.link(folder)} "{cell.source.title}")'
        else:
            yield shown
        command = cell.command


def _plain(text: str) -> str:
    """A text on one line with its special characters escaped."""
    line = " ".join(text.split())
    for mark in ("\\", "`", "*", "_", "[", "]", "<", ">", "|"):
        line = line.replace(mark, f"\\{mark}")
    return line
