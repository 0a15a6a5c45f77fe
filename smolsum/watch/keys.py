"""The keys of the view, once for bindings, footer and help."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from smolsum.runs.run_state import ALIVE_STATES
from smolsum.watch.pane_text import DIM


@dataclass(frozen=True)
class Key:
    """A key: its names for Textual and for people, its action, and its line in the help. A key without a help text
    shares the line before it."""

    names: str
    shown: str
    action: str
    help: str
    footer: str = ""


KEYS = (
    Key("tab", "tab", "turn(1)", "next page, page before", "page"),
    Key("shift+tab", "shift+tab", "turn(-1)", ""),
    Key("1", "1-9", "zoom(0)", "enlarge a chart, and back", "enlarge"),
    *(Key(str(n), "", f"zoom({n - 1})", "") for n in range(2, 10)),
    Key("escape", "esc", "home", "back to the first page, or end a search", "back"),
    Key("y", "y", "log", "logarithmic scale", "log"),
    Key("w", "w", "smooth", "smoother lines", "smooth"),
    Key("plus,equals_sign", "+", "window(1)", "only the newest 512, 128, 32 steps; more again", "zoom"),
    Key("minus", "-", "window(-1)", ""),
    Key("up,k", "up, k", "move(-1)", "rollout before, next one"),
    Key("down,j", "down, j", "move(1)", ""),
    Key("pageup,u", "pgup, u", "scroll(-5)", "scroll the text up, down"),
    Key("pagedown,m", "pgdn, m", "scroll(5)", ""),
    Key("left_square_bracket,left", "[, left", "step(-1)", "completions of the step before, the next step"),
    Key("right_square_bracket,right", "], right", "step(1)", ""),
    Key("left_curly_bracket,home", "{, home", "step(-1000000)", "of the first step, of the newest as it comes"),
    Key("right_curly_bracket,end", "}, end", "step(1000000)", ""),
    Key("n", "n", "prompt(1)", "next prompt, prompt before", "prompt"),
    Key("p", "p", "prompt(-1)", ""),
    Key("s", "s", "sort", "sort by the next column", "sort"),
    Key("slash", "/", "search", "search in the completions", "find"),
    Key("d", "d", "difference", "what changed since the prompt was first sampled", "diff"),
    Key("c", "c", "copy", "copy the completion"),
    Key("e", "e", "open('advice')", "alerts with advice, workers, events"),
    Key("o", "o", "open('config')", "the settings of the run"),
    Key("space", "space", "pause", "pause the run after its step, or resume it", "pause"),
    Key("S", "S", "stop", "stop the run after its step; it can be resumed", "stop"),
    Key("question_mark", "?", "help", "this page", "help"),
    Key("q,ctrl+c,ctrl+q", "q, ctrl-c", "leave", "leave; the run goes on", "quit"),
)
SPACE, STOP = "space", "S"
MUST = ("?", "tab", SPACE, STOP)
"""Keys that the footer of every page names; an enlarged chart names `esc` instead of `tab`."""
MORE = {
    "summary": ("1-9", "y", "w", "+"),
    "charts": ("1-9", "y", "w", "+"),
    "chart": ("y", "w", "+"),
    "completions": ("[, left", "n", "s", "/", "d"),
    "advice": ("down, j",),
    "events": ("down, j",),
    "config": ("down, j",),
}
"""Further keys for the footer of a page, the most useful first."""
ELSEWHERE = ("1-9", "[, left", "n", "y", "+")
MAX_FOOTER_KEYS = 8
SHORT = {"[, left": "[ ] step", "down, j": "up down scroll"}


def help_rows() -> list[tuple[str, str]]:
    """Return the rows of the help: keys, and what they do."""
    rows: list[tuple[str, str]] = []
    for key in KEYS:
        if key.help:
            rows.append((key.shown, key.help))
        elif key.shown:
            rows[-1] = (f"{rows[-1][0]}, {key.shown}", rows[-1][1])
    return rows


def footer(width: int, names: Sequence[str], at: str, *, asks: bool, state: str) -> Text:
    """Return the last line of a page: all pages, or only the open one if there is no room; then keys, at most
    MAX_FOOTER_KEYS, and how to leave. `asks`: whether the user can pause and stop the run."""
    rests = state in ("pausing", "paused")
    texts = {key.shown: f"{key.shown} {key.footer}" for key in KEYS} | SHORT
    texts |= {SPACE: f"{SPACE} {'resume' if rests else 'pause'}"}
    first = [name for name in MUST if asks or name not in (SPACE, STOP)]
    if at == "chart":
        first[1] = "esc"
    wanted = [texts[name] for name in (*first, *MORE.get(at, ELSEWHERE))][:MAX_FOOTER_KEYS]
    least = "  ".join([*wanted[: len(first)], "q quit"])
    for pages in (_all(names, at), _one(names, at), Text()):
        if len(pages) + len(least) + 2 <= width:
            break
    out = "q quit (the run goes on)" if state in ALIVE_STATES else "q quit"
    room = width - len(pages) - 2
    if len("  ".join([*wanted[: len(first)], out])) > room:
        out = "q quit"
    while wanted and len("  ".join([*wanted, out])) > room:
        wanted.pop()
    return pages.append(" " + "  ".join([*wanted, out]), style=DIM)


def _all(names: Sequence[str], at: str) -> Text:
    """All pages, the open one marked."""
    line = Text()
    for name in names if len(names) > 1 else ():
        line.append(f" [{name}]" if name == at else f" {name}", "bold" if name == at else DIM)
    return line.append(" ")


def _one(names: Sequence[str], at: str) -> Text:
    """The open page, with its number."""
    place = f" {names.index(at) + 1}/{len(names)}" if at in names else ""
    return Text.assemble((f" [{at}]", "bold"), (f"{place} ", DIM))
