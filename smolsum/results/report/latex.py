"""A report as a paper: one LaTeX file that pdflatex, xelatex and lualatex set as it is. Its figures are TikZ: what
`charts` draws as SVG, shape by shape, so that a paper needs no other file."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TypeAlias
from xml.etree import ElementTree

from smolsum.results.report.document import MINUS, Cell, Figure, Page, Table, sentence

_SERIES = ("0b62b8", "c2410c", "15803d", "a21caf", "0e7490", "a16207", "be123c", "4338ca")
"""of the series c0 to c7, as in the style sheet"""
_NAMED = {"rule": "d5d9de", "dim": "5b626b", "blank": "eceef1", "pos": "15803d", "neg": "b91c1c"}
_WIDTH, _HEIGHT, _SCALE = 480.0, 600.0, 0.95
"""what a drawing may fill, and the size of its unit at most, in pt"""
_DASHES = {"dashed": "dash pattern=on 5pt off 3pt", "dotted": "dash pattern=on 1.5pt off 2pt",
           "mixed": "dash pattern=on 6pt off 2pt on 1.5pt off 2pt"}  # fmt: skip
_LINES = {"grid": 0.5, "line": 1.1, "key": 3.0, "front": 0.7, "span": 0.9, "shaft": 1.2, "head": 0.5, "points": 4.5}
"""widths of lines by class, in pt"""
_NUMBERS = ("x", "y", "cx", "cy", "r", "width", "height")
_ANCHORS = {"start": "base west", "middle": "base", "end": "base east"}
_STEP = re.compile(r"([MLHVhZ])([^MLHVhZ]*)")
Fit: TypeAlias = tuple[str, float, list[str]]
"""how a table is set: the size of its text, the width of its line, and its columns"""
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


def to_latex(page: Page) -> str:
    """Return the paper, without links. What no run fills is left out, with its commands in comments."""
    items = [item for section in page.sections for item in section.items]
    study = any(isinstance(item, Table) and item.number == "10" for item in items)
    named = {**{f"c{place}": colour for place, colour in enumerate(_SERIES)}, **_NAMED}
    colours = "\n".join(f"\\definecolor{{{name}}}{{HTML}}{{{colour.upper()}}}" for name, colour in named.items())
    parts = [f"{_PREAMBLE}{colours}\\title{{{escape(page.title)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"]
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


def _figure(figure: Figure) -> str:
    caption = escape(f"{figure.title}. {' '.join(figure.notes)}".strip())
    drawing = to_tikz(figure.svg)
    return (
        f"\\begin{{figure}}[H]\\renewcommand{{\\thefigure}}{{{figure.number}}}\\centering\n{drawing}\n"
        f"\\caption{{{caption}}}\\label{{fig:{figure.number}}}\n\\end{{figure}}"
    )


def _pieces(table: Table, *, study: bool) -> list[str]:
    """A table as LaTeX; turned round if it has too many columns, and cut into several if that is not enough."""
    gap = table.gap
    comments = "".join(f"% {gap.text}, Table {table.number}: {command}\n" for command in gap.commands) if gap else ""
    if not table.filled:
        return [comments.rstrip()] if comments else []
    shown = replace(table, rows=table.filled[: table.selected or None])
    if _fit(shown) is None and len(shown.columns) > len(shown.rows) + 1:
        shown = _turned(shown)
    notes = [*table.notes, *([f"{sentence(gap.text)}: {', '.join(gap.names)}."] if gap else [])]
    if len(shown.rows) + len(shown.columns) < len(table.filled) + len(table.columns):
        notes.append(f"{table.selected} of {len(table.filled)} examples.")
    title = table.title + (f" (study: Table {table.number})" if study and table.number in STUDY_TABLES else "")
    cut = list(_cut(shown))
    found = []
    for place, piece in enumerate(cut):
        caption = f"{title}{f' ({place + 1} of {len(cut)})' if len(cut) > 1 else ''}. {' '.join(notes)}".strip()
        label = table.number if place == 0 else f"{table.number}-{place + 1}"
        found.append(_table(piece, caption, label))
    return [comments + found[0], *found[1:]]


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


def _fit(table: Table) -> Fit | None:
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
        return size, line, [share if n in broken else "r" if table.numeric[n] else "l" for n in places]
    return None


def _letters(text: str) -> float:
    """The width of a text in small letters."""
    return len(text) + 0.5 * sum(letter.isupper() or letter in "+%mw✓\N{MINUS SIGN}" for letter in text)


def _heading(text: str, column: Sequence[str]) -> list[str]:
    """A heading in lines that are no longer than its column, or than its longest word; an arrow stays with a word."""
    kept = text.replace(" ↑", "\xa0↑").replace(" ↓", "\xa0↓")
    return [line.replace("\xa0", " ") for line in wrap(kept, max(6, *map(len, column)), break_long_words=False)] or [""]


def _table(table: Table, caption: str, label: str) -> str:
    narrow = f"p{{{TURNED / len(table.columns) - GAP:.0f}pt}}"
    size, line, columns = _fit(table) or ("tiny", TURNED, [narrow] * len(table.columns))
    heads = []
    for place, (name, column) in enumerate(zip(table.headings, columns, strict=True)):
        # a column with a width breaks its own lines
        lines = [name] if column.startswith(">") else _heading(name, [row[place].text for row in table.rows])
        text = r" \\ ".join(map(escape, lines))
        side = "r" if column == "r" else "l"
        heads.append(text if len(lines) == 1 else f"\\shortstack[{side}]{{{text}}}")
    head = f"\\toprule\n{' & '.join(heads)} \\\\\n\\midrule"
    rows = "\n".join(" & ".join(_cell(cell) for cell in row) + r" \\" for row in table.rows)
    body = (
        f"{{\\{size}\\renewcommand{{\\thetable}}{{{table.number}}}\n\\begin{{longtable}}{{{''.join(columns)}}}\n"
        f"\\caption{{{escape(caption)}}}\\label{{tab:{label}}}\\\\\n{head}\n\\endfirsthead\n{head}\n\\endhead\n"
        f"{rows}\n\\bottomrule\n\\end{{longtable}}}}"
    )
    return f"\\begin{{landscape}}\n{body}\n\\end{{landscape}}" if line == TURNED else body


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


def to_tikz(svg: str) -> str:
    """Return a drawing of `charts` as a `tikzpicture` that fits the page."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    scale = min(_SCALE, _WIDTH / width, _HEIGHT / height)
    size = f"\\fontsize{{{11 * scale:.1f}}}{{{13 * scale:.1f}}}\\selectfont"
    body = "\n".join(_shapes(root, (), 0.0, 0.0, scale))
    return (
        f"\\begin{{tikzpicture}}[x={scale:.3f}pt,y=-{scale:.3f}pt,inner sep=0pt,font={size}]\n"
        f"\\path (0,0) rectangle ({width:g},{height:g});\n{body}\n\\end{{tikzpicture}}"
    )


