"""The colours of the view on dark and on light terminals, and which of the two a terminal is.

Panes name the colours of the dark theme. On a light terminal each is replaced by one of the same hue whose contrast is
enough there: 4.5:1 for text, 3:1 for lines (WCAG 2.2, success criteria 1.4.3 and 1.4.11).
"""

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Literal, get_args

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from smolsum.errors import UsageError
from smolsum.watch.formats import DIM, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW

Choice = Literal["auto", "dark", "light"]
VARIABLE = "SMOLSUM_THEME"
DARK = "textual-dark"
LIGHT = Theme(
    name="smolsum-light",
    primary="#0066a1",
    foreground="#1f1f1f",
    background="#fafafa",
    surface="#ececec",
    panel="#ececec",
    dark=False,
)
ON_LIGHT = {
    SKY: "#0066a1",
    ORANGE: "#8a5a00",
    GREEN: "#00704f",
    PURPLE: "#9c3b74",
    RED: "#a83e00",
    YELLOW: "#665f00",
    DIM: "#5f5f5f",
}
"""Colours that replace those of the dark theme, by name."""
DIMMED = 0.75
"""Part of its colour that a dimmed line keeps; Textual's half is below 3:1."""
ANSWER_S = 1.0
"""Seconds that a terminal has to report its background; those that do not know the question answer at once too."""
LIGHT_INDICES = (7, *range(9, 16))
"""Indices of the 16 colours that are a light background: white, and the bright ones without bright black."""
BRIGHT = 0.5
"""Brightness of a background, from 0 to 1, from which the terminal is light."""


def filters(usual: Sequence[LineFilter], *, dark: bool, colour: bool) -> list[LineFilter]:
    """Return what colours the lines of an app, next to Textual's usual filters. Its own filter for NO_COLOR leaves
    greys."""
    return [Painted(light=not dark), *usual] if colour else [Colourless()]


class Colourless(LineFilter):
    """Removes colours and keeps bold, underlined and reversed text."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return a line without colours; Textual calls this for each one."""
        return [Segment(text, style.without_color if style else style, control) for text, style, control in segments]


class Painted(LineFilter):
    """Puts the colours of the light theme in the place of those of the dark one, and dims less than Textual."""

    def __init__(self, *, light: bool) -> None:
        super().__init__()
        self._light = light

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return a line in the colours of the theme; Textual calls this for each one."""
        return [
            Segment(text, style and _painted(style, background, self._light), control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=1024)
def _painted(style: Style, background: Color, light: bool) -> Style:
    if style.color is None:
        return style
    color = Color.from_rich_color(style.color)
    if light and style.color.name in ON_LIGHT:
        color = Color.parse(ON_LIGHT[style.color.name])
    elif not style.dim:
        return style
    if style.dim:
        color = background.blend(color, DIMMED)
    return style + Style(color=color.rich_color, dim=False)


def is_light(choice: Choice, environ: Mapping[str, str], ask: Callable[[], str]) -> bool:
    """Return whether the light theme is wanted: the choice, else SMOLSUM_THEME; with `auto`, whether the terminal says
    that its background is light, in COLORFGBG or in its answer to `ask`. Dark where nothing is known. Raises UsageError
    for another theme in the variable."""
    own = environ.get(VARIABLE, "").strip() or "auto"
    if own not in get_args(Choice):
        raise UsageError(f"{VARIABLE}={own!r} is not a theme", hint=f"one of {', '.join(get_args(Choice))}")
    if (theme := own if choice == "auto" else choice) != "auto":
        return theme == "light"
    last = environ.get("COLORFGBG", "").rpartition(";")[2]
    return int(last) in LIGHT_INDICES if last.isdecimal() else _is_bright(ask())


def _is_bright(answer: str) -> bool:
    """Whether the colour in a terminal's answer is bright. Each part has 1 to 4 hexadecimal digits (XParseColor(3))."""
    found = re.search(r"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})", answer)
    if found is None:
        return False
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    return Color(round(255 * red), round(255 * green), round(255 * blue)).brightness >= BRIGHT


def ask_for_background(timeout_s: float = ANSWER_S) -> str:
    """Ask the terminal on stdin and stderr for its background (OSC 11 of xterm's control sequences) and return what it
    answers. A second question that every terminal answers (device attributes) comes after, so that a terminal that does
    not know the first one costs no time. Keys that are pressed meanwhile are lost."""
    with suppress(OSError, ValueError, termios.error):
        source, target = sys.stdin.fileno(), sys.stderr.fileno()
        before, answer, until = termios.tcgetattr(source), b"", time.monotonic() + timeout_s
        try:
            tty.setcbreak(source)
            os.write(target, b"\x1b]11;?\x1b\\\x1b[c")
            while not re.search(rb"\x1b\[\?[\d;]*c", answer):
                if not select.select([source], [], [], max(until - time.monotonic(), 0))[0]:
                    break
                answer += os.read(source, 1024)
        finally:
            termios.tcsetattr(source, termios.TCSAFLUSH, before)
        return answer.decode("ascii", "replace")
    return ""
