"""All runs of a directory as lines of a list: state, progress, newest result on the test split, age. Only the ends of
their files are read, in portions."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from rich.text import Text

from smolsum.errors import SmolsumError
from smolsum.runs.completion_groups import clean
from smolsum.runs.evaluation_records import Summary
from smolsum.runs.paths import RunPaths, last_started, list_runs
from smolsum.runs.reader import LAST_BYTES, Run
from smolsum.runs.run_state import TROUBLE, RunState, progress, run_state
from smolsum.watch.curves import RUNS
from smolsum.watch.pane_text import DIM, GREEN, ORANGE, RED, SKY, ending

UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
STYLE = {"running": GREEN, "finished": "", "paused": SKY, "pausing": ORANGE, "stopping": ORANGE}
MIN_NAME = 16
WORDS = ("state", "tested after", "results")
"""Columns that begin at their left."""


@dataclass(frozen=True)
class RunLine:
    """What the list says of a run."""

    paths: RunPaths
    state: RunState
    stage: str
    progress: str
    evaluated: str
    """what the newest evaluation on the test split was made after; empty before the first"""
    results: Mapping[str, tuple[str, float]]
    """its constraint and its quality: text and value (the higher the better), by title"""
    age_s: float
    """seconds since the run was last started"""

    def has(self, words: Sequence[str]) -> bool:
        """Whether each of these words in lower case is in its name, state or stage."""
        text = f"{self.paths.name} {self.state.state} {self.stage}".lower()
        return all(word in text for word in words)


class RunList:
    """The runs of a directory, the one that was started last first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = ""
        """why the directory cannot be read; empty if it can"""
        self._runs: dict[Path, Run] = {}
        self._unread: list[Path] = []

    def poll(self, budget_s: float) -> bool:
        """Look for new runs and read what changed, for about `budget_s` seconds; whether all was read."""
        until = time.monotonic() + budget_s
        if not self._unread:
            try:
                found = [paths.root for paths in reversed(list_runs(self.folder))]
                self.problem = ""
            except SmolsumError as error:
                found, self.problem = [], str(error)
            self._runs = {root: self._runs.get(root) or Run(RunPaths(root), last_bytes=LAST_BYTES) for root in found}
            self._unread = found[::-1]
        while self._unread and time.monotonic() < until:
            self._runs[self._unread.pop()].poll()
        return not self._unread

    def lines(self, query: str = "", sort: str = "") -> list[RunLine]:
        """Return a line for each run that was read and has all words of the query, in any case; the newest first, or
        the best by the result with the title `sort`."""
        now, words, unread = datetime.now(UTC), query.lower().split(), set(self._unread)
        lines = [_line(run, now) for root, run in self._runs.items() if root not in unread or run.status.state]
        lines = [line for line in lines if line.has(words)]
        # sorting is stable: those without the result stay in their order, behind
        return (
            sorted(lines, key=lambda line: -line.results[sort][1] if sort in line.results else inf) if sort else lines
        )

    def __len__(self) -> int:
        return len(self._runs)


def _line(run: Run, now: datetime) -> RunLine:
    started = last_started(run.paths.root)
    age = now.timestamp() - started if started is not None else 0.0
    label, summary = run.newest_result
    return RunLine(
        run.paths, run_state(run, now), run.stage, progress(run), label, dict(_results(summary)), max(age, 0.0)
    )


def _results(summary: Summary) -> Iterator[tuple[str, tuple[str, float]]]:
    for one in () if summary.so_far else summary.measures:
        value = summary.metrics.get(one.name)
        if one.role and value is not None:
            yield clean(one.title), (format(value, one.form), -value if one.better == "lower" else value)


def draw_lines(
    lines: Sequence[RunLine], marked: Collection[Path], width: int, *, ascii: bool, at: Path | None = None
) -> tuple[Text, list[Text]]:
    """Return the head and the lines in columns of `width` characters; the runs that are `marked`, in this order, begin
    with the letters that they have in the view, and the run under the bar, `at`, with a `>`. The best of each result
    has a star. Results that have no room for a column each share one."""
    letters = dict(zip(marked, RUNS, strict=False))
    states = [f"{line.state.mark(ascii)} {line.state.state}" for line in lines]
    titles = list(dict.fromkeys(title for line in lines for title in line.results))
    each = {title: _results_column(lines, title, "*" if ascii else "★") for title in titles}
    shared = [
        "  ".join(f"{title} {each[title][place].strip()}" for title in line.results) for place, line in enumerate(lines)
    ]
    choices: list[dict[str, list[str]]] = [
        {"tested after": [clean(line.evaluated)[:12] for line in lines], **each},
        each,
        {"results": shared},
        *({title: each[title] for title in titles[:count]} for count in range(len(titles) - 1, -1, -1)),
    ]
    for choice in choices:
        columns = {"state": states, "step": [line.progress for line in lines], **choice}
        columns["age"] = [age(line.age_s) for line in lines]
        sizes = {title: max(map(len, [title, *cells])) for title, cells in columns.items()}
        if (room := width - 3 - sum(size + 2 for size in sizes.values())) >= MIN_NAME:
            break
    room = max(room, MIN_NAME)
    head = f"   {'run':<{room}}" + "".join(_cell(title, title, size) for title, size in sizes.items())
    drawn = []
    for place, line in enumerate(lines):
        name = ending(clean(line.paths.name), room, ascii=ascii)
        start = f"{'>' if line.paths.root == at else ' '}{letters.get(line.paths.root, ' ')}"
        text = Text(f"{start} {name:<{room}}", no_wrap=True, overflow="crop")
        style = RED if line.state.state in TROUBLE else STYLE.get(line.state.state, DIM)
        style = "" if line.paths.root == at else style  # the bar has its colours
        for title, size in sizes.items():
            text.append(_cell(title, columns[title][place], size), style=style if title == "state" else "")
        drawn.append(text)
    return Text(head, style=DIM, no_wrap=True, overflow="crop"), drawn


def _results_column(lines: Sequence[RunLine], title: str, star: str) -> list[str]:
    """Return the texts of a result, the best of several with a star."""
    values = [line.results[title][1] for line in lines if title in line.results]
    best = max(values) if len(set(values)) > 1 else inf
    found = (line.results.get(title, ("", -inf)) for line in lines)
    return [f"{text}{star if value == best else ' '}" if values else text for text, value in found]


def _cell(title: str, content: str, size: int) -> str:
    """Words to the left, numbers to the right."""
    return f"  {content:{'<' if title in WORDS else '>'}{size}}"


def age(seconds: float) -> str:
    """Return a time in its largest unit: `3d`, `5h`, `12m`, `8s`."""
    unit = next((unit for unit, length in UNITS.items() if seconds >= length), "s")
    return f"{seconds // UNITS[unit]:.0f}{unit}"
