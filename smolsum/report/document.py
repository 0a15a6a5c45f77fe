"""What a report is made of, whatever it is written as: cells that know their source, tables, figures, sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class CellSource:
    """Where a value was read: a file and the field in it."""

    path: Path
    field: str


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    value: float | str | None = None
    """as it was read or computed, unrounded; None for what is only text, or missing"""
    source: CellSource | None = None
    command: str = ""
    """of an empty cell: the command that would fill it"""
    best: bool = False
    """whether it is the best of its column"""


@dataclass(frozen=True)
class Table:
    """A table. `number` is that of the study's table which it repeats, or one with an S of its own."""

    number: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    folded: bool = False
    """whether it opens on request only, where that is possible"""


@dataclass(frozen=True)
class Figure:
    """A drawing as inline SVG, and what it shows in words."""

    number: str
    title: str
    svg: str
    alt: str
    notes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """the same in pieces, which a page sets beside or below one another as it has room; none if it is in one piece"""


Item: TypeAlias = Table | Figure


@dataclass(frozen=True)
class Section:
    """A heading with what is below it."""

    title: str
    items: tuple[Item, ...]
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A whole report. `verdict` is its first sentence."""

    title: str
    verdict: str
    sections: tuple[Section, ...]


def letter(place: int) -> str:
    """a, b … z, aa, ab … for tables and figures that share a number."""
    return (letter(place // 26 - 1) if place > 25 else "") + chr(ord("a") + place % 26)


def words(text: object) -> Cell:
    """A cell of text."""
    return Cell(str(text))


def sentence(text: str) -> str:
    """The text with a capital at its beginning; names keep theirs."""
    return text[:1].upper() + text[1:]


def empty(command: str, text: str = "not run") -> Cell:
    """A cell that nothing fills yet, with the command that would."""
    return Cell(text, command=command)


def number(
    value: float | None, show: Callable[[float], str], source: CellSource | None = None, *, command: str = ""
) -> Cell:
    """A number as `show` writes it; None is an empty cell."""
    return empty(command) if value is None else Cell(show(value), float(value), source)


def mark_best(rows: Sequence[tuple[Cell, ...]], columns: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
    """Returns the rows with the highest value of each of the columns marked, unless it stands alone."""
    marked = [list(row) for row in rows]
    for column in columns:
        values = [cell.value for row in rows if isinstance((cell := row[column]).value, float)]
        if len(values) < 2:
            continue
        highest = max(value for value in values if isinstance(value, float))
        for row in marked:
            cell = row[column]
            if cell.value == highest:
                row[column] = Cell(cell.text, cell.value, cell.source, cell.command, best=True)
    return tuple(tuple(row) for row in marked)


def plain(digits: int) -> Callable[[float], str]:
    """Writes a number with so many decimals and a true minus sign."""
    return lambda value: f"{round(value, digits) + 0.0:.{digits}f}".replace("-", MINUS)


def signed(digits: int) -> Callable[[float], str]:
    """The same with a plus sign too."""
    return lambda value: f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", MINUS)


def percent(value: float) -> str:
    """Writes a share with one decimal of a per cent."""
    return f"{100 * value:.1f}%"


def p_value(value: float) -> str:
    """Writes a p value as the study does: four decimals, and powers of ten below 0.001."""
    return f"{value:.2e}" if 0 < value < 0.001 else f"{value:.4f}"
