"""A report as a paper: LaTeX that is whole, fits its pages, and holds its figures."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smolsum.results.report import charts
from smolsum.results.report.charts import AxisText, Spot, Trajectory
from smolsum.results.report.document import Cell, Page, Section, Table, number, plain
from smolsum.results.report.latex import to_latex, to_tikz


@pytest.fixture(scope="module")
def paper(study: Page) -> str:
    return to_latex(study)


def of(table: Table) -> str:
    """A paper of one table."""
    return to_latex(Page("t", "v", (Section("s", (table,)),)))


def wide(columns: int, rows: int = 3, letters: int = 9) -> Table:
    """A table of words without spaces."""
    cells = tuple((Cell(f"row-{n}"), *(Cell("x" * letters) for _ in range(columns - 1))) for n in range(rows))
    return Table("S8", "wide", tuple(f"c{n}" for n in range(columns)), cells)


def line_widths(text: str) -> list[tuple[float, float]]:
    """For each table, the letters of its longest line at the mean width of a letter, and the width of its page."""
    found = []
    for landscape, size, body in re.findall(
        r"(\\begin\{landscape\}\n)?\{\\(\w+)\\renewcommand\{\\thetable.*?endhead\n(.*?)\\bottomrule", text, re.DOTALL
    ):
        letter = {"footnotesize": 4.2, "scriptsize": 3.7, "tiny": 2.9}[size]
        rows = [line.removesuffix(r" \\\\").split(" & ") for line in body.strip().splitlines()]
        longest = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        found.append((sum(longest) * letter, 720.0 if landscape else 480.0))
    return found


def test_everything_that_opens_is_closed(paper: str) -> None:
    assert paper.startswith(r"\documentclass")
    assert paper.endswith("\\end{document}\n")
    for name in ("longtable", "figure", "tikzpicture", "landscape", "document"):
        assert paper.count(f"\\begin{{{name}}}") == paper.count(f"\\end{{{name}}}") > 0
    depth = 0
    for mark in re.sub(r"\\[{}\\]", "", re.sub(r"(?m)^%.*$", "", paper)):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        assert depth >= 0
    assert depth == 0


def test_numbers_are_those_of_the_page(paper: str) -> None:
    """Results keep their columns, and the study's tables say so."""
    assert r"\renewcommand{\thetable}{10a}" in paper
    caption = paper.partition(r"\label{tab:10}")[0].rpartition(r"\caption{")[2]
    assert "(study: Table 10)" in caption
    head = paper.partition(r"\label{tab:10}")[2].partition(r"\midrule")[0]
    assert all(name in head for name in (r"$\Delta$Average", " t ", " p ", r"95 \%", "Direction"))
    assert "(study: Table S" not in paper


def test_samples_are_selected(paper: str) -> None:
    assert paper.count("test-0000") == 2
    assert "3 of 20 examples." in paper
    assert "test-0190" not in paper


def test_wide_tables_fit() -> None:
    """Smaller text, then a turned page, then rows as columns, then several tables; all cells stay."""
    for columns in (5, 9, 14, 30, 60):
        text = of(wide(columns))
        assert all(width <= page for width, page in line_widths(text)), columns
        assert text.count("x" * 9) == 3 * (columns - 1)
    assert r"\begin{landscape}" not in of(wide(8))
    assert "(1 of " in of(wide(60, rows=70))


@pytest.mark.parametrize(
    ("table", "width"),
    [
        (Table("S9", "t", ("a", "b"), ((Cell("name-of_a_run" * 8), Cell("x" * 60)),)), r"p\{"),
        # a column of sentences gets what the others leave
        (Table("S9", "t", ("a", "b"), ((Cell("x"), Cell("many_ words " * 40)), (number(1.5, plain(1)), Cell("y")))),
         r"p\{4\d\dpt\}"),
    ],
)  # fmt: skip
def test_long_names_and_texts_break(table: Table, width: str) -> None:
    """A run's name without a space breaks at its hyphens and underscores."""
    assert re.search(r"longtable\}\{.*" + width, of(table))
    assert r"\_\allowbreak{}" in of(table)


def test_drawings_are_where_the_page_has_them() -> None:
    """Each shape of an SVG is one of TikZ, at the same place, with its texts escaped."""
    trajectory = Trajectory("50% & more", (Spot("a_b", 0.0, 0.0, (0.0, 0.1), (-0.1, 0.1)), Spot("c", 1.0, 1.0)))
    axis = AxisText("x", lambda value: f"{value:g}%")
    svg = charts.trajectory_plot([trajectory], alt="x", x_axis=axis, y_axis=axis)
    drawn = to_tikz(svg)
    for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg):
        assert f"({float(x):g},{float(y):g}) circle" in drawn
    assert drawn.count(r"\node") == svg.count("<text")
    assert drawn.count(r"\draw") == svg.count("<path")
    assert r"a\_b" in drawn
    assert r"1\%" in drawn
    assert "title" not in drawn


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex, with the packages of texlive-latex-extra")
def test_pdflatex_sets_the_paper(paper: str, tmp_path: Path) -> None:
    (tmp_path / "report.tex").write_text(paper)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    for _ in range(2):  # the first leaves the widths of the columns to the second
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert "Overfull \\hbox" not in done.stdout
