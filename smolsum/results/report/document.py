"""The parts of a report in every format: cells that know their source, tables, figures and sections."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

MINUS = "\N{MINUS SIGN}"
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
"""what follows the name of a metric, by which values are better"""


@dataclass(frozen=True)
class CellSource:
    """Where a value comes from: a file and the field in it."""

    path: Path
    field: str

    @property
    def title(self) -> str:
        """File name and field, as the title of a link."""
        return f"{self.path.name}: {self.field}"

    def link(self, folder: Path) -> str:
        """The file as a link from `folder`."""
        return quote(Path(os.path.relpath(self.path.resolve(), folder.resolve())).as_posix())


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None
    """the value as read or computed, unrounded; None for plain text and for a missing value"""
    source: CellSource | None = None
    command: str = ""
    """the command that would fill an empty cell"""
    wider: str = ""
    """a command that would fill this cell and others like it"""
    best: bool = False
    """whether the value is the best of its column"""


@dataclass(frozen=True)
class Gap:
    """The rows of a table that nothing fills, as one line: their names, and the commands that would fill them."""

    text: str
    """what they lack, such as not run"""
    names: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table. `number` is that of the study's table that it repeats; the report's own begin with a letter."""

    number: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    folded: bool = False
    """whether HTML shows it only on request"""
    selected: int = 0
    """rows that a paper has room for; 0: all"""
    better: Mapping[str, str] = field(default_factory=dict)
    """columns of which higher or lower values are better"""

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns, each with an arrow towards its better values."""
        return tuple(f"{name}{ARROWS[self.better.get(name, '')]}" for name in self.columns)

    @property
    def filled(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that are shown: all that have a value, or no command for one."""
        return tuple(row for row in self.rows if not _is_gap(row))

    @property
    def gap(self) -> Gap | None:
        """The other rows; None if every row is shown."""
        rows = [row for row in self.rows if _is_gap(row)]
        if not rows:
            return None
        blanks = [cell for row in rows for cell in {cell.command: cell for cell in row if cell.command}.values()]
        wider = Counter(cell.wider for cell in blanks if cell.wider)
        commands = dict.fromkeys(cell.wider if wider[cell.wider] > 1 else cell.command for cell in blanks)
        names = (self._name(row) for row in rows) if self.filled else ()
        texts = dict.fromkeys(cell.text for cell in blanks)
        return Gap(", ".join(texts), tuple(dict.fromkeys(names)), tuple(commands))

    def _name(self, row: Sequence[Cell]) -> str:
        """What a row is about: its first cell, or the second if the first is the only model's."""
        if self.columns[0] != "Model" or row[1].command:
            return row[0].text
        several = len({other[0].text for other in self.rows}) > 1
        return f"{row[0].text} {row[1].text}" if several else row[1].text

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers, and so are aligned right."""
        cells = [[row[column] for row in self.filled or self.rows] for column in range(len(self.columns))]
        return [
            any(isinstance(cell.value, float) for cell in column)
            and all(isinstance(cell.value, float) or len(cell.text) < 16 for cell in column)
            for column in cells
        ]


@dataclass(frozen=True)
class Figure:
    """A drawing as inline SVG, with an alternative text."""

    number: str
    title: str
    svg: str
    alt: str
    notes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """pieces of the drawing, which a page places next to or below each other; empty if it is in one piece"""


Item: TypeAlias = Table | Figure


def _is_gap(row: Sequence[Cell]) -> bool:
    """Whether a row has a command and no value."""
    return any(cell.command for cell in row) and all(cell.value is None and cell.source is None for cell in row)


@dataclass(frozen=True)
class Section:
    """A heading with its tables and figures."""

    title: str
    items: tuple[Item, ...]
    text: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """The section's id in HTML."""
        return self.title.lower().replace(" ", "-").replace(",", "")


@dataclass(frozen=True)
class Page:
    """A whole report. `verdict` is what it says first: a line for each model."""

    title: str
    verdict: str
    sections: tuple[Section, ...]


DASH = Cell("-")
"""the cell of a value that is undefined or does not apply"""


def table(
    number: str,
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *notes: str,
    better: Mapping[str, str] | None = None,
    folded: bool = False,
    selected: int = 0,
) -> Table:
    """Return a table. What is no cell becomes a cell of its text, and empty notes are left out."""
    cells = tuple(tuple(one if isinstance(one, Cell) else Cell(str(one)) for one in row) for row in rows)
    shown = tuple(filter(None, notes))
    return Table(number, title, tuple(columns), cells, shown, folded, selected, better or {})


def letter(place: int) -> str:
    """Return a, b … z, aa, ab … for tables and figures that share a number."""
    return (letter(place // 26 - 1) if place > 25 else "") + chr(ord("a") + place % 26)


def sentence(text: str) -> str:
    """Return the text with a capital first letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def shortened(text: str, letters: int) -> str:
    """Return the text in at most so many letters; a longer one is cut and ends with an ellipsis."""
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def empty(command: str, text: str = "not run", *, wider: str = "") -> Cell:
    """Return an empty cell with the command that would fill it, and one that would fill others like it too."""
    return Cell(text, command=command, wider=wider)


def number(
    value: float | None, show: Callable[[float], str], source: CellSource | None = None, *, command: str = ""
) -> Cell:
    """Return a number formatted by `show`; for None an empty cell with the command. A dash for None without one, and
    for what is undefined (NaN)."""
    if value is None and command:
        return empty(command)
    return DASH if value is None or math.isnan(value) else Cell(show(value), float(value), source)


def mark_best(rows: Iterable[Iterable[object]], columns: Sequence[int]) -> list[list[object]]:
    """Return the rows with the highest value of each given column marked, where the column has at least two values."""
    marked = [list(row) for row in rows]
    for column in columns:
        cells = {place: cell for place, row in enumerate(marked) if isinstance(cell := row[column], Cell)}
        values = [cell.value for cell in cells.values() if isinstance(cell.value, float)]
        if len(values) > 1:
            for place, cell in cells.items():
                marked[place][column] = replace(cell, best=cell.value == max(values))
    return marked


def plain(digits: int) -> Callable[[float], str]:
    """Return a format with this number of decimals and a true minus sign."""
    return lambda value: f"{value:z.{digits}f}".replace("-", MINUS)


def signed(digits: int) -> Callable[[float], str]:
    """Return the same format with a plus sign for positive numbers."""
    return lambda value: f"{value:+z.{digits}f}".replace("-", MINUS)


def percent(value: float) -> str:
    """Format a share as a percentage with one decimal."""
    return f"{100 * value:.1f}%"


def p_value(value: float) -> str:
    """Format a p value as the study does: four decimals, and powers of ten below 0.001."""
    return f"{value:.2e}" if 0 < value < 0.001 else f"{value:.4f}"
