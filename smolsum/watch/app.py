"""The live view: a Textual app that reads its runs twice a second and draws what changed; and its dialogs."""

import gc
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Vertical
from textual.filter import LineFilter
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from smolsum.errors import SmolsumError
from smolsum.runs.completion_groups import Group, first_group, read_groups, sort_keys
from smolsum.runs.control import make_request, withdraw
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch import layout
from smolsum.watch.completion_browser import group_of, sample_of
from smolsum.watch.keys import KEYS, footer, help_rows
from smolsum.watch.pane_text import ORANGE, cut
from smolsum.watch.panes import header, message
from smolsum.watch.snapshot import SMOOTHING, WINDOWS, Snapshot, ViewOptions

CONFIRM = "stop"
POLL_S = 0.5
REDRAW_S = 0.25
CLOCK_S = 1.0
"""Seconds after which the times in the header are drawn again without any change."""
FIRST_LOOK_S = 0.5
"""Seconds of reading before the first page is drawn; a run of 10,000 steps takes less."""
SAY_S = 4.0


class WatchApp(App[None]):
    """Shows a run, and the curves of a second one next to its own. Leaving the view does not affect the run.

    Each action has its keys and its help in `keys.KEYS`.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "App.-ascii InputDialog > Vertical, App.-ascii Help > Static { border: ascii $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.names, key.action, key.help, priority=key.action in ("turn(1)", "turn(-1)")) for key in KEYS
    ]

    def __init__(
        self, run: Run, other: Run | None = None, *, options: ViewOptions | None = None, readonly: bool = False
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.watched, self.other, self.readonly = run, other, readonly
        self.options = replace(options or ViewOptions(), asks=not readonly)
        self.set_class(self.options.ascii, "-ascii")
        self.at = ""
        self._browser = Browser(run, other)
        self._canvas = Canvas()
        self._drawn = self._ticked = self._said_until = 0.0
        self._waiting = False
        self._saying = self._state = ""

    def get_line_filters(self) -> Sequence[LineFilter]:
        """With NO_COLOR, no colours at all: Textual's own filter leaves greys."""
        return [Colourless()] if self.no_color else super().get_line_filters()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tab does not turn pages under a dialog, although the app gets the key first."""
        return action != "turn" or not isinstance(self.screen, ModalScreen)

    def compose(self) -> ComposeResult:
        """One canvas for everything."""
        yield self._canvas

    def on_mount(self) -> None:
        """Read and draw, then again every half second."""
        self.watched.poll(FIRST_LOOK_S)
        self.set_interval(POLL_S, self._poll)
        self._draw()

    def on_ready(self) -> None:
        """The first page is drawn."""
        gc.enable()

    def on_resize(self) -> None:
        """Draw the pages for the new size, which Textual knows only after this."""
        self.call_after_refresh(self._redraw)

    def snapshot(self) -> Snapshot:
        """Return this moment of the view."""
        return self._browser.snapshot(self.options)

    def _poll(self) -> None:
        changed = self.watched.poll()
        if self.other is not None:
            changed |= self.other.poll()
        state = self.snapshot().run_state.state  # a run becomes STALE without any change
        if changed or state != self._state:
            self._state = state
            self._redraw()
        elif time.monotonic() - self._ticked >= CLOCK_S:
            self._tick()
        if self.watched.behind():
            self.call_later(self._poll)  # read a long run in portions, so that keys work in between

    def _redraw(self) -> None:
        """Draw, at most every quarter of a second."""
        wait = self._drawn + REDRAW_S - time.monotonic()
        if wait <= 0:
            self._draw()
        elif not self._waiting:
            self._waiting = True
            self.set_timer(wait, self._draw)

    def _tick(self) -> None:
        """Draw what changes with time alone."""
        self._ticked = time.monotonic()
        snapshot, (width, height) = self.snapshot(), self.size
        self._canvas.put("header", 0, 0, width, header(snapshot, width))
        self._canvas.put("message", 0, height - 2, width, [self._message(snapshot, width)])

    def _draw(self) -> None:
        self._drawn, self._waiting = time.monotonic(), False
        width, height = self.size
        if not self.is_running:
            return
        names = layout.pages(width, height)
        self.at = self.at if self.at in (*names, "chart") else names[0]
        snapshot = self._browser.load(self.options)
        placed = layout.slots(self.at, width, height, self.options.chart)
        for slot in placed:
            self._canvas.put(f"pane-{slot.pane}", slot.x, slot.y, slot.width, layout.pane(snapshot, slot))
        self._canvas.keep(["header", "message", "keys", *(f"pane-{slot.pane}" for slot in placed)])
        self._tick()
        state = snapshot.run_state
        line = footer(width, names, self.at, asks=self.options.asks and state.answers, state=state.state)
        self._canvas.put("keys", 0, height - 1, width, [line])

    def _message(self, snapshot: Snapshot, width: int) -> Text:
        if self._saying and time.monotonic() < self._said_until:
            return cut(Text(f" {self._saying}", style=ORANGE), width, ascii=self.options.ascii)
        self._saying = ""
        return message(snapshot, width)

    def _change(self, **choices: object) -> None:
        """Change options and draw."""
        self.options = replace(self.options, **choices)  # type: ignore[arg-type]
        self._redraw()

    def say(self, text: str) -> None:
        """Show a sentence for a few seconds."""
        self._saying, self._said_until = text, time.monotonic() + SAY_S
        self._redraw()

    def action_turn(self, by: int) -> None:
        names = layout.pages(*self.size)
        self.at = names[(names.index(self.at) + by) % len(names)] if self.at in names else names[0]
        self._change(scroll=0)

    def action_open(self, page: Literal["advice", "config"]) -> None:
        self.at = page if page in layout.pages(*self.size) else self.at
        self._change(scroll=0)

    def action_zoom(self, chart: int) -> None:
        if self.at == "chart" and self.options.chart == chart:
            self.action_home()
        else:
            self.at = "chart"
            self._change(chart=chart)

    def action_home(self) -> None:
        self.at = ""
        self._change(query="", scroll=0)

    def action_log(self) -> None:
        self._change(log=not self.options.log)

    def action_smooth(self) -> None:
        """Smooth more, then not at all."""
        self._change(smoothing=SMOOTHING[(SMOOTHING.index(self.options.smoothing) + 1) % len(SMOOTHING)])
        self.say(f"smoothing {self.options.smoothing:g}")

    def action_window(self, by: int) -> None:
        """Show fewer or more steps."""
        place = min(max(WINDOWS.index(self.options.window) + by, 0), len(WINDOWS) - 1)
        self._change(window=WINDOWS[place])
        self.say(f"the newest {WINDOWS[place]} steps" if WINDOWS[place] else "all steps")

    def action_move(self, by: int) -> None:
        """Select another rollout; scroll by a line on pages without rollouts."""
        if self.at in ("advice", "config", "events"):
            self.action_scroll(by if self.at == "config" else -by)
            return
        group = group_of(self.snapshot())
        last = len(group.samples) - 1 if group else 0
        self._change(row=min(max(self.options.row + by, 0), last), scroll=0)

    def action_scroll(self, by: int) -> None:
        self._change(scroll=max(self.options.scroll + by, 0))

    def action_step(self, by: int) -> None:
        """Show the completions of another step; after the last one, follow the newest."""
        run = self.watched
        step = self.snapshot().step + by
        self._change(step=None if step >= run.step else max(step, run.first_step), row=0, scroll=0)

    def action_prompt(self, by: int) -> None:
        self._change(group=(self.options.group + by) % max(len(self.snapshot().groups), 1), row=0, scroll=0)

    def action_sort(self) -> None:
        if group := group_of(self.snapshot()):
            keys = sort_keys(group)
            place = keys.index(self.options.sort) if self.options.sort in keys else -1
            self._change(sort=keys[(place + 1) % len(keys)], row=0)

    def action_search(self) -> None:
        self.push_screen(InputDialog("find in the completions", self.options.query), self._search)

    def _search(self, query: str | None) -> None:
        if query is not None:
            self._change(query=query, row=0)

    def action_difference(self) -> None:
        self._change(difference=not self.options.difference, scroll=0)

    def action_copy(self) -> None:
        """Copy the completion to the clipboard, if the terminal allows it."""
        if sample := sample_of(self.snapshot()):
            self.copy_to_clipboard(sample.text)
            self.say("sent the completion to the clipboard of the terminal")

    def action_help(self) -> None:
        self.push_screen(Help(readonly=self.readonly))

    def action_pause(self) -> None:
        if self._may_ask():
            pausing = not self.watched.requested("pause")
            self._request("pause" if pausing else "resume")
            if not pausing:
                self.say("the run goes on")

    def action_stop(self) -> None:
        """Ask the run to stop, once the user has typed the word that confirms it."""
        if self._may_ask():
            text = f"The run finishes its step, saves and ends; it can be resumed.\nType {CONFIRM} to stop it."
            self.push_screen(InputDialog(text), self._confirmed)

    def _confirmed(self, answer: str | None) -> None:
        if answer == CONFIRM:
            self._request("stop")
        else:
            self.say("not stopped")

    def _may_ask(self) -> bool:
        if self.readonly:
            self.say("this view only reads (--readonly)")
        elif not self.snapshot().run_state.answers:
            self.say(f"nothing to pause or stop: the run is {self.snapshot().run_state.state}")
        else:
            return True
        return False

    def _request(self, request: Literal["pause", "resume", "stop"]) -> None:
        try:
            if request == "resume":
                withdraw(self.watched.paths, "pause")
            else:
                make_request(self.watched.paths, request)
        except SmolsumError as error:
            self.say(str(error))
        self._poll()

    def action_leave(self) -> None:
        self.exit()


class Browser:
    """The completions of the shown step, read once; with the first rollouts of the same prompt to compare with."""

    def __init__(self, run: Run, other: Run | None) -> None:
        self._run, self._other = run, other
        self._groups: tuple[Group, ...] = ()
        self._step: int | None = None
        self._first: Group | None = None
        self._first_of: Group | None = None

    def snapshot(self, options: ViewOptions) -> Snapshot:
        """Return this moment of the view without reading the disk."""
        return Snapshot(self._run, options, self._other, self._groups, self._first if options.difference else None)

    def load(self, options: ViewOptions) -> Snapshot:
        """Return this moment of the view with the completions of the shown step."""
        step = self.snapshot(options).step
        if step != self._step:
            groups = read_groups(self._run.paths, step)
            if groups or options.step is not None:  # while the newest step is being written, the one before stays
                self._groups, self._step = groups, step
        group = group_of(self.snapshot(options))
        if options.difference and group is not None and group is not self._first_of:
            self._first, self._first_of = first_group(self._run.paths, group, self._run.first_step), group
        return self.snapshot(options)


class Canvas(Widget):
    """Named rectangles of text over the whole screen; only those that changed are drawn again."""

    DEFAULT_CSS = "Canvas { overflow: hidden; } Canvas > Static { position: absolute; }"

    def __init__(self) -> None:
        super().__init__()
        self._widgets: dict[str, Static] = {}
        self._texts: dict[str, Text] = {}
        self._places: dict[str, tuple[int, int, int, int]] = {}

    def put(self, name: str, x: int, y: int, width: int, lines: Sequence[Text]) -> None:
        """Put lines at their place, and draw them if they changed."""
        widget = self._widgets.get(name)
        if widget is None:
            widget = self._widgets[name] = Static(id=name)
            self.mount(widget)
        text = Text("\n", no_wrap=True, end="").join(lines)
        text.no_wrap = True
        place = (x, y, width, len(lines))
        if self._places.get(name) != place:
            self._places[name] = place
            widget.styles.offset, widget.styles.width, widget.styles.height = (x, y), width, len(lines)
        if self._texts.get(name) != text or self._texts[name].spans != text.spans:
            widget.update(text)
            self._texts[name] = text

    def keep(self, names: Collection[str]) -> None:
        """Hide all other rectangles."""
        for name, widget in self._widgets.items():
            widget.display = name in names


class Colourless(LineFilter):
    """Removes colours and keeps bold, underlined and reversed text."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return a line without colours; Textual calls this for each one."""
        return [Segment(text, style.without_color if style else style, control) for text, style, control in segments]


