"""What the package prints, and how it takes Ctrl-C: results on stdout, messages on stderr.

Colour, boxes and bars need a terminal. NO_COLOR, TERM=dumb and `set_plain` switch them off; FORCE_COLOR colours text
without a terminal too. Text is printed as it is, never read as Rich markup, and control characters are escaped. Rich is
imported on first use, so that importing this module is fast.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from smolsum.errors import SmolsumError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?\s?([%a-z]{0,3}|\*)|-|[-+]?inf|nan|", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except line ends and tabs, and characters that change the direction of text."""
METER_S, FIRST_S = 10.0, 3.0
"""Seconds between two lines of a meter, where there is no bar, and before the first one."""
POLL_S = 0.2
"""Seconds between two checks whether the user wants to stop."""
_plain = False


def set_plain(plain: bool) -> None:
    """Switch colour, boxes and bars off for the rest of the process (--plain), or back to automatic."""
    global _plain
    _plain = plain


def colored() -> bool:
    """Whether stderr gets colour."""
    if _plain or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or sys.stderr.isatty()


def live() -> bool:
    """Whether stderr is a terminal that shows bars and boxes; otherwise progress is one plain line at a time."""
    return colored() and sys.stderr.isatty()


def console() -> Console:
    """Return a Rich console on stderr, with as many colours as the terminal has."""
    from rich.console import Console

    # color_system stays automatic: a forced one would write escape codes into pipes and log files
    return Console(
        stderr=True, force_terminal=colored(), no_color=not colored(), markup=False, emoji=False, highlight=False
    )


def data(text: str) -> None:
    """Print one line of a result to stdout. A closed pipe is no error. Raises SmolsumError for other failures, such as
    a full disk."""
    try:
        print(visible(text), file=sys.stdout, flush=True)
    except BrokenPipeError:
        _discard_stdout()
    except OSError as failure:
        _discard_stdout()
        raise SmolsumError(f"the result cannot be written: {failure}", hint="make room where stdout goes") from failure


def narrate(text: str) -> None:
    """Print a message to stderr."""
    print(visible(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print `warning: …` to stderr."""
    _labelled("warning", "bold yellow", text)


def error(exc: BaseException) -> None:
    """Print `error: …` to stderr and, where the exception carries a hint, a blank line and `hint: …`."""
    _labelled("error", "bold red", str(exc) or type(exc).__name__)
    if isinstance(exc, SmolsumError) and exc.hint:
        narrate("")
        _labelled("hint", "bold cyan", exc.hint)


def can_ask() -> bool:
    """Whether somebody is there to answer: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str, *, careful: bool = False) -> bool:
    """Ask on stderr and read the answer from stdin: yes unless it begins with n or the input has ended, or, where the
    question is `careful`, only if it begins with y."""
    print(f"{question} {'[y/N]' if careful else '[Y/n]'} ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    first = answer.strip().lower()[:1]
    return bool(answer) and (first == "y" if careful else first != "n")


def visible(text: str) -> str:
    """Return the text with control characters escaped, except line ends and tabs: a server's answer or a file's name
    cannot control the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{code:02x}" if (code := ord(found[0])) < 256 else f"\\u{code:04x}", text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table to stderr: boxed on a terminal, aligned plain text elsewhere.

    Columns of numbers are aligned right. A terminal too narrow for the box gets plain text; one too narrow for all
    columns lacks the last ones, and a line says which. Elsewhere all columns are printed.
    """
    columns, rows = [visible(name) for name in columns], [[visible(cell) for cell in row] for row in rows]
    if not live() or _boxed(_shape(columns, rows)[1]) > console().width >= _unboxed(_shape(columns, rows)[1]):
        for line in [*([] if title is None else [title]), *_aligned(columns, rows)]:
            narrate(line)
        return
    numeric, widths = _shape(columns, rows)
    from rich.table import Table
    from rich.text import Text

    out = console()
    shown = max((n for n in range(len(columns) + 1) if _boxed(widths[:n]) <= out.width), default=0) or 1
    grid = Table(title=None if title is None else Text(title), title_justify="left")
    for name, right in zip(columns[:shown], numeric, strict=False):
        grid.add_column(Text(name), justify="right" if right else "left")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row[:shown]))
    out.print(grid)
    if shown < len(columns):
        narrate(f"(not shown in {out.width} columns: {', '.join(columns[shown:])})")


