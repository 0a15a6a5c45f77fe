"""The tables of a report as CSV or Parquet, one file each, for other programs: values as they were read or computed,
not rounded, and a column of numbers wherever nothing else is in it. What is missing is null, and an empty field in CSV.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import polars as pl

from smolsum.results.report.document import DASH, Cell, Page, Table

FOLDER = "tables"
CONTENTS = "contents"
"""the file that says what the others hold"""


def table_files(page: Page, form: Literal["csv", "parquet"]) -> dict[str, bytes]:
    """Return the files of all tables that have a row, by name; the first lists them with number, title, section and
    notes. The same page gives the same bytes with the same version of polars."""
    listed, files = [], {}
    for section in page.sections:
        for item in section.items:
            if isinstance(item, Table) and item.filled:
                name = f"table-{item.number}.{form}"
                files[name] = _encoded(_frame(item), form)
                listed.append((name, item.number, item.title, section.title, "\n".join(item.notes)))
    columns = ("file", "table", "title", "section", "notes")
    contents = pl.DataFrame(listed, schema=dict.fromkeys(columns, pl.String), orient="row")
    return {f"{CONTENTS}.{form}": _encoded(contents, form), **files}


def _frame(table: Table) -> pl.DataFrame:
    """Return a table with names of columns that differ: a second `p` is `p (2)`. Where numbers are shown with their
    interval, it follows as text."""
    found: dict[str, pl.Series] = {}

    def add(name: str, cells: Sequence[Cell]) -> None:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name} ({number})"
        found[unique] = _series(unique, cells)

    for place, name in enumerate(table.columns):
        cells = [row[place] for row in table.filled]
        add(name, cells)
        if any(isinstance(cell.value, float) and "[" in cell.text for cell in cells):
            add(f"{name}, as shown", [replace(cell, value=None) for cell in cells])
    return pl.DataFrame(found)


def _series(name: str, cells: Iterable[Cell]) -> pl.Series:
    """Return a column: of floats if all that it has are numbers, else of texts."""
    values = [_value(cell) for cell in cells]
    if all(value is None or isinstance(value, float) for value in values):
        return pl.Series(name, values, dtype=pl.Float64)
    texts = [repr(value) if isinstance(value, float) else value for value in values]
    return pl.Series(name, texts, dtype=pl.String)


def _value(cell: Cell) -> float | str | None:
    if cell.command or cell == DASH:
        return None
    if isinstance(cell.value, int | float):
        return float(cell.value)
    # half a surrogate pair in a completion has no UTF-8
    return (cell.value or cell.text).encode("utf-8", "backslashreplace").decode()


def _encoded(frame: pl.DataFrame, form: str) -> bytes:
    buffer = io.BytesIO()
    if form == "csv":
        frame.write_csv(buffer)
    else:
        frame.write_parquet(buffer)
    return buffer.getvalue()
