"""The tables of a report as LaTeX for \\input; they need the packages booktabs and longtable."""

import unicodedata
from pathlib import Path

from smolsum.report.document import MINUS, Cell, Page, Table

MAX_UNBROKEN = 36
"""letters above which a column of words breaks its lines"""
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
    """Return every table, without links; empty cells are dashes, with their commands in a comment above the table."""
    parts = [
        "% needs \\usepackage[T1]{fontenc} and \\usepackage{booktabs,longtable}; pdflatex, xelatex, lualatex set it\n"
        "% a character that pdflatex has no letter for stands as its code point, such as [U+1F600]"
    ]
    for section in page.sections:
        parts += [_table(item) for item in section.items if isinstance(item, Table)]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    commands = dict.fromkeys(cell.command for row in table.rows for cell in row if cell.command)
    comments = "".join(f"% not run: {command}\n" for command in commands)
    spec = "".join(_columns(table))
    head = " & ".join(escape(name) for name in table.columns) + r" \\"
    rows = "\n".join(" & ".join(_cell(cell) for cell in row) + r" \\" for row in table.rows)
    caption = escape(f"{table.title}. {' '.join(table.notes)}".strip())
    return (
        f"{comments}\\begin{{longtable}}{{{spec}}}\n\\caption{{{caption}}}\\label{{tab:{table.number}}}\\\\\n\\toprule\n"
        f"{head}\n\\midrule\n\\endhead\n{rows}\n\\bottomrule\n\\end{{longtable}}"
    )


def _columns(table: Table) -> list[str]:
    """Column types: numbers right, words left; columns of long texts share three quarters of the line."""
    longest = [max((len(row[n].text) for row in table.rows), default=0) for n in range(len(table.columns))]
    share = 0.75 / max(1, sum(size > MAX_UNBROKEN for size in longest))
    return [
        "r" if right else f"p{{{share:.3f}\\linewidth}}" if size > MAX_UNBROKEN else "l"
        for right, size in zip(table.numeric, longest, strict=True)
    ]


def _cell(cell: Cell) -> str:
    if cell.command:
        return "--"
    return f"\\textbf{{{escape(cell.text)}}}" if cell.best else escape(cell.text)


def escape(text: str) -> str:
    """Return a text on one line with its special characters escaped."""
    return "".join(map(_letter, " ".join(text.split())))


def _letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    parts = unicodedata.normalize("NFD", letter)
    known = letter in _PRINTED or (parts[0].isascii() and set(parts[1:]) <= _ACCENTS and letter < "\u0180")
    return letter if known else f"[U+{ord(letter):04X}]"
