"""A report as one HTML file: no network, light and dark, for a phone, a screen and paper. A short script sorts tables,
filters legends and copies; the page is whole without it."""

from functools import cache
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from smolsum.report.document import Cell, Page


def to_html(page: Page, folder: Path) -> str:
    """Return the page for a file in `folder`, with links relative to it."""
    template = _environment().get_template("page.html.j2")
    return template.render(page=page, folder=folder, style=Markup(style()), script=Markup(script()), classes=_classes)


@cache
def style() -> str:
    """Return the style sheet, which has the colours of the page and of the charts."""
    return _environment().get_template("style.css.j2").render().strip()


@cache
def script() -> str:
    """Return the script of the page."""
    return _environment().get_template("page.js.j2").render().strip()


@cache
def _environment() -> Environment:
    """The templates; every value in them is escaped unless it is `Markup`."""
    return Environment(
        loader=PackageLoader("smolsum.report.render"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else escape(str(value)),
    )


def _classes(cell: Cell, numeric: bool) -> Markup:
    """The class attribute of a filled cell; empty if it needs none."""
    size = len(cell.text)
    kinds = {
        "n": numeric and size < 20,
        "r": numeric and size >= 20,
        "b": cell.best,
        "w": size > 60,
        "k": not numeric and size < 34,
        "l": not numeric and 34 <= size <= 60,
    }
    found = " ".join(kind for kind, holds in kinds.items() if holds)
    return Markup(f' class="{found}"' if found else "")
