"""The keys of the view, once for bindings, footer and help."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from smolsum.runs.run_state import ALIVE_STATES
from smolsum.watch.pane_text import DIM

MANY = 1_000_000
"""More than the steps of any run, the rows of any listing, the lines of any text."""
PAGE = 5
"""Lines that a key scrolls the text of a sample by; pages of lines are scrolled by what fits on the screen."""


@dataclass(frozen=True)
class Key:
    """A key: its names for Textual and for people, its action, and its line in the help. A key without a help text
    shares the line before it."""

    names: str
    shown: str
    action: str
    help: str
    footer: str = ""


def _pair(first: str, second: str, action: str, values: tuple[float, float], help: str, footer: str = "") -> list[Key]:
    """Two keys that do the same in two directions, with one line in the help. Each is Textual's name, or that and the
    name for people after a colon."""
    names, (before, after) = [name.partition(":") for name in (first, second)], values
    shown = [name[2] or name[0] for name in names]
    return [
        Key(names[0][0], shown[0], f"{action}({before})", help, footer),
        Key(names[1][0], shown[1], f"{action}({after})", ""),
    ]


KEYS = (
    *_pair("tab", "shift+tab", "turn", (1, -1), "next page, page before", "page"),
    Key("1", "1-9", "enlarge(0)", "enlarge a chart, and back", "enlarge"),
    *(Key(str(n), "", f"enlarge({n - 1})", "") for n in range(2, 10)),
    Key("enter", "enter", "choose", "enlarge the metric, open the hit under the bar", "enlarge"),
    Key("v", "v", "pin", "put that metric first on the page of charts, or take it off", "pin"),
    Key("escape", "esc", "home", "back to the first page, or end a search", "back"),
    *_pair("plus,equals_sign:+", "minus:-", "zoom", (0.5, 2.0), "fewer steps in charts, more (wheel: there)", "zoom"),
    *_pair("comma,less_than_sign:<", "full_stop,greater_than_sign:>", "pan", (-1, 1), "earlier steps, later", "pan"),
    *_pair("left", "right", "side", (-1, 1), "cursor in charts (click); completions: step before, next", "cursor"),
    Key("shift+left", "", "side(-10)", ""),
    Key("shift+right", "", "side(10)", ""),
    Key("0", "0", "all", "all steps, no cursor", "all"),
    Key("x", "x", "unit", "charts by step, time or tokens", "by time"),
    Key("w", "w", "smooth", "smoother lines over the measured ones", "smooth"),
    Key("y", "y", "log", "logarithmic scale, where values allow it", "log"),
    *_pair("up,k:up, k", "down,j:down, j", "move", (-1, 1), "rollout before, next one"),
    *_pair("pageup,u:pgup, u", "pagedown,m:pgdn, m", "scroll", (-PAGE, PAGE), "scroll the text up, down"),
    *_pair(
        "left_square_bracket:[", "right_square_bracket:]", "step", (-1, 1), "completions of the step before, the next"
    ),
    *_pair(
        "left_curly_bracket,home:{, home",
        "right_curly_bracket,end:}, end",
        "step",
        (-MANY, MANY),
        "of the first step, of the newest as it comes",
    ),
    *_pair("n", "N", "next", (1, -1), "next prompt or hit, the one before (p: prompt)", "prompt"),
    Key("p", "", "prompt(-1)", ""),
    Key("s", "s", "sort", "sort by the next column, in reverse", "sort"),
    Key("i", "i", "reverse", ""),
    Key("slash", "/", "search", "search all samples of the run; filter the metrics", "find"),
    Key("h", "h", "history", "the shown prompt at all its steps, and back", "history"),
    Key("b", "b", "tests", "the test split before and after training, and back", "before/after"),
    Key("d", "d", "difference", "what changed since the prompt was first sampled", "diff"),
    Key("c", "c", "copy", "copy the completion (with the mouse: drag over it)", "copy"),
    Key("f", "f", "open('results')", "what training did on the test split", "results"),
    Key("e", "e", "open('advice')", "alerts with advice, workers, log"),
    Key("o", "o", "open('config')", "the settings of the run"),
    Key("r", "r", "runs", "all runs: show another, or compare several", "runs"),
    Key("space", "space", "pause", "pause the run after its step, or resume it", "pause"),
    Key("S", "S", "stop", "stop the run after its step; it can be resumed", "stop"),
    Key("l", "l", "open('log')", "the log of the run: its messages, warnings marked", "log"),
    Key("E", "E", "export", "export the chart (SVG, CSV) into the current folder", "export"),
    Key("t", "t", "theme", "light or dark colours"),
    Key("question_mark", "?", "help", "this page", "help"),
    Key("q,ctrl+c,ctrl+q", "q, ctrl-c", "leave", "leave; the run goes on", "quit"),
)
SPACE, STOP = "space", "S"
MUST = ("?", "tab", SPACE, STOP)
"""Keys that the footer of every page names; an enlarged chart names `esc` instead of `tab`."""
MORE = {
    "summary": ("1-9", "f", "+", "w", "y"),
    "charts": ("1-9", "+", "left", "<", "w", "y", "x"),
    "chart": ("+", "left", "E", "<", "w", "y", "x", "0"),
    "metrics": ("/", "enter", "v", "down, j"),
    "completions": ("/", "n", "[", "s", "h", "b", "d", "c"),
    "hits": ("n", "s", "enter", "h", "i", "/", "c"),
    "time": ("[", "s", "enter", "d", "h", "c"),
    "tests": ("n", "d", "[", "s", "i", "h", "c"),
    "advice": ("down, j",),
    "log": ("down, j",),
    "config": ("down, j",),
    "compare": ("r", "down, j"),
}
"""Further keys for the footer of a page, or of what is listed on that of completions, the most useful first."""
SHORT_IN = {
    "hits": {"n": "n N hit", "enter": "enter open"},
    "time": {"[": "[ ] step", "enter": "enter open", "h": "h back"},
    "tests": {"n": "n N prompt", "[": "[ ] evaluation"},
}
"""How keys are named where they do something else."""
ELSEWHERE = ("1-9", "f", "[", "n", "+", "w")
MAX_FOOTER_KEYS = 9
MIN_OWN_KEYS = 2
"""Keys of the page that the names of other pages make room for."""
SHORT = {
    "i": "i reverse",
    "[": "[ ] step",
    "down, j": "up down scroll",
    "left": "left right cursor",
    "<": "< > pan",
    "+": "+ - zoom",
}


def help_rows() -> list[tuple[str, str]]:
    """Return the rows of the help: keys, and what they do."""
    rows: list[tuple[str, str]] = []
    for key in KEYS:
        if key.help:
            rows.append((key.shown, key.help))
        elif key.shown:
            rows[-1] = (f"{rows[-1][0]}, {key.shown}", rows[-1][1])
    return rows


def footer(width: int, names: Sequence[str], at: str, *, asks: bool, state: str, listing: str = "step") -> Text:
    """Return the last line of a page: all pages, or only the open one where its keys need the room; then keys, at most
    MAX_FOOTER_KEYS, and how to leave. `asks`: whether the user can pause and stop the run; `listing`: what the page of
    completions lists."""
    rests = state in ("pausing", "paused")
    texts = {key.shown: f"{key.shown} {key.footer}" for key in KEYS} | SHORT
    what = listing if at == "completions" and listing in MORE else at
    texts |= SHORT_IN.get(what, {})
    texts |= {SPACE: f"{SPACE} {'resume' if rests else 'pause'}"}
    first = [name for name in MUST if asks or name not in (SPACE, STOP)]
    if at == "chart":
        first[1] = "esc"
    wanted = [texts[name] for name in (*first, *MORE.get(what, ELSEWHERE))][:MAX_FOOTER_KEYS]
    outs = ("q quit (the run goes on)", "q quit") if state in ALIVE_STATES else ("q quit",)
    names_shown = (_all(names, at), _one(names, at, numbered=True), _one(names, at, numbered=False))
    # what goes first where there is no room: names of other pages, then words after `quit`, then keys of the page
    choices = [(own, out, pages) for own in range(MIN_OWN_KEYS, -1, -1) for out in outs for pages in names_shown]
    for own, out, pages in [*choices, (0, outs[-1], Text())]:
        if len(pages) + len("  ".join([*wanted[: len(first) + own], out])) + 2 <= width:
            break
    while wanted and len(pages) + len("  ".join([*wanted, out])) + 2 > width:
        wanted.pop()
    return pages.append(" " + "  ".join([*wanted, out]), style=DIM)


def _all(names: Sequence[str], at: str) -> Text:
    """All pages, the open one marked."""
    line = Text()
    for name in names if len(names) > 1 else ():
        line.append(f" [{name}]" if name == at else f" {name}", "bold" if name == at else DIM)
    return line.append(" ")


def _one(names: Sequence[str], at: str, *, numbered: bool) -> Text:
    """The open page, with its number among the pages."""
    place = f" {names.index(at) + 1}/{len(names)}" if numbered and at in names else ""
    return Text.assemble((f" [{at}]", "bold"), (f"{place} ", DIM))
