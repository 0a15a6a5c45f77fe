"""The drawings of a report as TikZ: what `charts` draws as SVG, shape by shape, so that a paper needs no other file."""

import re
from collections.abc import Callable, Iterator, Sequence
from xml.etree import ElementTree

COLOURS = ("0b62b8", "c2410c", "15803d", "a21caf", "0e7490", "a16207", "be123c", "4338ca")
"""of the series c0 to c7, as in the style sheet"""
NAMED = {"rule": "d5d9de", "dim": "5b626b", "blank": "eceef1", "pos": "15803d", "neg": "b91c1c"}
WIDTH, HEIGHT, SCALE = 480.0, 600.0, 0.95
"""what a drawing may fill, and the size of its unit at most, in pt"""
_DASHES = {"dashed": "dash pattern=on 5pt off 3pt", "dotted": "dash pattern=on 1.5pt off 2pt",
           "mixed": "dash pattern=on 6pt off 2pt on 1.5pt off 2pt"}  # fmt: skip
_LINES = {"grid": 0.5, "line": 1.1, "key": 3.0, "front": 0.7, "span": 0.9, "shaft": 1.2, "head": 0.5, "points": 4.5}
"""widths of lines by class, in pt"""
_ANCHORS = {"start": "base west", "middle": "base", "end": "base east"}
_STEP = re.compile(r"([MLHVhZ])([^MLHVhZ]*)")


def colours() -> str:
    """Return the definitions of all colours of the drawings."""
    named = {**{f"c{place}": colour for place, colour in enumerate(COLOURS)}, **NAMED}
    return "\n".join(f"\\definecolor{{{name}}}{{HTML}}{{{colour.upper()}}}" for name, colour in named.items())


def to_tikz(svg: str, escape: Callable[[str], str]) -> str:
    """Return a drawing of `charts` as a `tikzpicture` that fits the page; `escape` makes LaTeX of a text."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    scale = min(SCALE, WIDTH / width, HEIGHT / height)
    size = f"\\fontsize{{{11 * scale:.1f}}}{{{13 * scale:.1f}}}\\selectfont"
    body = "\n".join(_shapes(root, (), 0.0, 0.0, scale, escape))
    return (
        f"\\begin{{tikzpicture}}[x={scale:.3f}pt,y=-{scale:.3f}pt,inner sep=0pt,font={size}]\n"
        f"\\path (0,0) rectangle ({width:g},{height:g});\n{body}\n\\end{{tikzpicture}}"
    )


def _shapes(
    node: ElementTree.Element, above: Sequence[str], left: float, top: float, scale: float, escape: Callable[[str], str]
) -> Iterator[str]:
    for child in node:
        kind, classes = child.tag.rpartition("}")[2], (*above, *child.get("class", "").split())
        if kind == "g":
            moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", child.get("transform", ""))
            x, y = (float(moved[1]), float(moved[2])) if moved else (0.0, 0.0)
            yield from _shapes(child, classes, left + x, top + y, scale, escape)
        elif kind == "path":
            yield f"\\draw[{_style(classes, scale, child)}] {_path(child.attrib['d'], left, top)};"
        elif kind == "circle":
            x, y, radius = (float(child.attrib[key]) for key in ("cx", "cy", "r"))
            yield f"\\path[{_style(classes, scale, child)}] ({x + left:g},{y + top:g}) circle[radius={radius:g}];"
        elif kind == "rect":
            x, y, w, h = (float(child.attrib[key]) for key in ("x", "y", "width", "height"))
            corner = f"({x + left:g},{y + top:g}) rectangle ({x + left + w:.1f},{y + top + h:.1f})"
            yield f"\\path[{_style((*classes, 'rect'), scale, child)}] {corner};"
        elif kind == "text" and child.text:
            x, y = float(child.attrib["x"]) + left, float(child.attrib["y"]) + top
            look = "text=dim," if "faint" in classes else ""
            text = f"\\bfseries {escape(child.text)}" if "title" in classes else escape(child.text)
            anchor = _ANCHORS[child.get("text-anchor", "start")]
            yield f"\\node[{look}anchor={anchor}] at ({x:g},{y:g}) {{{text}}};"


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
        fill = next((name for name in classes if name in NAMED), "blank" if "none" in classes else colour)
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