def _shapes(node: ElementTree.Element, above: Sequence[str], left: float, top: float, scale: float) -> Iterator[str]:
    """The shapes of a node, which is moved right and down, has the classes of those above it, and is scaled."""
    for child in node:
        kind, classes = child.tag.rpartition("}")[2], (*above, *child.get("class", "").split())
        at = {key: float(value) for key, value in child.items() if key in _NUMBERS}
        x, y = at.get("x", at.get("cx", 0.0)) + left, at.get("y", at.get("cy", 0.0)) + top
        style = _style((*classes, kind), scale, child)
        if kind == "g":
            moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", child.get("transform", ""))
            right, down = (float(moved[1]), float(moved[2])) if moved else (0.0, 0.0)
            yield from _shapes(child, classes, left + right, top + down, scale)
        elif kind == "path":
            yield f"\\draw[{style}] {_path(child.attrib['d'], left, top)};"
        elif kind == "circle":
            yield f"\\path[{style}] ({x:g},{y:g}) circle[radius={at['r']:g}];"
        elif kind == "rect":
            yield f"\\path[{style}] ({x:g},{y:g}) rectangle ({x + at['width']:.1f},{y + at['height']:.1f});"
        elif kind == "text" and child.text:
            look = "text=dim," if "faint" in classes else ""
            text = f"\\bfseries {escape(child.text)}" if "title" in classes else escape(child.text)
            yield f"\\node[{look}anchor={_ANCHORS[child.get('text-anchor', 'start')]}] at ({x:g},{y:g}) {{{text}}};"


def _style(classes: Sequence[str], scale: float, node: ElementTree.Element) -> str:
    """The options of a shape by its classes and those of the groups around it."""
    colour = next((name for name in classes if re.fullmatch(r"c\d", name)), "black")
    found = [_DASHES[name] for name in classes if name in _DASHES]
    if "ring" in classes:
        return f"draw=black,line width={1.2 * scale:.2f}pt"
    if "from" in classes:
        return f"draw={colour},fill=white,line width={1.1 * scale:.2f}pt"
    if "dot" in classes:
        return f"fill={colour},fill opacity=0.65"
    if "rect" in classes:
        fill = next((name for name in classes if name in _NAMED), "blank" if "none" in classes else colour)
        return f"fill={fill},fill opacity={node.get('fill-opacity', '1')}"
    kind = next((name for name in classes if name in _LINES), "line")
    width = _LINES[kind] * (0.5 if "many" in classes else 1.0) * scale
    drawn = {"grid": "rule", "front": "dim"}.get(kind, colour)
    found += [f"draw={drawn}", f"line width={width:.2f}pt"]
    if kind == "head":
        found.append(f"fill={drawn}")
    if kind == "front":
        found.append(_DASHES["dashed"])
    if kind == "points":
        found = [f"draw={drawn}", f"line width={width:.2f}pt", "line cap=round", "draw opacity=0.5"]
    return ",".join(found)


def _path(data: str, left: float, top: float) -> str:
    """The path of an SVG in TikZ's words; knows the steps that `charts` takes."""
    parts: list[str] = []
    x = y = 0.0
    for step, text in _STEP.findall(data):
        values = [float(value) for value in text.split()]
        if step == "Z":
            parts.append("-- cycle")
            continue
        if step in "ML":
            x, y = values
        elif step == "H":
            x = values[0]
        elif step == "h":
            x += values[0]
        else:
            y = values[0]
        parts.append(f"{'' if step == 'M' else '-- '}({x + left:.1f},{y + top:.1f})")
    return " ".join(parts)
