"""A chart of lines as a Textual widget, for the mouse; what it shows is a `LinePlot`."""

from textual import events
from textual.message import Message
from textual.widgets import Static

from smolsum.linechart.braille import Ends
from smolsum.linechart.plot import LinePlot
from smolsum.linechart.zoom import View


class Chart(Static):
    """A chart that the mouse zooms, points at and enlarges; a click on a text with a `curve` in its `meta`, such as an
    entry of a legend, hides that curve."""

    plot = LinePlot()
    view = View()
    whole: Ends = (0, 0)
    """the first and the last step that there are"""

    class Chosen(Message):
        """The user wants to see other steps or the values of another one (`view`), to hide a curve or to see it again
        (`curve`), or, without either, this chart alone."""

        def __init__(self, chart: "Chart", view: View | None = None, curve: str = "") -> None:
            super().__init__()
            self.chart, self.view, self.curve = chart, view, curve

    def on_click(self, event: events.Click) -> None:
        curve, step = event.style.meta.get("curve", ""), self._step(event)
        if curve or event.chain >= 2:
            self.post_message(self.Chosen(self, curve=curve))
        elif step is not None:
            self.post_message(self.Chosen(self, self.view.pointed(self.whole, step)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._zoom(event, 0.5)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._zoom(event, 2.0)

    def _zoom(self, event: events.MouseEvent, factor: float) -> None:
        event.stop()
        self.post_message(self.Chosen(self, self.view.zoomed(self.whole, factor, self._step(event))))

    def _step(self, event: events.MouseEvent) -> float | None:
        """The step under the pointer."""
        at = event.get_content_offset(self)
        return self.plot.step(at.x) if at else None
