"""Which steps of a chart are in view, and where its cursor is."""

from dataclasses import dataclass, replace

from smolsum.linechart.braille import Ends

MIN_WINDOW = 8
"""Steps below which charts do not zoom in."""
PAN = 0.25
"""Part of the window that a key moves it by."""


@dataclass(frozen=True)
class View:
    """Which steps are in view, and where the cursor is; `whole` are the first and the last step that there are."""

    steps: int = 0
    """0: all"""
    end: float | None = None
    """the last one; None: the newest, as it comes"""
    cursor: float | None = None
    """the step whose values are shown; None: the newest"""

    def ends(self, whole: Ends) -> Ends:
        """Return the first and the last step in view."""
        if not self.steps:
            return whole
        end = min(self.end if self.end is not None else whole[1], whole[1])
        return max(end - self.steps + 1, whole[0]), end

    def zoomed(self, whole: Ends, factor: float, around: float | None = None) -> "View":
        """Return a view of `factor` times as many steps; the step `around`, or else the cursor or the newest step,
        stays where it is."""
        first, last = self.ends(whole)
        steps = last - first + 1
        wanted = max(round(steps * factor), min(MIN_WINDOW, round(steps)))
        if wanted >= whole[1] - whole[0] + 1:
            return replace(self, steps=0, end=None)
        fixed = around if around is not None else self.cursor if self.cursor is not None else last
        return self._to(whole, wanted, fixed + (last - fixed) / steps * wanted)

    def panned(self, whole: Ends, by: int) -> "View":
        """Return a view moved by a part of its width; at the end it follows the newest step."""
        first, last = self.ends(whole)
        return self._to(whole, self.steps, last + by * max(1, round(PAN * (last - first + 1)))) if self.steps else self

    def pointed(self, whole: Ends, step: float) -> "View":
        """Return a view with the cursor at a step, moved to have it."""
        step = min(max(step, whole[0]), whole[1])
        found, (first, last) = replace(self, cursor=step), self.ends(whole)
        if self.steps and not first <= step <= last:
            return found._to(whole, self.steps, step if step > last else step + self.steps - 1)
        return found

    def stepped(self, whole: Ends, by: int, columns: int) -> "View":
        """Return a view with the cursor moved by that many of `columns` columns, at least a step each; it begins at the
        newest step in view."""
        first, last = self.ends(whole)
        width = max(1, round((last - first) / max(columns, 1)))
        return self.pointed(whole, last if self.cursor is None else self.cursor + by * width)

    def _to(self, whole: Ends, steps: int, end: float) -> "View":
        end = max(round(end), round(whole[0]) + steps - 1)
        return replace(self, steps=steps, end=None if end >= whole[1] else end)
