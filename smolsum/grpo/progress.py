"""What a run shows on stderr while it trains, and the clock of a step.

On a terminal: one bar for the whole run and, every few steps, a row of a table above it. Elsewhere: one line of
`key=value` pairs for each report, and a heartbeat line after a silence.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from smolsum import console
from smolsum.console import duration
from smolsum.rollout.sampling_count import SamplingCount
from smolsum.runs.state import ETA_STEPS, mean_without_pauses

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Figures = Mapping[str, tuple[Sequence[str], str]]
"""by the name in a line: metrics, of which the first one present is shown, and its format"""
_FIGURES: Figures = {
    "reward": (("reward",), ".3f"),
    "std_in_group": (("reward_std",), ".3f"),
    "zero_std": (("frac_reward_zero_std",), ".2f"),
    "tokens": (("completions/mean_length",), ".1f"),
}
"""With the task's figures, s/step, step and eta a line has eight figures, enough to read, and more only where a stage
adds several signals."""
_SPEED: Figures = {"s/step": (("perf/step_s",), ".2f")}
_GRADIENT: Figures = {"grad_norm": (("grad_norm",), ".2g")}
_VALIDATION = "validation"
_STAGE_WIDTH = 12
FIRST_S, AGAIN_S = 3.0, 10.0
"""Seconds that completions are sampled before their count is shown: of the first of its kind, and of later ones.
Heartbeats repeat it."""
# least width of the bar, the spinner and the gaps
_BAR_WIDTH = 16


class StepClock:
    """Where a step's time goes, in seconds, under TRL's `perf/` names."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Add the time since the last mark to `perf/<name>`."""
        now = time.perf_counter()
        self._laps[f"perf/{name}"] = self._laps.get(f"perf/{name}", 0.0) + now - self._last
        self._last = now

    def times(self) -> dict[str, float]:
        """`perf/step_s`, from the start to now, and all laps."""
        return {"perf/step_s": time.perf_counter() - self._start, **self._laps}


