"""A report as Markdown, with its figures as SVG files next to it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from smolsum.report.document import Cell, Figure, Gap, Item, Page, Section, Table
from smolsum.report.render.html import style


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
        lines += [*_item(item, folder, figures_in), ""]
    return lines


def figures(sections: Iterable[Section]) -> dict[str, str]:
    """Return the SVG files of sections by name; each has its own colours."""
    found = {}
    for section in sections:
        for item in section.items:
            if isinstance(item, Figure):
                opening, _, rest = item.svg.partition(">")
                found[_file(item)] = f"{opening}><style>{style()}</style>{rest}\n"
    return found


def _file(figure: Figure) -> str:
    return f"figure-{figure.number}.svg"


def _item(item: Item, folder: Path, figures_in: str) -> list[str]:
    notes = [line for note in item.notes for line in ("", _plain(note))]
    if isinstance(item, Figure):
        drawing = f"![{_plain(item.alt)}]({figures_in}{_file(item)})"
        return [f"**Figure {item.number}: {_plain(item.title)}**", "", drawing, *notes]
    caption, gap = f"Table {item.number}: {_plain(item.title)}", item.gap
    missing = [] if gap is None else [_gap(gap)]
    if not item.filled:
        return [f"**{caption}**: {' '.join(missing)}"]
    lines = ["", f"{missing[0][:1].upper()}{missing[0][1:]}"] if missing else []
    return [f"**{caption}**", "", *_table(item, folder), *lines, *notes]


def _gap(gap: Gap) -> str:
    """The rows that nothing fills, with the commands that would."""
    names = f": {_plain(', '.join(gap.names))}" if gap.names else ""
    return f"{gap.text}{names}: {'; '.join(f'`{command}`' for command in gap.commands)}"


def _table(table: Table, folder: Path) -> list[str]:
    rules = ["--:" if right else ":--" for right in table.numeric]
    rows = [[*_row(row, folder)] for row in table.filled]
    return [f"| {' | '.join(row)} |" for row in ([_plain(name) for name in table.headings], rules, *rows)]


def _row(row: Sequence[Cell], folder: Path) -> Iterator[str]:
    """The cells of a row; a command that fills several neighbours is named once."""
    command = ""
    for cell in row:
        if cell.command:
            yield f"*{cell.text}*" if cell.command == command else f"*{cell.text}:* `{cell.command}`"
        else:
            yield _cell(cell, folder)
        command = cell.command


def _cell(cell: Cell, folder: Path) -> str:
    shown = f"**{_plain(cell.text)}**" if cell.best else _plain(cell.text)
    if cell.source is None:
        return shown
    return f'[{shown}]({cell.source.link(folder)} "{cell.source.title}")'


def _plain(text: str) -> str:
    """A text on one line with its special characters escaped."""
    line = " ".join(text.split())
    for mark in ("\\", "`", "*", "_", "[", "]", "<", ">", "|"):
        line = line.replace(mark, f"\\{mark}")
    return line
