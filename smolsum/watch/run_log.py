"""The log of a run: its own messages over all attempts, with warnings marked, and the tracebacks of its log files."""

import re

from rich.text import Text

from smolsum.runs.completion_groups import clean
from smolsum.runs.records import NOTES
from smolsum.watch.pane_text import DIM, ORANGE, RED, Pane, time_of_day, wrapped
from smolsum.watch.snapshot import Snapshot

MARKS = {"failed": ("!!", RED), "warning": ("!", ORANGE), "note": ("", "")}
"""Mark and style of a message; colour alone never carries meaning."""
INDENT = 13
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) (.*)$")


def run_log(snapshot: Snapshot, width: int, height: int) -> Pane:
    """Return the messages of the run, the newest last; scrolling shows older ones. Each has its time of day, and a mark
    where it is a warning (!) or says how the run failed (!!); a line names each attempt. Below a failure is its
    traceback."""
    lines: list[Text] = []
    events = sorted(_entries(snapshot), key=lambda entry: entry[0])
    attempt = 0
    for _, stamp, level, number, message in events:
        if number > attempt:
            attempt = number
            day = time_of_day(stamp, "%Y-%m-%d")
            lines.append(Text(f"attempt {number}{f', {day}' if day else ''}", style=f"bold {DIM}"))
        mark, style = MARKS[level]
        first, *more = message.split("\n")
        text = wrapped(clean(first), width - INDENT, style)
        time = f"{time_of_day(stamp) or '--:--:--'}  "
        head = Text.assemble((time, DIM), (f"{mark:<3}", f"bold {style}".strip()))
        lines += [head.append_text(text[0]), *(Text(" " * INDENT).append_text(line) for line in text[1:])]
        lines += [Text(f"{'':{INDENT}}{clean(line)}"[:width], style=DIM) for line in more]
    end = max(len(lines) - snapshot.options.scroll, min(height, len(lines)))
    shown = lines[max(end - height, 0) : end]
    warnings = sum(level != "note" for _, _, level, _, _ in events)
    note = f"{len(events)}" + (f", {warnings} marked" if warnings else "")
    if len(lines) > height:
        note += f"  {end - len(shown) + 1}-{end} of {len(lines)} lines"
    return Pane("log", note, tuple(shown or [Text("none yet", style=DIM)]))


def _entries(snapshot: Snapshot) -> list[tuple[tuple[str, int], str, str, int, str]]:
    """The order, time, level, attempt and text of each message; a traceback comes right after its event."""
    found = []
    for event in snapshot.run.events:
        level = "failed" if event.kind == "failed" else "note" if event.kind in NOTES else "warning"
        hint = f" -> {event.hint}" if event.hint else ""
        found.append(((event.time, 0), event.time, level, event.attempt, f"{event.message}{hint}"))
    for attempt, line in snapshot.run.log_lines:
        match = STAMP.match(line)
        if match:
            stamp, text = match.groups()
            found.append(((stamp, 1), stamp, "failed", attempt, text))
        elif found and found[-1][0][1] == 1:
            order, stamp, level, attempt, text = found[-1]
            found[-1] = (order, stamp, level, attempt, f"{text}\n{line}")
    return found