class Progress:
    """The display of one run, from entering it to `close`. Steps count from 1, over all stages."""

    def __init__(
        self,
        *,
        report_every: int = 10,
        quiet: bool = False,
        heartbeat_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Report every `report_every` steps; with `quiet`, only warnings. `clock` returns seconds."""
        self._report_every = report_every
        self._quiet = quiet
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._live = console.live()
        self._bar: Bar | None = None
        self._total = 0
        self._part = "stage"
        self._figures: Figures = {**_FIGURES, **_SPEED}
        self._bar_figures: Figures = {}
        self._stage_ends: set[int] = set()
        self._widths: dict[str, int] = {}
        self._headed = False
        self._step_seconds: deque[float] = deque(maxlen=ETA_STEPS)
        self._where = self._sampling = ""
        self._stepped = False
        self._kinds, self._count_began, self._count_shown = set[str](), 0.0, False
        self._began = self._spoke = clock()
        # reentrant: a signal handler may print while its thread does
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        if not (self._live or self._quiet):
            self._heart.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar and end the heartbeat; closing again does nothing."""
        self._closed.set()
        if self._heart.is_alive():
            self._heart.join()
        with self._lock:
            self._drop_bar()

    def phase(self, text: str) -> None:
        """Print what starts now, e.g. `loading builtin:tiny …`; heartbeats repeat it."""
        with self._lock:
            self._where, self._sampling = f'doing="{text}"', ""
            self.note(text)

    def counting(self, doing: str, count: SamplingCount, *, of: str = "", then: str = "") -> None:
        """Show completions that are being sampled, or the groups of an update: in the bar, or as a line, once they have
        taken a moment: the first with a name, `doing`, after `FIRST_S`, others after `AGAIN_S`. Heartbeats have each,
        with `of`, and `then` what follows it."""
        with self._lock:
            now, label = self._clock(), " ".join(filter(None, (doing, of)))
            if count.left_s is None:
                self._count_began, self._count_shown = now, False
            self._sampling = f'now="{then}"' if then and count.done == count.total else f'now="{label}" {count}'
            if now - self._count_began < FIRST_S:
                return
            if self._bar is not None:
                ended = count.done == count.total
                name, parts = (then or label, []) if ended else (label, count.parts)
                room = self._bar.console.width - len(name) - _BAR_WIDTH
                self._bar.update(self._bar.task_ids[0], description=name, numbers=_fit(parts, room))
            elif not (self._live or self._count_shown or count.done == count.total):
                if doing in self._kinds and now - self._count_began < AGAIN_S:
                    return
                self._count_shown = True
                self._kinds.add(doing)
                self.note(f"{label}: {count}")

    def note(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            with self._speaking():
                console.narrate(text)

    def warn(self, text: str) -> None:
        """Print a warning, also when quiet."""
        with self._speaking():
            console.warn(text)

    def plan(
        self,
        stages: Sequence[tuple[str, int]],
        watched: Mapping[str, Sequence[str]] | None = None,
        *,
        part: str = "stage",
    ) -> None:
        """Set the names and step counts of all stages, and the task's figures of a step or a validation (by name, the
        metrics of which the first one present is shown); `part` is shown as the title of the names. Call it before the
        first step."""
        own: Figures = {name: (metrics, ".2f") for name, metrics in (watched or {}).items()}
        with self._lock:
            self._figures = {**_FIGURES, **own, **_SPEED}
            self._bar_figures = {"reward": _FIGURES["reward"], **own, "tokens": _FIGURES["tokens"]}
            self._stage_ends = set(accumulate(steps for _, steps in stages))
            self._total = sum(steps for _, steps in stages)
            longest = max(len(name) for name in (_VALIDATION, *(name for name, _ in stages)))
            self._part = part
            self._widths = {part: min(longest, _STAGE_WIDTH)}
            self._widths["step"] = max(len("step"), len(f"{self._total}/{self._total}"))
            self._widths |= {name: max(len(name), 6) for name in {**self._figures, **_GRADIENT}}
            self._headed = False
            if self._live and not self._quiet:
                self._drop_bar()
                first = stages[0][0][:_STAGE_WIDTH]
                self._bar = console.bar(first, self._total, f"0/{self._total}", spinner=True)

    def step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step, whose metrics have the names of metrics.jsonl; missing ones are left out."""
        if "perf/step_s" in metrics:
            self._step_seconds.append(metrics["perf/step_s"])
        position, eta = f"{step}/{self._total}", self._eta(step)
        with self._lock:
            heads = {self._part: stage, "step": position}
            self._where, self._sampling = _pairs(heads | eta), ""
            if self._bar is not None:
                name = stage[:_STAGE_WIDTH]
                room = self._bar.console.width - len(name) - _BAR_WIDTH
                numbers = eta | _formatted(self._bar_figures, metrics)
                texts = [f"{key} {value:>5}" for key, value in numbers.items()]
                text = _fit([position.rjust(self._widths["step"]), *texts], room)
                self._bar.update(self._bar.task_ids[0], completed=step, description=name, numbers=text)
            first, self._stepped = not self._stepped, True
            if first or step % self._report_every == 0 or step in self._stage_ends:
                if self._live:
                    self._print_row(heads | _formatted({**self._figures, **_GRADIENT}, metrics))
                else:
                    self.note(_pairs(heads | _formatted(self._figures, metrics) | eta))

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics of a validation after `step` steps."""
        with self._lock:
            if self._live:
                heads = {self._part: _VALIDATION, "step": str(step)}
                self._print_row(heads | _formatted({**self._figures, **_GRADIENT}, metrics))
            else:
                self.note(f"{_VALIDATION} {_pairs({'step': str(step)} | _formatted(self._figures, metrics))}")

    def results(
        self, tables: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]], warnings: Iterable[str] = ()
    ) -> None:
        """Remove the bar and print the closing tables, each of a title, columns and rows, then their warnings, these
        also when quiet."""
        if not self._quiet:
            with self._lock:
                self._drop_bar()
                with self._speaking():
                    for title, columns, rows in tables:
                        console.table(columns, rows, title=title)
        for text in warnings:
            self.warn(text)

    def beat(self) -> float:
        """Print a heartbeat line after `heartbeat_s` of silence; return the seconds until the next one is due."""
        with self._lock:
            now = self._clock()
            if now - self._spoke >= self._heartbeat_s:
                elapsed = f"elapsed={duration(now - self._began)}"
                self.note(" ".join(filter(None, ("heartbeat", elapsed, self._where, self._sampling))))
            return self._spoke + self._heartbeat_s - now

    def _keep_beating(self) -> None:
        wait_s = self._heartbeat_s
        while not self._closed.wait(wait_s):
            wait_s = self.beat()

    def _eta(self, step: int) -> dict[str, str]:
        """Return the time for the remaining steps, at the mean of the last few; empty if no step was timed."""
        mean = mean_without_pauses(self._step_seconds)
        return {} if mean is None else {"eta": duration(mean * (self._total - step))}

    def _print_row(self, cells: Mapping[str, str]) -> None:
        """Print a row of the table above the bar, without the columns that do not fit the terminal."""
        rows = [cells] if self._headed else [{name: name for name in self._widths}, cells]
        self._headed = True
        room = console.console().width
        lines = []
        for row in rows:
            texts = [row.get(name, "-").rjust(width) for name, width in self._widths.items()]
            texts[0] = row[self._part][:_STAGE_WIDTH].ljust(self._widths[self._part])
            lines.append(_fit(texts, room))
        self.note("\n".join(lines))

    def _drop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Hold the stream, and take the bar off the screen while something is printed."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            yield
            if self._bar is not None:
                self._bar.start()
            self._spoke = self._clock()


def _formatted(figures: Figures, metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the figures present in the metrics as texts, by name."""
    found = {name: next((key for key in keys if key in metrics), None) for name, (keys, _) in figures.items()}
    return {name: format(metrics[key], figures[name][1]) for name, key in found.items() if key is not None}


def _pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _fit(texts: Sequence[str], room: int) -> str:
    """Return as many of the texts, from the first, as fit into `room` cells with two spaces between them."""
    ends = accumulate(len(text) + 2 for text in texts)
    return "  ".join(text for text, end in zip(texts, ends, strict=True) if end - 2 <= room)
