"""The keys of the view, once for bindings, footer and help."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from smolsum.runs.state import ALIVE_STATES
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
    help: str = ""
    footer: str = ""


KEYS = (
    Key("tab", "tab", "turn(1)", "next page, page before", "page"),
    Key("shift+tab", "shift+tab", "turn(-1)"),
    Key("1", "1-9", "enlarge(0)", "enlarge a chart, and back", "enlarge"),
    *(Key(str(n), "", f"enlarge({n - 1})") for n in range(2, 10)),
    Key("enter", "enter", "choose", "enlarge the metric, open the hit under the bar", "enlarge"),
    Key("v", "v", "pin", "put that metric first on the page of charts, or take it off", "pin"),
    Key("escape", "esc", "home", "back to the first page, or end a search", "back"),
    Key("plus,equals_sign", "+", "zoom(0.5)", "fewer steps in charts, more (wheel: there)", "zoom"),
    Key("minus", "-", "zoom(2.0)"),
    Key("comma,less_than_sign", "<", "pan(-1)", "earlier steps, later", "pan"),
    Key("full_stop,greater_than_sign", ">", "pan(1)"),
    Key("left", "left", "side(-1)", "cursor in charts (click); completions: step before, next", "cursor"),
    Key("right", "right", "side(1)"),
    Key("shift+left", "", "side(-10)"),
    Key("shift+right", "", "side(10)"),
    Key("0", "0", "all", "all steps, no cursor", "all"),
    Key("x", "x", "unit", "charts by step, time or tokens", "by time"),
    Key("w", "w", "smooth", "smoother lines over the measured ones", "smooth"),
    Key("y", "y", "log", "logarithmic scale, where values allow it", "log"),
    Key("up,k", "up, k", "move(-1)", "rollout before, next one"),
    Key("down,j", "down, j", "move(1)"),
    Key("pageup,u", "pgup, u", f"scroll({-PAGE})", "scroll the text up, down"),
    Key("pagedown,m", "pgdn, m", f"scroll({PAGE})"),
    Key("left_square_bracket", "[", "step(-1)", "completions of the step before, the next"),
    Key("right_square_bracket", "]", "step(1)"),
    Key("left_curly_bracket,home", "{, home", f"step({-MANY})", "of the first step, of the newest as it comes"),
    Key("right_curly_bracket,end", "}, end", f"step({MANY})"),
    Key("n", "n", "next(1)", "next prompt or hit, the one before (p: prompt)", "prompt"),
    Key("N", "N", "next(-1)"),
    Key("p", "", "prompt(-1)"),
    Key("s", "s", "sort", "sort by the next column, in reverse", "sort"),
    Key("i", "i", "reverse"),
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
    Key("q,ctrl+c,ctrl+q", "q, ctrl-c", "leave", "leave; the run continues", "quit"),
)
SPACE, STOP = "space", "S"
LINES = ("down, j",)
"""Further keys for the footer of a page of lines."""
MORE = {
    "summary": ("1-9", "f", "+", "w", "y"),
    "charts": ("1-9", "+", "left", "<", "w", "y", "x"),
    "chart": ("+", "left", "E", "<", "w", "y", "x", "0"),
    "metrics": ("/", "enter", "v", *LINES),
    "completions": ("/", "n", "[", "s", "h", "b", "d", "c"),
    "hits": ("n", "s", "enter", "h", "i", "/", "c"),
    "time": ("[", "s", "enter", "d", "h", "c"),
    "tests": ("n", "d", "[", "s", "i", "h", "c"),
    "advice": LINES,
    "log": LINES,
    "config": LINES,
    "compare": ("r", *LINES),
}
"""Further keys for the footer of a page, or of what is listed on that of completions, the most useful first."""
ELSEWHERE = ("1-9", "f", "[", "n", "+", "w")
SHORT = {
    "i": "i reverse",
    "[": "[ ] step",
    "down, j": "up down scroll",
    "left": "left right cursor",
    "<": "< > pan",
    "+": "+ - zoom",
}
SHORT_IN = {
    "hits": {"n": "n N hit", "enter": "enter open"},
    "time": {"[": "[ ] step", "enter": "enter open", "h": "h back"},
    "tests": {"n": "n N prompt", "[": "[ ] evaluation"},
}
"""How keys are named where they do something else."""
MAX_FOOTER_KEYS = 9
MIN_OWN_KEYS = 2
"""Keys of the page that the names of other pages make room for."""


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
    what = listing if at == "completions" and listing in MORE else at
    texts = {key.shown: f"{key.shown} {key.footer}" for key in KEYS} | SHORT | SHORT_IN.get(what, {})
    texts[SPACE] = f"{SPACE} {'resume' if state in ('pausing', 'paused') else 'pause'}"
    must = ["?", "esc" if at == "chart" else "tab", *((SPACE, STOP) if asks else ())]
    wanted = [texts[name] for name in (*must, *MORE.get(what, ELSEWHERE))][:MAX_FOOTER_KEYS]
    outs = ("q quit (the run continues)", "q quit") if state in ALIVE_STATES else ("q quit",)
    place = f" {names.index(at) + 1}/{len(names)}" if at in names else ""
    pages = (_all(names, at), _one(at, place), _one(at))
    # what goes first where there is no room: names of other pages, then words after `quit`, then keys of the page
    choices = [(own, out, line) for own in range(MIN_OWN_KEYS, -1, -1) for out in outs for line in pages]
    for own, out, line in [*choices, (0, outs[-1], Text())]:
        if len(line) + len("  ".join([*wanted[: len(must) + own], out])) + 2 <= width:
            break
    while wanted and len(line) + len("  ".join([*wanted, out])) + 2 > width:
        wanted.pop()
    return line.append(" " + "  ".join([*wanted, out]), style=DIM)


def _all(names: Sequence[str], at: str) -> Text:
    """All pages, the open one marked; a click on one opens it."""
    line = Text()
    for name in names if len(names) > 1 else ():
        style = Style.parse("bold" if name == at else DIM) + Style.from_meta({"page": name})
        line.append(" ").append(f"[{name}]" if name == at else name, style)
    return line.append(" ")


def _one(at: str, place: str = "") -> Text:
    """The open page, with its place among the pages."""
    return Text.assemble((f" [{at}]", "bold"), (f"{place} ", DIM))
