"""Sends a run directory to one tracker: what is there, then what is new.

`trackers/<name>.json` says how far the tracker has the run, and is written after the tracker has taken it. So a process
that was killed, or a tracker that was away, costs at most that something is sent twice.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace as changed

from smolsum.config.run_labels import model_name
from smolsum.errors import SmolsumError
from smolsum.files import digest, replace
from smolsum.runs.completion_groups import read_groups
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import NEVER_DRAWN, Run, Tail
from smolsum.runs.record_io import encode, read, read_object, salvage, to_row
from smolsum.runs.records import LARGEST, NOTES, Event, RunInfo, StepRow, TrackedRun
from smolsum.runs.run_state import run_state
from smolsum.runs.trackers.tracker import (
    CompletionTable,
    Level,
    TrackedIdentity,
    Tracker,
    open_tracker,
    speaking_to,
    without_secrets,
)

ROUND_S = 2.0
"""Seconds between two looks at the run directory."""
WAIT_S, MAX_WAIT_S = 5.0, 60.0
"""The first and the longest wait before a tracker that failed is tried again."""
SETTLE_S = 30.0
"""How long a tracker that fails is tried again after the end of the run."""
MOST_TABLES, MOST_ROWS = 50, 64
"""Steps of a run whose completions are sent, and completions of each."""
ERRORS = ("failed", "update_skipped")
"""Kinds of events that are errors."""


class _LacksSteps(Exception):
    """The tracker has less of the run than was sent."""


class Follower:
    """A run on its way to one tracker. `send` sends what is new."""

    def __init__(self, paths: RunPaths, tracker: str, project: str = "") -> None:
        """Raise SmolsumError where the record of an earlier process is damaged or the run cannot be written. `project`
        is for a run that the tracker does not have yet."""
        self.paths, self.tracker = paths, tracker
        self._place = paths.tracker(tracker)
        again = f"remove {self._place}: the tracker then gets the run once more"
        self.record = read(self._place, TrackedRun, hint=again) if self._place.exists() else TrackedRun()
        self._run = Run(paths, last_bytes=1 << 16)
        self._open: Tracker | None = None
        if not self.record.id:
            self._save(id=secrets.token_hex(6), project=project)
        self._start_over()

    def send(self) -> None:
        """Send what the run directory has gained since the last call. Raises UnreachableError for whatever the tracker
        raises; the next call then begins where the record ends."""
        self._run.poll()
        try:
            with speaking_to(self.tracker):
                try:
                    self._send_all()
                except _LacksSteps:
                    self._start_over()
                    self._send_all()
        except BaseException:
            self._open = None
            self._start_over()
            raise

    def state(self) -> str:
        """Return the state of the run."""
        self._run.poll()
        return run_state(self._run, datetime.now(UTC)).state

    def over(self) -> bool:
        """Return whether nothing works on the run."""
        self._run.poll()
        return not run_state(self._run, datetime.now(UTC)).hopeful

    def close(self) -> None:
        """End the connection, if there is one. Raises UnreachableError for whatever the tracker raises."""
        if self._open is not None:
            state, opened, self._open = self.state(), self._open, None
            with speaking_to(self.tracker):
                opened.close(state)
            if not self._run.gone:
                self._save(open=False)

    def note(self, problem: str) -> None:
        """Write down why the newest could not be sent, or with an empty text that all was."""
        if problem != self.record.problem:
            with suppress(SmolsumError):  # a full disk: the trainer says so
                self._save(problem=problem)

    def _send_all(self) -> None:
        if self.record.open:  # the tracker may lack what it took last, and shows the run as running
            self._opened()
        # events first: they say where a resumed run went back to
        self._send_events()
        self._send_steps()
        self._send_evaluations()

    def _start_over(self) -> None:
        """Read the files from their beginning again, passing over what the record has."""
        self._metrics, self._events, self._lines = Tail(self.paths.metrics), Tail(self.paths.events), 0

    def _opened(self) -> Tracker:
        """Return the tracker, opened where it is not yet."""
        if self._open is None:
            self._open = open_tracker(self.tracker, self._identity())
            held = self._open.held
            self._save(url=without_secrets(self._open.url), open=True)
            if held == 0 and (self.record.events or self.record.step):  # another server, or a store that was removed
                self._save(step=0, events=0, evaluations={})
                raise _LacksSteps
            if held is not None and held != self.record.step:
                lacks = held < self.record.step
                self._save(step=held, evaluations={} if lacks else self.record.evaluations)
                if lacks:
                    raise _LacksSteps
        return self._open

    def _identity(self) -> TrackedIdentity:
        config = read_object(self.paths.config)
        info = RunInfo()
        with suppress(SmolsumError):
            info = read(self.paths.info, RunInfo)
        made_from: dict[str, Any] = {"model": info.model.weights, "tokenizer": info.tokenizer, "created": info.created}
        made_from |= {"versions": info.versions, "machine": info.machine, "revisions": info.revisions}
        settings = self._run.settings
        tags = dict.fromkeys(filter(None, (settings.task, model_name(settings.model), "-".join(settings.stages))))
        return TrackedIdentity(
            self.paths.root.absolute(), self.paths.name, self.record.id, self.record.project,
            self.paths.root.absolute().parent.name, tuple(tags), {**config, "made_from": made_from}, self.record.step,
        )  # fmt: skip

    def _send_events(self) -> None:
        restarts = self._events.restarts
        while self._events.more():
            if self._events.restarts != restarts:
                self._lines, restarts = 0, self._events.restarts
            rows = list(self._events.read())
            if not rows:
                return
            for row in rows:
                self._lines += 1
                if self._lines > self.record.events:
                    self._send_event(salvage(row, Event) or Event())
                    self._save(events=self._lines)

    def _send_event(self, event: Event) -> None:
        if event.kind == "started" and event.step is not None and event.step < self.record.step:
            self._go_back(event.step)
        if event.kind and event.kind not in NOTES:
            level: Level = "error" if event.kind in ERRORS else "warning"
            text = "; ".join(filter(None, (event.message, event.hint)))
            self._opened().alert(event.kind, text, level, event.step)

    def _go_back(self, step: int) -> None:
        """Deal with steps that were sent, and that the resumed run makes again."""
        tracker, last = self._opened(), self.record.step
        if step >= last:
            return
        if tracker.keeps_first:
            text = f"resumed from step {step}: steps {step + 1} to {last} were trained again, and are shown as at first"
            tracker.alert("resumed", text, "info", step)
            return
        tracker.rewind(step)
        self._save(step=step, evaluations={})
        self._metrics = Tail(self.paths.metrics)

    def _send_steps(self) -> None:
        while self._metrics.more():
            rows = list(self._metrics.read())
            if not rows:
                return
            step = self.record.step
            for row in rows:
                found = salvage(row, StepRow)
                if found is None or found.step <= step:
                    continue
                tracker, step = self._opened(), max(step, self.record.step)
                if found.step > step and (values := _numbers(row)):
                    tracker.log(found.step, values, self._completions(found.step))
                    step = found.step
            if step != self.record.step:
                self._opened().flush()
                self._save(step=step)

    def _completions(self, step: int) -> CompletionTable | None:
        """Return the completions of the step if it is one of those that are sent, and has them."""
        every = max(1, math.ceil(self._run.total / MOST_TABLES))
        if step != 1 and step % every:
            return None
        groups = read_groups(self.paths, step)
        samples = [one for group in groups for one in group.samples]
        signals = list(dict.fromkeys(name for one in samples for name in one.rewards))
        extra = list(dict.fromkeys(name for one in samples for name in one.extra))
        rows = [
            [step, group.prompt_id, group.post, one.text, one.reward, one.advantage, *map(one.rewards.get, signals),
             one.tokens, one.finish_reason, *map(one.extra.get, extra)]
            for group in groups for one in group.samples
        ]  # fmt: skip
        columns = [
            "step",
            "example",
            "prompt",
            "completion",
            "reward",
            "advantage",
            *signals,
            "tokens",
            "finish",
            *extra,
        ]
        return CompletionTable(columns, rows[:MOST_ROWS]) if rows else None

    def _send_evaluations(self) -> None:
        sent = dict(self.record.evaluations)
        for name, summary in self._run.evaluations().items():
            mark = digest(to_row(summary))
            values = {f"eval/{name}/{key}": value for key, value in summary.metrics.items() if value is not None}
            if sent.get(name) != mark and values:
                self._opened().evaluation(summary.step or 0, values)
                sent[name] = mark
        if sent != self.record.evaluations:
            self._opened().flush()
            self._save(evaluations=sent)

    def _save(self, **fields: Any) -> None:
        if not self.paths.root.is_dir():
            raise SmolsumError(f"{self.paths.root} was removed", hint="restore it, and track it again")
        self.record = changed(self.record, **fields)
        again = f"smolsum track {self.paths.reference} --to {self.tracker}"
        replace(self._place, encode(TrackedRun, to_row(self.record), indent=2), again)


def follow(follower: Follower, warn: Callable[[str], None], wait: Callable[[float], None] = time.sleep) -> None:
    """Send the run until nothing works on it any more. What fails is tried again, and passed to `warn`; raises the last
    error where it still fails `SETTLE_S` seconds after the end of the run."""
    pause, until, ended = WAIT_S, math.inf, False
    while True:
        over = follower.over()
        if over and until == math.inf:
            until = time.monotonic() + SETTLE_S
        try:
            follower.send()
            if over and ended:  # what the trainer wrote after its last status is sent too
                follower.close()
                follower.note("")
                return
        except SmolsumError as error:
            follower.note(error.message)
            warn(error.message)
            if time.monotonic() + pause > until:
                raise
            wait(pause)
            pause = min(2 * pause, MAX_WAIT_S)
        else:
            follower.note("")
            pause, ended = WAIT_S, over
            wait(ROUND_S / 4 if over else ROUND_S)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line; a value that was not finite is missing."""
    return {
        name: float(value)
        for name, value in row.items()
        if type(value) in (int, float) and abs(value) < LARGEST and name not in NEVER_DRAWN
    }
