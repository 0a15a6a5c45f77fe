"""Text that the mouse selects in a pane: which characters it covers, and how they read without the lines' breaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from smolsum.watch.layout import Slot


@dataclass(frozen=True)
class MouseSelection:
    """From one place of the screen to another, in characters, within the frame of a pane."""

    slot: Slot
    begin: tuple[int, int]
    """x and y where the mouse was pressed"""
    end: tuple[int, int]

    @property
    def empty(self) -> bool:
        """Whether the mouse did not move."""
        return self.begin == self.end

    def covered(self) -> Mapping[int, tuple[int, int]]:
        """Return the covered columns of each row of the screen, from the first to behind the last one."""
        slot = self.slot
        left, right, top, bottom = slot.x + 1, slot.x + slot.width - 1, slot.y + 1, slot.y + slot.height - 2
        places = [(min(max(y, top), bottom), min(max(x, left), right - 1)) for x, y in (self.begin, self.end)]
        (first, x_first), (last, x_last) = sorted(places)
        return {
            y: (x_first if y == first else left, x_last + 1 if y == last else right) for y in range(first, last + 1)
        }

    def text(self, lines: Sequence[Text]) -> str:
        """Return what is selected of the lines of the pane. Lines that go on in the next one are joined, and the column
        before a text is left out."""
        found = ""
        for y, (begin, end) in self.covered().items():
            place = y - self.slot.y - 1
            if place >= len(lines):
                break
            line = lines[place]
            part = _cells(line.plain, begin - self.slot.x - 1, end - self.slot.x - 1).rstrip()
            if begin == self.slot.x + 1:
                part = part.removeprefix(" ")
            found += part + line.end
        return found.strip("\n ")


def _cells(text: str, begin: int, end: int) -> str:
    """The characters of a line between two columns; a wide one counts where it begins."""
    found, column = "", 0
    for character in text:
        if begin <= column < end:
            found += character
        column += cell_len(character)
    return found
