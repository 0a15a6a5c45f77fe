"""The keys of the view, in one place for bindings, footer and help."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """A key as Textual names it, as people do, the action it takes and what the help says of it."""

    names: str
    shown: str
    action: str
    help: str
    footer: str = ""
    writes: bool = False
    """whether it asks something of the run, which a read-only view does not"""


KEYS = (
    Key("tab", "tab", "turn(1)", "next page", "page"),
    Key("shift+tab", "shift+tab", "turn(-1)", "page before"),
    *(Key(str(n), str(n), f"zoom({n - 1})", f"enlarge chart {n}, and back") for n in range(1, 10)),
    Key("escape", "esc", "home", "back to the first page, or end a search"),
    Key("y", "y", "log", "logarithmic scale", "log"),
    Key("w", "w", "smooth", "smoother lines", "smooth"),
    Key("plus,equals_sign", "+", "window(1)", "newest 512, 128, 32 steps only", "zoom"),
    Key("minus", "-", "window(-1)", "more steps again"),
    Key("up,k", "up, k", "move(-1)", "rollout before"),
    Key("down,j", "down, j", "move(1)", "next rollout"),
    Key("pageup,u", "pgup, u", "scroll(-5)", "scroll the text up"),
    Key("pagedown,m", "pgdn, m", "scroll(5)", "scroll the text down"),
    Key("left_square_bracket,left", "[, left", "step(-1)", "step before", "[ ] step"),
    Key("right_square_bracket,right", "], right", "step(1)", "next step"),
    Key("left_curly_bracket,home", "{, home", "step(-1000000)", "first step"),
    Key("right_curly_bracket,end", "}, end", "step(1000000)", "follow the newest step"),
    Key("n", "n", "prompt(1)", "next prompt", "prompt"),
    Key("p", "p", "prompt(-1)", "prompt before"),
    Key("s", "s", "sort", "sort by the next column", "sort"),
    Key("slash", "/", "search", "search in the completions", "find"),
    Key("d", "d", "difference", "what changed since the prompt was first sampled", "diff"),
    Key("c", "c", "copy", "copy the completion"),
    Key("e", "e", "open('advice')", "signals with advice, workers, events"),
    Key("o", "o", "open('config')", "the settings of the run"),
    Key("space", "space", "pause", "pause the run after its step, or resume it", "pause", writes=True),
    Key("S", "S", "stop", "stop the run after its step; it can be resumed", "stop", writes=True),
    Key("question_mark", "?", "help", "this page", "help"),
    Key("q,ctrl+c,ctrl+q", "q, ctrl-c", "leave", "leave; the run goes on", "quit (the run goes on)"),
)
FOOTER = ("?", "tab", "space", "S", "[, left", "n", "y", "+", "q, ctrl-c")
"""At most eight and the way out, from the most needed on."""


def footer(width: int, *, readonly: bool) -> str:
    """Returns the line of keys, as many as fit; the way out is always told, the more the more room there is."""
    by_name = {key.shown: key for key in KEYS}
    way_out = f"q {by_name[FOOTER[-1]].footer}" if width >= 60 else "q quit"
    line = ""
    for shown in FOOTER[:-1]:
        key = by_name[shown]
        text = key.footer if key.footer.startswith("[") else f"{shown} {key.footer}"
        if not (key.writes and readonly) and len(line) + len(text) + len(way_out) + 4 <= width:
            line += f"{text}  "
    return f" {line}{way_out}"
