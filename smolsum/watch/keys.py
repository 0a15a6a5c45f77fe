"""The keys of the view, for bindings, footer, help and palette, and the pages on which each one works."""

from textual.binding import Binding

from smolsum.watch.curves import CHARTS

MANY = 1_000_000
"""More than the steps of any run."""
CHARTED = ("overview", "charts", "chart", "results", "metrics")
BROWSED = ("overview", "completions")
ON: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("zoom", "pan", "all", "unit", "smooth", "log"), CHARTED),
    "cursor": ("charts", "chart"),
    "pin": ("metrics", "chart"),
    "export": ("metrics", "chart"),
    "search": ("metrics", *BROWSED),
}
"""The pages on which an action works, where it does not work on all."""


def _key(keys: str, action: str, word: str, help: str = "", *, shown: str | None = None, show: bool = False) -> Binding:
    """A key with its word for the footer (if `show` or `shown` in another way, where it works), and the rest of its
    line in the help."""
    # taken before any widget has it: what is typed next is then for the page or the line of input that it opens
    priority = action.startswith(("turn", "leave(", "search"))
    return Binding(keys, action, word, show or bool(shown), shown, priority, help)


KEYS = [
    _key("question_mark", "keys", "help", "all keys of this page, and back", show=True),
    _key("tab", "turn(1)", "page", "the next one (a click opens any)", show=True),
    _key("shift+tab", "turn(-1)", "page before"),
    _key("space", "request('pause')", "pause", "the run after its step", show=True),
    _key("space", "request('resume')", "resume", "the run", show=True),
    _key("space", "refuse('pause')", "pause", "the run, if it is at work"),
    _key("S", "stop", "stop", "the run after its step; it can be resumed", show=True),
    _key("S", "refuse('stop')", "stop", "the run, if it is at work"),
    _key("q", "leave", "quit", "the view; the run continues", show=True),
    _key("ctrl+c,ctrl+q", "leave(True)", "quit", "the view; the run continues"),
    _key("escape", "home", "back", "to the first page, or end a search", show=True),
    _key("slash", "search", "find", "a text in all samples of the run; a metric by its name", show=True),
    _key("v", "pin", "pin", "the metric first on the page of charts, or take it off", show=True),
    _key("1", "enlarge(0)", "enlarge", "the first chart, and back; 2 to 9 the others", shown="1-9"),
    *(_key(str(n), f"enlarge({n - 1})", CHARTS[n - 1].title, "alone") for n in range(2, 10)),
    _key("n", "browse('go_next', 1)", "next", "prompt or hit", shown="n N"),
    _key("N", "browse('go_next', -1)", "prompt or hit before"),
    _key("p", "browse('go_prompt', -1)", "prompt before"),
    _key(
        "left_square_bracket",
        "browse('go_step', -1)",
        "step",
        "before; of the test split the evaluation before",
        shown="[ ]",
    ),
    _key("right_square_bracket", "browse('go_step', 1)", "next step", "or evaluation"),
    _key("left_curly_bracket,home", f"browse('go_step', {-MANY})", "first step"),
    _key("right_curly_bracket,end", f"browse('go_step', {MANY})", "newest step", "as it comes"),
    _key("left", "browse('go_step', -1)", "step before"),
    _key("right", "browse('go_step', 1)", "next step"),
    _key("shift+left", "browse('scroll_columns', -10)", "columns", "to the left"),
    _key(
        "shift+right",
        "browse('scroll_columns', 10)",
        "columns",
        "to the right, where the table is wider than its frame",
    ),
    _key("s", "browse('sort')", "sort", "by the next column (or a click on a head)", show=True),
    _key("i", "browse('reverse')", "reverse", "the order"),
    _key("plus,equals_sign", "zoom(0.5)", "zoom", "in (wheel: there)", shown="+ -"),
    _key("minus", "zoom(2.0)", "zoom out"),
    _key("left", "cursor(-1)", "cursor", "to the left (or a click; shift: ten times as far)", shown="← →"),
    _key("right", "cursor(1)", "cursor", "to the right"),
    _key("shift+left", "cursor(-10)", "cursor", "far to the left"),
    _key("shift+right", "cursor(10)", "cursor", "far to the right"),
    _key("comma,less_than_sign", "pan(-1)", "pan", "to earlier steps", shown="< >"),
    _key("full_stop,greater_than_sign", "pan(1)", "pan", "to later steps"),
    _key("0", "all", "all steps", "and no cursor"),
    _key("E", "export", "export", "the chart (SVG, CSV) into the current folder", show=True),
    _key("w", "smooth", "smooth", "lines, over the measured ones", show=True),
    _key("y", "log", "log", "scale, where values allow it", show=True),
    _key("x", "unit", "by time", "by tokens, by step", show=True),
    _key("h", "history", "history", "of the prompt at all its steps, and back", show=True),
    _key("b", "tests", "before/after", "training, the test split, and back", show=True),
    _key(
        "d",
        "browse('toggle_difference')",
        "diff",
        "to when the prompt was first sampled, or to before training",
        show=True,
    ),
    _key("c", "copy", "copy", "the completion (with the mouse: drag over it)", show=True),
    _key("pageup,u", "scroll(-1)", "scroll up"),
    _key("pagedown,m", "scroll(1)", "scroll down"),
    _key("f", "open('results')", "results", "what training did on the test split"),
    _key("e", "open('alerts')", "alerts", "with advice, workers, step times"),
    _key("l", "open('log')", "log", "the messages of the run, warnings marked"),
    _key("o", "open('config')", "config", "the settings of the run"),
    _key("r", "runs", "runs", "show another, or compare several", show=True),
    _key("t", "theme", "colours", "light or dark"),
]
