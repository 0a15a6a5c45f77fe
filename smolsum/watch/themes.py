"""The colours of the view on dark and on light terminals, which of the two a terminal is, and plain ASCII.

Panes name the terminal's own colours, and Textual shows them as the theme of the app has them: of the same hue, with a
contrast of 4.5:1 for text and 3:1 for lines, also dimmed ones (WCAG 2.2, success criteria 1.4.3 and 1.4.11).
"""

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, get_args

from rich.segment import Segment
from rich.terminal_theme import TerminalTheme
from textual.color import Color
from textual.filter import LineFilter, NoColor
from textual.theme import Theme

from smolsum.errors import UsageError
from smolsum.linechart.braille import IN_ASCII

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


COLOURS = {
    "black": ("#e0e0e0", "#1f1f1f"),
    "blue": ("#56b4e9", "#0066a1"),
    "yellow": ("#e69f00", "#7d5200"),
    "green": ("#009e73", "#006b4b"),
    "magenta": ("#cc79a7", "#9c3b74"),
    "red": ("#d55e00", "#a83e00"),
    "bright_yellow": ("#f0e442", "#615a00"),
    "bright_black": ("#949494", "#5f5f5f"),
}
"""On dark (Okabe and Ito's palette, jfly.uni-koeln.de/color, 2008, which colour-blind readers can distinguish) and on
light; the first is that of the text, which colours that the view does not name have too."""


def _palette(background: str, *, light: bool) -> TerminalTheme:
    names = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
    every = (*names, *(f"bright_{name}" for name in names))
    parts = [Color.parse(COLOURS.get(name, COLOURS["black"])[light]).rgb for name in every]
    return TerminalTheme(Color.parse(background).rgb, parts[0], parts[:8], parts[8:])


ON_DARK, ON_LIGHT = _palette("#121212", light=False), _palette("#fafafa", light=True)
WITHOUT_COLOUR = NoColor()
ANSWER_S = 1.0
"""Seconds that a terminal has to report its background; those that do not know the question answer at once too."""
LIGHT_INDICES = (7, *range(9, 16))
"""Indices of the 16 colours that are a light background: white, and the bright ones without bright black."""
BRIGHT = 0.5
"""Brightness of a background, from 0 to 1, from which the terminal is light."""


class Ascii(LineFilter):
    """Replaces what fonts may lack by as much ASCII. An arrow or ± takes the blank before it: 64 > 60 compares."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text.replace(" →", "->").replace(" ±", "+-").translate(IN_ASCII), style, control)
            for text, style, control in segments
        ]


TO_ASCII = Ascii()


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
