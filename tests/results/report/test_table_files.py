"""Tables of a report as CSV and Parquet."""

import io

import polars as pl

from smolsum.results.report.document import DASH, Cell, Page, Section, Table
from smolsum.results.report.table_files import table_files


def test_intervals_follow_as_text() -> None:
    """A number keeps its column of floats; what is shown around it is not lost."""
    rows = ((Cell("a"), Cell("+95.5 [+92.6, +95.5] better", 0.955)), (Cell("b"), DASH))
    page = Page("", "", (Section("found", (Table("S0", "difference", ("run", "difference"), rows),)),))
    frame = pl.read_csv(io.BytesIO(table_files(page, "csv")["table-S0.csv"]))
    assert frame.to_dict(as_series=False) == {
        "run": ["a", "b"],
        "difference": [0.955, None],
        "difference, as shown": ["+95.5 [+92.6, +95.5] better", None],
    }
