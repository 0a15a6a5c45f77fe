"""A report as a paper: one LaTeX file that pdflatex, xelatex and lualatex set as it is, with its figures in TikZ."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap

from smolsum.report.document import MINUS, Cell, Figure, Page, Table, sentence
from smolsum.report.render.tikz import colours, to_tikz

BROKEN = 12
"""letters that a column of broken lines has room for at least"""
PAGE, TURNED = 480.0, 720.0
"""widths of a line on a page, and on one turned by 90 degrees, in pt"""
SIZES = (
    ("footnotesize", 4.3, PAGE, 36),
    ("scriptsize", 3.8, PAGE, 36),
    ("scriptsize", 3.8, PAGE, 20),
    ("scriptsize", 3.8, TURNED, 36),
    ("tiny", 3.0, TURNED, 20),
)
"""what is tried until a table fits: the size of its text, the mean width of a small letter and the width of the line in
pt, and the letters above which a column breaks its lines"""
_BREAKS = frozenset(" -_")
"""letters at which a line may break"""
GAP = 7.0
"""between two columns, in pt"""
STUDY_TABLES = frozenset(("1", "2", "3", *map(str, range(4, 15)), *(f"{n}a" for n in range(10, 14))))
_PREAMBLE = r"""\documentclass[10pt,a4paper]{article}
% pdflatex, xelatex and lualatex set this file as it is. A character that pdflatex has no letter for stands as its code
% point, such as [U+1F600].
\usepackage[T1]{fontenc}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage[margin=2cm]{geometry}
\usepackage{array,booktabs,longtable,pdflscape,float,tikz}
\setlength{\tabcolsep}{3.5pt}
\setlength{\LTcapwidth}{\linewidth}
\emergencystretch=2em
"""
_ESCAPES = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    MINUS: "$-$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "∞": r"$\infty$",
    "✓": r"yes",
    "✗": r"no",
    "…": r"\ldots{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "·": r"$\cdot$",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}
_PRINTED = frozenset(
    "¡£§©ª«°²³¶¹º»¿Ææ÷ØøÐðÞþßŒœŁłıĐđ—“”„•€™†‡\u00d7\N{EN DASH}\N{LEFT SINGLE QUOTATION MARK}"
    "\N{SINGLE LOW-9 QUOTATION MARK}"
)
"""what the encoding T1 prints besides ASCII and accented letters"""
_ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327\u0328")


def to_latex(page: Page, _folder: Path) -> str:
    """Return the paper, without links. What no run fills is left out, with its commands in comments."""
    study = any(table.number == "10" for table in _tables(page))
    parts = [f"{_PREAMBLE}{colours()}\\title{{{escape(page.title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
    parts += [rf"\noindent {escape(line)}\par" for line in page.verdict.splitlines()]
    if study:
        parts.append(
            r"\noindent Tables and figures without a letter in front repeat the study's, with its numbers.\par"
        )
    for section in page.sections:
        shown = [rf"\noindent {escape(line)}\par" for line in section.text]
        for item in section.items:
            shown += [_figure(item)] if isinstance(item, Figure) else _pieces(item, study=study)
        if any("\\" in part for part in shown):  # not comments alone
            parts.append(f"\\section*{{{escape(section.title)}}}")
        parts += shown
    return "\n\n".join([*parts, r"\end{document}"]) + "\n"


def _tables(page: Page) -> Iterator[Table]:
    return (item for section in page.sections for item in section.items if isinstance(item, Table))


def _figure(figure: Figure) -> str:
    caption = escape(f"{figure.title}. {' '.join(figure.notes)}".strip())
    drawing = to_tikz(figure.svg, escape)
    return (
        f"\\begin{{figure}}[H]\\renewcommand{{\\thefigure}}{{{figure.number}}}\\centering\n{drawing}\n"
        f"\\caption{{{caption}}}\\label{{fig:{figure.number}}}\n\\end{{figure}}"
    )


@dataclass(frozen=True)
class _Fit:
    """How a table is set: the size of its text, the width of its line, and its columns."""

    size: str
    line: float
    columns: tuple[str, ...]


def _pieces(table: Table, *, study: bool) -> list[str]:
    """A table as LaTeX; turned round if it has too many columns, and cut into several if that is not enough."""
    commands = table.gap.commands if table.gap else ()
    comments = "".join(f"% {table.gap.text if table.gap else ''}, Table {table.number}: {c}\n" for c in commands)
    if not table.filled:
        return [comments.rstrip()] if comments else []
    shown = replace(table, rows=table.filled[: table.selected or None])
    if _fit(shown) is None and len(shown.columns) > len(shown.rows) + 1:
        shown = _turned(shown)
    notes = list(table.notes)
    if table.gap:
        notes.append(f"{sentence(table.gap.text)}: {', '.join(table.gap.names)}.")
    if len(shown.rows) + len(shown.columns) < len(table.filled) + len(table.columns):
        notes.append(f"{table.selected} of {len(table.filled)} examples.")
    title = table.title + (f" (study: Table {table.number})" if study and table.number in STUDY_TABLES else "")
    cut = list(_cut(shown))
    found = []
    for place, piece in enumerate(cut):
        caption = f"{title}{f' ({place + 1} of {len(cut)})' if len(cut) > 1 else ''}. {' '.join(notes)}".strip()
        label = table.number if place == 0 else f"{table.number}-{place + 1}"
        found.append((comments if place == 0 else "") + _table(piece, caption, label, table.number))
    return found


def _turned(table: Table) -> Table:
    """The table with its rows as columns."""
    columns = (table.columns[0], *(row[0].text for row in table.rows))
    rows = tuple(
        (Cell(name), *(row[place] for row in table.rows)) for place, name in enumerate(table.headings) if place
    )
    return replace(table, columns=columns, rows=rows, better={})


def _cut(table: Table) -> Iterator[Table]:
    """Parts of a table that fit, each with the first column."""
    if _fit(table) is not None or len(table.columns) < 3:
        yield table
        return
    half = (len(table.columns) + 1) // 2
    for places in ((0, *range(1, half)), (0, *range(half, len(table.columns)))):
        rows = tuple(tuple(row[place] for place in places) for row in table.rows)
        yield from _cut(replace(table, columns=tuple(table.columns[place] for place in places), rows=rows))


def _fit(table: Table) -> _Fit | None:
    """The largest setting in which a table fits; None if it fits in no setting."""
    places = range(len(table.columns))
    texts = [[row[place].text for row in table.rows] for place in places]
    for size, letter, line, unbroken in SIZES:
        broken = [n for n in places if any(len(text) > unbroken and _BREAKS & set(text) for text in texts[n])]
        taken = sum(
            letter * max(map(_letters, ["", *texts[n], *_heading(table.headings[n], texts[n])]))
            for n in places
            if n not in broken
        )
        left = line - taken - GAP * len(places)
        if left < 0 or left < len(broken) * BROKEN * letter:
            continue
        share = rf">{{\raggedright\arraybackslash}}p{{{left / max(1, len(broken)):.0f}pt}}"
        return _Fit(size, line, tuple(share if n in broken else "r" if table.numeric[n] else "l" for n in places))
    return None


def _letters(text: str) -> float:
    """The width of a text in small letters."""
    return len(text) + 0.5 * sum(letter.isupper() or letter in "+%mw✓\N{MINUS SIGN}" for letter in text)


def _heading(text: str, column: Sequence[str]) -> list[str]:
    """A heading in lines that are no longer than its column, or than its longest word; an arrow stays with a word."""
    kept = text.replace(" ↑", "\xa0↑").replace(" ↓", "\xa0↓")
    return [line.replace("\xa0", " ") for line in wrap(kept, max(6, *map(len, column)), break_long_words=False)] or [""]


def _table(table: Table, caption: str, label: str, number: str) -> str:
    fit = _fit(table) or _Fit(
        "tiny", TURNED, tuple(f"p{{{TURNED / len(table.columns) - GAP:.0f}pt}}" for _ in table.columns)
    )
    heads = []
    for place, name in enumerate(table.headings):
        if fit.columns[place].startswith(">"):  # the column breaks its own lines
            heads.append(escape(name))
            continue
        lines = _heading(name, [row[place].text for row in table.rows])
        side = "r" if fit.columns[place] == "r" else "l"
        text = r" \\ ".join(map(escape, lines))
        heads.append(text if len(lines) == 1 else f"\\shortstack[{side}]{{{text}}}")
    head = f"\\toprule\n{' & '.join(heads)} \\\\\n\\midrule"
    rows = "\n".join(" & ".join(_cell(cell) for cell in row) + r" \\" for row in table.rows)
    body = (
        f"{{\\{fit.size}\\renewcommand{{\\thetable}}{{{number}}}\n\\begin{{longtable}}{{{''.join(fit.columns)}}}\n"
        f"\\caption{{{escape(caption)}}}\\label{{tab:{label}}}\\\\\n{head}\n\\endfirsthead\n{head}\n\\endhead\n"
        f"{rows}\n\\bottomrule\n\\end{{longtable}}}}"
    )
    return f"\\begin{{landscape}}\n{body}\n\\end{{landscape}}" if fit.line == TURNED else body


def _cell(cell: Cell) -> str:
    if cell.command:
        return "--"
    text = escape(cell.text).replace(r"\_", r"\_\allowbreak{}")
    return f"\\textbf{{{text}}}" if cell.best else text


def escape(text: str) -> str:
    """Return a text on one line with its special characters escaped."""
    return "".join(map(_letter, " ".join(text.split())))


def _letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    parts = unicodedata.normalize("NFD", letter)
    known = letter in _PRINTED or (parts[0].isascii() and set(parts[1:]) <= _ACCENTS and letter < "\u0180")
    return letter if known else f"[U+{ord(letter):04X}]"
