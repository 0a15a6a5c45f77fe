"""Which completions are looked at, read once."""

from __future__ import annotations

from smolsum.watch.board import Board, Look
from smolsum.watch.completions import Group, first_group, read_groups
from smolsum.watch.panes.rollouts import group_of
from smolsum.watch.run import Run


class Browser:
    """The groups of the step that is looked at, and the first rollouts of the same prompt where a difference is."""

    def __init__(self, run: Run, other: Run | None) -> None:
        self._run, self._other = run, other
        self._groups: tuple[Group, ...] = ()
        self._step: int | None = None
        self._first: Group | None = None
        self._first_of: Group | None = None

    def board(self, look: Look) -> Board:
        """This moment of the view, without a look at the disk."""
        return Board(self._run, look, self._other, self._groups, self._first if look.difference else None)

    def load(self, look: Look) -> Board:
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