class InputDialog(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c return None."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; background: $background 60%; }
    InputDialog > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    InputDialog Input, InputDialog Input:focus { border: none; height: 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "cancel", priority=True)]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        """The question above an input line."""
        with Vertical():
            yield Static(Text(self._text))
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the answer."""
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Return None."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """All keys; any key closes it."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > Static { width: 72; max-width: 100%; height: auto; max-height: 100%; border: round $foreground; }
    """

    def __init__(self, *, readonly: bool) -> None:
        super().__init__()
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        """A line for each row of keys."""
        closing = "read only: the run cannot be paused or stopped from here" if self._readonly else ""
        lines = [f"{shown:<18} {text}" for shown, text in help_rows()]
        yield Static(Text("\n".join([*lines, closing]).rstrip()))

    def on_key(self) -> None:
        """Close the dialog."""
        self.dismiss(None)


class Picker(App[RunPaths]):
    """Lists runs at work, the newest first; returns the selected one, or None."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "OptionList { height: auto; max-height: 90%; border: round $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,ctrl+c,ctrl+q", "leave", priority=True)]

    def __init__(self, runs: Sequence[RunPaths]) -> None:
        super().__init__()
        self.animation_level = "none"
        self._runs = list(reversed(runs))

    def compose(self) -> ComposeResult:
        """A line for each run."""
        yield Static(Text(" several runs are at work: up, down, return to watch one, q to leave"))
        yield OptionList(*(Text(_line(paths)) for paths in self._runs))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the selected run."""
        self.exit(self._runs[event.option_index])

    def action_leave(self) -> None:
        """Return None."""
        self.exit()


def _line(paths: RunPaths) -> str:
    """Name, state and step of a run."""
    run = Run(paths)
    run.poll_status()
    total = f"/{run.total}" if run.total else ""
    return f"{paths.name}   {run.status.state}   step {run.step}{total}"
