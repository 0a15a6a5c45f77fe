"""The view itself: a Textual app that looks at its runs twice a second and draws what changed.

Which completions are looked at, read once.

What the view asks: a text to search for, a word that confirms a stop, and the page of keys.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.filter import LineFilter
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from smolsum.errors import SmolsumError
from smolsum.runs.completions import Group, first_group, read_groups, sort_keys
from smolsum.runs.control import make_request, withdraw
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Run
from smolsum.watch import layout
from smolsum.watch.keys import KEYS, footer, help_rows
from smolsum.watch.pane import ORANGE, Canvas, Colourless, cut
from smolsum.watch.panes.header import header, message
from smolsum.watch.panes.rollouts import group_of, sample_of
from smolsum.watch.snapshot import SMOOTHING, WINDOWS, Snapshot, ViewOptions


class Browser:
    """The groups of the step that is looked at, and the first rollouts of the same prompt where a difference is."""

    def __init__(self, run: Run, other: Run | None) -> None:
        self._run, self._other = run, other
        self._groups: tuple[Group, ...] = ()
        self._step: int | None = None
        self._first: Group | None = None
        self._first_of: Group | None = None

    def board(self, look: ViewOptions) -> Snapshot:
        """This moment of the view, without a look at the disk."""
        return Snapshot(self._run, look, self._other, self._groups, self._first if look.difference else None)

    def load(self, look: ViewOptions) -> Snapshot:
        """This moment of the view, with the completions of the step that it looks at."""
        step = look.step if look.step is not None else self._run.step
        if step != self._step:
            groups = read_groups(self._run.paths, step)
            if groups or look.step is not None:  # else the newest step is being written, and the one before stays
                self._groups, self._step = groups, step
        group = group_of(self.board(look))
        if look.difference and group is not None and group is not self._first_of:
            self._first, self._first_of = first_group(self._run.paths, group, self._run.first_step), group
        return self.board(look)


CONFIRM = "stop"


class InputDialog(ModalScreen[str | None]):
    """Asks for a line of text; escape and ctrl-c give None."""

    DEFAULT_CSS = """
    Question { align: center middle; background: $background 60%; }
    Question > Vertical { width: 70; max-width: 90%; height: auto; border: round $foreground; padding: 1 2; }
    Question Input, Question Input:focus { border: none; height: 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+q", "cancel", priority=True)]

    def __init__(self, text: str, value: str = "") -> None:
        super().__init__()
        self._text, self._value = text, value

    def compose(self) -> ComposeResult:
        """The question above a line to write in."""
        with Vertical():
            yield Static(Text(self._text))
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return is the answer."""
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """No answer."""
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
        """A line for each key, or for a pair."""
        closing = "read only: the run cannot be paused or stopped from here" if self._readonly else ""
        lines = [f"{shown:<18} {text}" for shown, text in help_rows()]
        yield Static(Text("\n".join([*lines, closing]).rstrip()))

    def on_key(self) -> None:
        """Any key."""
        self.dismiss(None)


POLL_S = 0.5
REDRAW_S = 0.25
CLOCK_S = 1.0
"""Seconds after which the times in the header are drawn anew without news."""
FIRST_LOOK_S = 0.5
"""Seconds of reading before something is drawn; a run of 10,000 steps takes less."""
SAY_S = 4.0


class WatchApp(App[None]):
    """Shows a run, and beside its curves those of another. Leaving it does nothing to the run."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "App.-ascii Question > Vertical, App.-ascii Help > Static { border: ascii $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.names, key.action, key.help, priority=key.action in ("turn(1)", "turn(-1)")) for key in KEYS
    ]

    def __init__(
        self, run: Run, other: Run | None = None, *, look: ViewOptions | None = None, readonly: bool = False
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.watched, self.other, self.readonly = run, other, readonly
        self.look = replace(look or ViewOptions(), asks=not readonly)
        self.set_class(self.look.ascii, "-ascii")
        self.at = ""
        self._browser = Browser(run, other)
        self._canvas = Canvas()
        self._drawn = self._ticked = self._said_until = 0.0
        self._waiting = False
        self._saying = self._state = ""

    def get_line_filters(self) -> Sequence[LineFilter]:
        """NO_COLOR means none: Textual's own filter would leave greys."""
        return [Colourless()] if self.no_color else super().get_line_filters()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Under a dialog no page is turned, though tab comes here first."""
        return action != "turn" or not isinstance(self.screen, ModalScreen)

    def compose(self) -> ComposeResult:
        """All is drawn on one canvas."""
        yield self._canvas

    def on_mount(self) -> None:
        """The first look, then one every half second."""
        self.watched.poll(FIRST_LOOK_S)
        self.set_interval(POLL_S, self._poll)
        self._draw()

    def on_ready(self) -> None:
        """The first page is there."""
        gc.enable()

    def on_resize(self) -> None:
        """Another size has other pages and places; Textual knows it only after this."""
        self.call_after_refresh(self._redraw)

    def board(self) -> Snapshot:
        """This moment of the view."""
        return self._browser.board(self.look)

    def _poll(self) -> None:
        changed = self.watched.poll()
        if self.other is not None:
            changed |= self.other.poll()
        state = self.board().run_state.state  # STALE comes with the time alone
        if changed or state != self._state:
            self._state = state
            self._redraw()
        elif time.monotonic() - self._ticked >= CLOCK_S:
            self._tick()
        if self.watched.behind():
            self.call_later(self._poll)  # a long run is read in portions, and keys are heard in between

    def _redraw(self) -> None:
        """Draws now, or as soon as the last time is a quarter of a second ago."""
        wait = self._drawn + REDRAW_S - time.monotonic()
        if wait <= 0:
            self._draw()
        elif not self._waiting:
            self._waiting = True
            self.set_timer(wait, self._draw)

    def _tick(self) -> None:
        """Draws what changes with the time alone."""
        self._ticked = time.monotonic()
        board, (width, height) = self.board(), self.size
        self._canvas.put("header", 0, 0, width, header(board, width))
        self._canvas.put("message", 0, height - 2, width, [self._message(board, width)])

    def _draw(self) -> None:
        self._drawn, self._waiting = time.monotonic(), False
        width, height = self.size
        if not self.is_running:
            return
        names = layout.pages(width, height)
        self.at = self.at if self.at in (*names, "chart") else names[0]
        board = self._browser.load(self.look)
        placed = layout.slots(self.at, width, height, self.look.chart)
        for slot in placed:
            self._canvas.put(f"pane-{slot.pane}", slot.x, slot.y, slot.width, layout.pane(board, slot))
        self._canvas.keep(["header", "message", "keys", *(f"pane-{slot.pane}" for slot in placed)])
        self._tick()
        state = board.run_state
        line = footer(width, names, self.at, asks=self.look.asks and state.answers, state=state.state)
        self._canvas.put("keys", 0, height - 1, width, [line])

    def _message(self, board: Snapshot, width: int) -> Text:
        if self._saying and time.monotonic() < self._said_until:
            return cut(Text(f" {self._saying}", style=ORANGE), width, ascii=self.look.ascii)
        self._saying = ""
        return message(board, width)

    def _change(self, **choices: object) -> None:
        """Another way to look, drawn at once."""
        self.look = replace(self.look, **choices)  # type: ignore[arg-type]
        self._redraw()

    def say(self, text: str) -> None:
        """Shows a sentence for some seconds."""
        self._saying, self._said_until = text, time.monotonic() + SAY_S
        self._redraw()

    def action_turn(self, by: int) -> None:
        """Another page."""
        names = layout.pages(*self.size)
        self.at = names[(names.index(self.at) + by) % len(names)] if self.at in names else names[0]
        self._change(scroll=0)

    def action_open(self, page: Literal["advice", "config"]) -> None:
        """A page by its name."""
        self.at = page if page in layout.pages(*self.size) else self.at
        self._change(scroll=0)

    def action_zoom(self, chart: int) -> None:
        """A chart over the whole page, or back."""
        if self.at == "chart" and self.look.chart == chart:
            self.action_home()
        else:
            self.at = "chart"
            self._change(chart=chart)

    def action_home(self) -> None:
        """The first page, without a search."""
        self.at = ""
        self._change(query="", scroll=0)

    def action_log(self) -> None:
        """Logarithmic scale or not."""
        self._change(log=not self.look.log)

    def action_smooth(self) -> None:
        """More smoothing, then none."""
        self._change(smoothing=SMOOTHING[(SMOOTHING.index(self.look.smoothing) + 1) % len(SMOOTHING)])
        self.say(f"smoothing {self.look.smoothing:g}")

    def action_window(self, by: int) -> None:
        """Fewer or more steps."""
        place = min(max(WINDOWS.index(self.look.window) + by, 0), len(WINDOWS) - 1)
        self._change(window=WINDOWS[place])
        self.say(f"the newest {WINDOWS[place]} steps" if WINDOWS[place] else "all steps")

    def action_move(self, by: int) -> None:
        """Another rollout; on pages without any, a line."""
        if self.at in ("advice", "config", "events"):
            self.action_scroll(by if self.at == "config" else -by)
            return
        group = group_of(self.board())
        last = len(group.samples) - 1 if group else 0
        self._change(row=min(max(self.look.row + by, 0), last), scroll=0)

    def action_scroll(self, by: int) -> None:
        """Further down or up in a text."""
        self._change(scroll=max(self.look.scroll + by, 0))

    def action_step(self, by: int) -> None:
        """Completions of another step; past the last one, whatever is newest."""
        run = self.watched
        step = (self.look.step if self.look.step is not None else run.step) + by
        self._change(step=None if step >= run.step else max(step, run.first_step), row=0, scroll=0)

    def action_prompt(self, by: int) -> None:
        """Another prompt of the step."""
        self._change(group=(self.look.group + by) % max(len(self.board().groups), 1), row=0, scroll=0)

    def action_sort(self) -> None:
        """By the next column."""
        if group := group_of(self.board()):
            keys = sort_keys(group)
            place = keys.index(self.look.sort) if self.look.sort in keys else -1
            self._change(sort=keys[(place + 1) % len(keys)], row=0)

    def action_search(self) -> None:
        """Asks for words that completions must have."""
        self.push_screen(InputDialog("find in the completions", self.look.query), self._search)

    def _search(self, query: str | None) -> None:
        if query is not None:
            self._change(query=query, row=0)

    def action_difference(self) -> None:
        """What changed since the prompt was first sampled."""
        self.look = replace(self.look, difference=not self.look.difference, scroll=0)
        self._redraw()

    def action_copy(self) -> None:
        """The completion to the clipboard, where the terminal lets us."""
        if sample := sample_of(self.board()):
            self.copy_to_clipboard(sample.text)
            self.say("the terminal was asked to copy the completion")

    def action_help(self) -> None:
        """The page of keys."""
        self.push_screen(Help(readonly=self.readonly))

    def action_pause(self) -> None:
        """Asks the run to pause, or to go on."""
        if self._may_ask():
            pausing = not self.watched.requested("pause")
            self._request("pause" if pausing else "resume")
            if not pausing:
                self.say("the run goes on")

    def action_stop(self) -> None:
        """Asks the run to stop, after a word that confirms it."""
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
        elif not self.board().run_state.answers:
            self.say(f"nothing to pause or stop: the run is {self.board().run_state.state}")
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
        """The view ends, the run does not."""
        self.exit()


class Picker(App[RunPaths]):
    """Lists runs, the newest first; returns the chosen one, or None."""

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
        yield OptionList(*(Text(_told(paths)) for paths in self._runs))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """The chosen run."""
        self.exit(self._runs[event.option_index])

    def action_leave(self) -> None:
        """None of them."""
        self.exit()


def _told(paths: RunPaths) -> str:
    """A run's name, state and step."""
    run = Run(paths)
    run.poll_status()
    total = f"/{run.total}" if run.total else ""
    return f"{paths.name}   {run.status.state}   step {run.step}{total}"
