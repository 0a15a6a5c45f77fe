"""The content of a pane, and how it becomes framed lines of text, without an app."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from textwrap import wrap

from rich.style import Style
from rich.text import Text

CORNERS = {False: tuple("╭─╮│╰╯"), True: tuple("+-+|++")}
# Okabe and Ito's palette (jfly.uni-koeln.de/color, 2008), which colour-blind readers can distinguish
SKY, ORANGE, GREEN, PURPLE, RED, YELLOW = "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442"
CURVES = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
DIM = "grey58"
NAME_WIDTH, VALUE_WIDTH = 16, 9
"""Columns of panes that have a row for each metric, in characters."""


@dataclass(frozen=True)
class Pane:
    """The content of a pane, without its frame."""

    title: str
    note: str | Text = ""
    lines: tuple[Text, ...] = ()
    news: bool = True
    """False: there is nothing to say, and the first page gives the room to others"""


def framed(pane: Pane, width: int, height: int, *, ascii: bool = False) -> list[Text]:
    """Return exactly `height` lines of `width` cells: the pane in a frame, cut or padded."""
    left, line, right, side, low_left, low_right = CORNERS[ascii]
    room = max(width - 6, 0)
    title = cut(Text(f" {pane.title} "), room, ascii=ascii)
    note = cut(Text().append(pane.note), max(room - title.cell_len, 0), ascii=ascii)
    fill = line * max(width - 4 - title.cell_len - note.cell_len - (2 if note.cell_len else 0), 0)
    head = Text(f"{left}{line}").append_text(title).append(fill)
    if note.cell_len:
        head.append(" ").append_text(note).append(" ")
    out = [head.append(f"{line}{right}")]
    for number in range(height - 2):
        content = pane.lines[number].copy() if number < len(pane.lines) else Text()
        content.truncate(width - 2, overflow="crop", pad=True)
        out.append(Text(side).append_text(content).append(side))
    return [*out, Text(f"{low_left}{line * (width - 2)}{low_right}")][:height]


def listed(
    title: str,
    note: str,
    head: str,
    count: int,
    here: int,
    row: Callable[[int], str | Text],
    height: int,
    below: Sequence[Text] = (),
) -> Pane:
    """Return a pane of `height` lines: a head, then of `count` rows those around the chosen one, `here`, which is in
    reverse video, then the lines `below`. Head and rows have a `meta` that says what a click on them is on."""
    room = max(height - 1 - len(below), 1)
    start = max(0, min(here - room // 2, count - room))
    lines = [Text(head, style=Style.parse(DIM) + Style.from_meta({"head": True}))]
    for place in range(start, min(start + room, count)):
        found = row(place)
        line = Text(found) if isinstance(found, str) else found
        if place == here:
            line.stylize("reverse")
        line.style = Style.parse(str(line.style)) + Style.from_meta({"row": place})
        lines.append(line)
    return Pane(title, note, (*lines, *below)[:height])


def scrolled(title: str, note: str, lines: Sequence[Text], height: int, start: int, *, head: int = 0) -> Pane:
    """Return a pane of the lines from `start` on, or as far down as they fill it, below the first `head` ones, which
    stay; the note says which they are, where they do not all fit."""
    room, count = height - head, len(lines) - head
    start = max(min(start, count - room), 0)
    if count > room:
        note = f"{start + 1}-{start + room} of {count}{'  ' if note else ''}{note}"
    return Pane(title, note, (*lines[:head], *lines[head + start : head + start + room]))


def wrapped(text: str, width: int, style: str = "", indent: str = "") -> list[Text]:
    """Return a paragraph in lines of at most `width` cells."""
    found = wrap(text, max(width, 8), initial_indent=indent, subsequent_indent=indent) or [""]
    return [Text(line, style=style) for line in found]


def time_of_day(stamp: str, form: str = "%H:%M:%S") -> str:
    """Return the local time of day of a time in a run's files; nothing for anything else."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime(form)
    except ValueError:
        return ""


def flowed(text: str | Text, width: int) -> list[Text]:
    """Return a text in lines of at most `width` cells, which keep its styles. One that continues in the next line ends
    with a space instead of a line end."""
    from rich.console import Console  # Rich needs a console to measure styled text

    console = Console(width=width, color_system=None)
    whole, lines = Text(text) if isinstance(text, str) else text, []
    for paragraph in whole.split("\n", allow_blank=True):
        parts = list(paragraph.wrap(console, max(width - 1, 8))) or [Text()]
        for place, part in enumerate(parts):
            part.rstrip()
            line = Text(" ", end=" " if place < len(parts) - 1 else "\n")
            lines.append(line.append_text(part))
    return lines


def cut(text: Text, width: int, *, ascii: bool = False) -> Text:
    """Return a line of at most `width` cells; a longer one is cut and ends with an ellipsis."""
    if text.cell_len <= width:
        return text
    mark = "..." if ascii else "…"
    shorter = text.copy()
    shorter.truncate(max(width - len(mark), 0), overflow="crop")
    return shorter.append(mark[: max(width, 0)])


def ending(text: str, width: int, *, ascii: bool = False) -> str:
    """Return the end of a name in at most `width` characters: addresses differ at their end."""
    if len(text) <= width:
        return text
    mark = ".." if ascii else "…"
    return (mark + text[len(text) - max(width - len(mark), 0) :])[: max(width, 0)]


def bar(share: float, width: int, *, ascii: bool = False) -> str:
    """Return a bar of `width` cells, filled to a share in [0, 1]."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return ("#" * full + "." * (width - full)) if ascii else ("█" * full + "░" * (width - full))


def number(value: float | None) -> str:
    """Return a number in at most seven characters: whole numbers as they are, else two or three digits;
    `-` for None."""
    if value is None:
        return "-"
    size = abs(value)
    if value == int(value) and size < 100_000:
        return str(int(value))
    if size < 0.001 or size >= 99_999.5:
        return next(text for places in (1, 0) if len(text := power(value, places)) <= 7)
    if size >= 100:
        return f"{value:.0f}"
    places = 4 if size < 0.01 else 3 if size < 10 else 1
    return f"{value:.{places}f}"


def power(value: float, places: int) -> str:
    """Return a number as a mantissa with so many decimals and the shortest power of ten."""
    mantissa, exponent = f"{value:.{places}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