def data_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout as aligned plain text, the same on a terminal and in a pipe.

    Where $COLUMNS or the terminal is too narrow for all columns the last ones are left out, and stderr says which.
    """
    columns, rows = [visible(name) for name in columns], [[visible(cell) for cell in row] for row in rows]
    shown = len(columns)
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        _, widths = _shape(columns, rows)
        room = shutil.get_terminal_size().columns
        shown = max((n for n in range(len(columns) + 1) if _unboxed(widths[:n]) <= room), default=0) or 1
    for line in _aligned(columns[:shown], [row[:shown] for row in rows]):
        data(line)
    if shown < len(columns):
        narrate(f"(not shown in {room} columns: {', '.join(columns[shown:])})")


def bar(doing: str, total: int, numbers: str = "", *, spinner: bool = False) -> Progress:
    """Return a running progress bar on stderr, whose task has a text field `numbers`. It disappears when stopped."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    progress = Progress(
        *([SpinnerColumn("line")] if spinner else []),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=console(),
        expand=True,
        transient=True,
        redirect_stdout=False,
        # looks alive, and suits a slow connection
        refresh_per_second=2,
    )
    progress.add_task(doing, total=total, numbers=numbers)
    progress.start()
    return progress


class Meter:
    """Progress of one long count: a bar with the time left on a terminal, elsewhere a line every few seconds.

    It appears with the first call of `to`, as a question to the user may come before.
    """

    def __init__(self, doing: str, total: int, *, quiet: bool) -> None:
        """`doing` is the label and `total` the end."""
        self._doing, self._total, self._quiet = doing, total, quiet
        self._first: int | None = None
        self._said = -1
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._next = self._began + FIRST_S
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def to(self, done: int, note: str = "", *, left_s: float | None = None) -> None:
        """Show `done` of the total, with `note` after it. The first call may start above 0, for work done before.
        `left_s` are the seconds left where the caller knows them better, from parts of what comes next."""
        if self._first is None:
            self._first, self._began = done, time.monotonic()
            if live() and not self._quiet:
                self._bar = bar(self._doing, self._total)
        now = time.monotonic()
        fresh = done - self._first
        if left_s is None and fresh:
            left_s = (now - self._began) / fresh * (self._total - done)
        left = "" if left_s is None else f"eta {duration(left_s)}"
        text = " ".join(part for part in (f"{done}/{self._total}", note, left) if part)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, numbers=text)
        elif not self._quiet and self._said < self._total and (now >= self._next or (done == self._total and fresh)):
            self._next, self._said = now + METER_S, done
            narrate(f"{self._doing} {text}")


def duration(seconds: float) -> str:
    """Return a time in its two largest units: `42s`, `5m02s`, `3h03m`, `2d04h`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hours:
        return f"{hours}h{minute:02}m"
    return f"{minutes}m{second:02}s" if minutes else f"{second}s"


@contextmanager
def stop_signals(request_stop: Callable[[], bool], said: str = "finishing the step, then saving") -> Iterator[None]:
    """Make the first Ctrl-C (or SIGTERM) call `request_stop`, which returns whether a step is to be finished: then
    `said` is shown. If not, and at the second Ctrl-C, KeyboardInterrupt is raised at once. Outside of the main thread,
    which alone may handle signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not request_stop():
            raise KeyboardInterrupt
        # not print(): the signal may come while Python writes to the same stream
        os.write(2, f"{said}; Ctrl-C again to quit at once\n".encode())

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class WaitHook:
    """What the surrounding command adds to waits: whether the user wants to stop, and where events (kind and sentence)
    and progress messages go."""

    stopping: Callable[[], bool] = lambda: False
    notify: Callable[[str, str], None] = lambda kind, message: warn(message)
    progress: Callable[[str], None] = lambda text: narrate(text)

    def wait(self, seconds: float) -> bool:
        """Wait; False as soon as the user wants to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.stopping():
                return False
            time.sleep(min(POLL_S, left))
        return not self.stopping()


_hook: ContextVar[WaitHook] = ContextVar("_hook", default=WaitHook())  # noqa: B039  it is frozen


@contextmanager
def use_hook(hook: WaitHook) -> Iterator[None]:
    """Send the events and progress of the block to `hook`, and let it end waits."""
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)


def current_hook() -> WaitHook:
    """Return the hook of the surrounding command."""
    return _hook.get()


def _discard_stdout() -> None:
    """Discard further output: Python would write its buffer again at exit, and fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _labelled(label: str, style: str, text: str) -> None:
    if not colored():
        narrate(f"{label}: {text}")
        return
    from rich.text import Text

    console().print(Text.assemble((f"{label}:", style), " ", visible(text)), soft_wrap=True)


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with columns of numbers aligned right."""
    numeric, widths = _shape(columns, rows)
    return [
        "  ".join(
            cell.rjust(n) if right else cell.ljust(n) for cell, n, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    ]


def _shape(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[bool], list[int]]:
    """Return whether each column holds numbers only, and its width."""
    numeric = [all(_NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(columns))]
    widths = [max(len(cell) for cell in (name, *(row[i] for row in rows))) for i, name in enumerate(columns)]
    return numeric, widths


def _boxed(widths: Sequence[int]) -> int:
    """Return the width of a boxed table: each column has two cells of padding and a line, and a line ends the row."""
    return sum(widths) + 3 * len(widths) + 1


def _unboxed(widths: Sequence[int]) -> int:
    """Return the width of an aligned table: two cells between columns."""
    return sum(widths) + 2 * (len(widths) - 1)
