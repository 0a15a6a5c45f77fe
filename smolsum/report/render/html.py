"""A report as one HTML file: no script, no network, light and dark, for a phone, a screen and paper."""

from __future__ import annotations

from html import escape
from pathlib import Path

from smolsum.report.document import Cell, Figure, Item, Page, Section

_COLOURS = {
    "light": ("#0b62b8", "#c2410c", "#15803d", "#a21caf", "#0e7490", "#a16207", "#be123c", "#4338ca"),
    "dark": ("#6cb2ff", "#ff9d66", "#5fd38a", "#f08cff", "#4fd1e8", "#e7c14b", "#ff8ba0", "#a5a0ff"),
}
_LIGHT = (
    "--bg:#fff;--fg:#1c1e21;--dim:#5b626b;--rule:#d5d9de;--link:#0b4f94;--blank:#eceef1;--pos:#15803d;--neg:#b91c1c;"
    "--best:#e4f3e8;color-scheme:light"
)
_DARK = (
    "--bg:#15171a;--fg:#e6e8ea;--dim:#a2a9b2;--rule:#3a4048;--link:#8cc4ff;--blank:#262a30;--pos:#4cc47a;--neg:#ff7b7b;"
    "--best:#1d3a28;color-scheme:dark"
)
_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:80rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--rule)}
nav{font-size:.9rem}nav a{margin-right:.8rem;white-space:nowrap;display:inline-block}
a{color:var(--link)}td a{color:inherit;text-decoration:none}td a:hover,td a:focus{text-decoration:underline}
.verdict{font-size:1.05rem}
figure{margin:1.2rem 0}figcaption,.cap,summary{font-weight:600;padding:.2rem 0}.cap{margin:1.1rem 0 0}
.scroll{overflow-x:auto;margin:.2rem 0}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .42rem;overflow-wrap:normal;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
th{border-bottom:2px solid var(--rule)}td{max-width:34rem}
td.n,th.n{text-align:right;white-space:nowrap}td.w{min-width:14rem}td.k{white-space:nowrap}
td.l{min-width:9rem;overflow-wrap:break-word}
td.e{background:var(--blank);color:var(--dim)}td.e summary{font-weight:400;padding:0;cursor:pointer;white-space:nowrap}
td.e code{font-size:.8rem;display:block;white-space:normal;min-width:11rem}td.b{background:var(--best);font-weight:600}
.note{color:var(--dim);font-size:.86rem;margin:.15rem 0}
svg{display:block;width:100%;height:auto;font:11px system-ui,sans-serif}
.drawn{display:flex;flex-wrap:wrap;align-items:flex-start;gap:.4rem 1.6rem}
svg text{fill:var(--fg)}svg text.faint{fill:var(--dim)}svg text.title{font-weight:600}
.grid{stroke:var(--rule);fill:none;stroke-width:.6}.line{fill:none;stroke-width:1.4}.key{fill:none;stroke-width:4}
.front{fill:none;stroke:var(--dim);stroke-dasharray:4 3}.dot circle{fill-opacity:.65}
.dashed{stroke-dasharray:5 3}.dotted{stroke-dasharray:1.5 2}.mixed{stroke-dasharray:6 2 1.5 2}
rect.pos{fill:var(--pos)}rect.neg{fill:var(--neg)}rect.none,rect.blank{fill:var(--blank)}
@media (max-width:40rem){body{padding:.7rem;font-size:14px}table{font-size:.78rem}}
@media print{body{max-width:none;font-size:10pt}nav{display:none}.scroll{overflow:visible}
table{font-size:7pt}th,td{padding:1pt 3pt}tr,figure,svg{break-inside:avoid}h2{break-after:avoid}td.w{min-width:0}}
"""


def style() -> str:
    """The style sheet; what is drawn and written takes its colours from it."""
    sheet = [f":root{{{_LIGHT}}}", _palette("light"), _STYLE.strip()]
    sheet.append(f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}{_palette('dark')}}}")
    return "\n".join(sheet)


def _palette(theme: str) -> str:
    return "".join(
        f".line.c{i},.key.c{i}{{stroke:{colour}}}.dot.c{i},rect.c{i}{{fill:{colour}}}"
        for i, colour in enumerate(_COLOURS[theme])
    )


def to_html(page: Page, folder: Path) -> str:
    """Returns the page as it lies in `folder`: what it links to is relative to that."""
    anchors = "".join(f'<a href="#{_anchor(s.title)}">{escape(s.title)}</a>' for s in page.sections)
    body = "\n".join(_section(section, folder) for section in page.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style()}\n</style></head>\n"
        f'<body>\n<h1>{escape(page.title)}</h1>\n<p class="verdict">{escape(page.verdict)}</p>\n'
        f"<nav>{anchors}</nav>\n{body}\n"
        '<p class="note">Grey: no run fills it yet; open it for the command that would. Numbers link to the file that '
        "they come from; the field is in the link's title.</p>\n</body></html>\n"
    )


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-").replace(",", "")


def _section(section: Section, folder: Path) -> str:
    text = "".join(f"<p>{escape(line)}</p>\n" for line in section.text)
    items = "\n".join(_item(item, folder) for item in section.items)
    return f'<section id="{_anchor(section.title)}"><h2>{escape(section.title)}</h2>\n{text}{items}</section>'


def _item(item: Item, folder: Path) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in item.notes)
    if isinstance(item, Figure):
        caption = f"Figure {item.number}: {item.title}"
        return (
            f'<figure id="figure-{item.number}"><figcaption>{escape(caption)}</figcaption>\n'
            f'<div class="drawn">{"".join(item.parts) or item.svg}</div>\n{notes}</figure>'
        )
    numeric = item.numeric
    head = "".join(
        f'<th scope="col" class="{"n" if right else "h"}">{escape(name)}</th>'
        for name, right in zip(item.columns, numeric, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, right, folder) for cell, right in zip(row, numeric, strict=True)) + "</tr>"
        for row in item.rows
    )
    caption = escape(f"Table {item.number}: {item.title}")
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table id="table-{item.number}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n{notes}"
    )
    return (
        f"<details><summary>{caption}</summary>\n{table}</details>"
        if item.folded
        else f'<p class="cap">{caption}</p>\n{table}'
    )


def _cell(cell: Cell, right: bool, folder: Path) -> str:
    if cell.command:
        command = f"<code>{escape(cell.command)}</code>"
        return f'<td class="e"><details><summary>{escape(cell.text)}</summary>{command}</details></td>'
    long = len(cell.text) > 60
    kinds = " ".join(
        kind
        for kind, holds in (
            ("n", right),
            ("b", cell.best),
            ("w", long),
            ("k", not right and len(cell.text) < 34),
            ("l", not right and 34 <= len(cell.text) <= 60),
        )
        if holds
    )
    shown = escape(cell.text)
    if cell.source is not None:
        shown = f'<a href="{escape(cell.source.link(folder))}" title="{escape(cell.source.title)}">{shown}</a>'
    return f'<td class="{kinds}">{shown}</td>' if kinds else f"<td>{shown}</td>"
