"""The keys of the page of completions, and what the mouse selects there."""

from smolsum.watch import completion_navigation, layout
from smolsum.watch.canvas import Canvas
from smolsum.watch.layout import Slot
from smolsum.watch.mouse_selection import MouseSelection
from smolsum.watch.snapshot import ViewOptions
from smolsum.watch.view import RunView

SELECTABLE = ("texts", "before", "after", "advice", "log", "config")
"""Panes whose text the mouse selects."""


class CompletionActions(RunView):
    """What the keys of the page of completions do to the options of the view."""

    ALLOW_SELECT = False  # text is selected within a pane, and without its frame

    _selection: MouseSelection | None = None

    def action_step(self, by: int) -> None:
        """Show the completions of another step, or another row of what is listed."""
        self._look(completion_navigation.other_step(self.snapshot(), by))

    def action_prompt(self, by: int) -> None:
        self._look(completion_navigation.next_prompt(self.snapshot(), by))

    def action_next(self, by: int) -> None:
        """Go to the next hit of a search, or the next prompt."""
        self._look(completion_navigation.next_one(self.snapshot(), by))

    def action_sort(self) -> None:
        self._look(completion_navigation.next_order(self._browser.load(self.options)))

    def action_reverse(self) -> None:
        self._change(backwards=not self.options.backwards, row=0, hit=0)

    def action_history(self) -> None:
        """List the steps at which the shown prompt was sampled, or go back."""
        self._browse(completion_navigation.over_time(self._browser.load(self.options)))

    def action_tests(self) -> None:
        """List the test split before and after training, or go back."""
        self._browse(completion_navigation.test_split(self.snapshot()))

    def _browse(self, options: ViewOptions) -> None:
        """List these on the page of completions."""
        self.at = "completions" if "completions" in layout.pages(*self.size) else self.at
        self._look(options)

    def _search(self, query: str | None) -> None:
        if query is not None:
            self._browse(completion_navigation.searching(self.snapshot(), query))

    def action_difference(self) -> None:
        self._change(difference=not self.options.difference, scroll=0)

    def action_copy(self) -> None:
        """Copy the completion to the clipboard, if the terminal allows it."""
        what, text = completion_navigation.copied(self._browser.load(self.options))
        if text:
            self.copy_to_clipboard(text)
            self.say(f"sent {what} to the clipboard of the terminal")

    def drag(self, slot: Slot | None, event: Canvas.Pressed) -> bool:
        """Select text with the mouse, and copy it when it is released; whether the event belongs to that."""
        if event.kind == "press":
            selectable = slot is not None and slot.pane in SELECTABLE
            self._selection = (
                MouseSelection(slot, (event.x, event.y), (event.x, event.y)) if slot and selectable else None
            )
            self._canvas.select({})
        elif event.kind == "move" and self._selection is not None:
            self._selection = MouseSelection(self._selection.slot, self._selection.begin, (event.x, event.y))
            self._canvas.select(self._selection.covered())
        elif event.kind == "release" and self._selection is not None:
            selection, self._selection = self._selection, None
            if not selection.empty:
                self._copy_selected(selection)
        return event.kind in ("press", "move", "release")

    def _copy_selected(self, selection: MouseSelection) -> None:
        slot = selection.slot
        drawn = layout.PANES[slot.pane](self.snapshot(), slot.width - 2, slot.height - 2)
        if text := selection.text(drawn.lines):
            self.copy_to_clipboard(text)
            self.say(f"sent {len(text)} selected characters to the clipboard of the terminal")
