"""Sends runs to experiment trackers: a process for each reads the run directory and sends what is there, then what is
new. Training starts these processes and looks at a small file between steps, so a tracker that hangs, crashes or is
away costs it nothing; only the end of a run waits, for a limited time.

`trackers/<name>.json` says how far the tracker has the run, and is written after the tracker has taken it. So a process
that was killed, or a tracker that was away, costs at most that something is sent twice.
"""

import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace as changed

from smolsum.config.fields import names_in
from smolsum.config.run_labels import model_name
from smolsum.errors import SmolsumError
from smolsum.files import digest, replace
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import NEVER_DRAWN, Document, Run, Tail
from smolsum.runs.records import LARGEST, NOTES, Event, RunInfo, StepRow, TrackedRun
from smolsum.runs.samples import read_groups
from smolsum.runs.state import RunState, run_state
from smolsum.runs.tracker_packages import (
    Level,
    Table,
    Tracker,
    check_tracker,
    open_tracker,
    speaking_to,
    without_secrets,
)
from smolsum.runs.typed_json import encode, read, read_object, salvage, to_row

ROUND_S = 2.0
"""Seconds between two looks at the run directory."""
WAIT_S, MAX_WAIT_S = 5.0, 60.0
"""The first and the longest wait before a tracker that failed is tried again."""
SETTLE_S = 30.0
"""How long a tracker that fails is tried again after the end of the run."""
MOST_TABLES, MOST_ROWS = 50, 64
"""Steps of a run whose completions are sent, and completions of each."""
DRAIN_S, TROUBLED_S = 60.0, 5.0
"""How long the end of a run waits for a tracker, and for one that was in trouble before."""
HUNG_S = 120.0
"""Seconds without anything taken after which a tracker is behind."""
Report = Callable[[str, str], None]


def track_command(paths: RunPaths, tracker: str) -> str:
    """Return the command that sends what a tracker lacks of a run."""
    return f"smolsum track {paths.reference} --to {tracker}"


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
        # for its state, settings and evaluations; what is sent is read by tails of its own, from the beginning
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

    def state(self) -> RunState:
        self._run.poll()
        return run_state(self._run, datetime.now(UTC))

    def close(self) -> None:
        """End the connection, if there is one. Raises UnreachableError for whatever the tracker raises."""
        if self._open is not None:
            state, opened, self._open = self.state().state, self._open, None
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
        """Return the tracker, opened where it is not yet. Raises _LacksSteps where it has less than the record says:
        another server, a store that was removed, a process that was killed."""
        if self._open is None:
            self._open = open_tracker(self.tracker, self.paths, self.record, *self._described())
            held, record = self._open.held, self.record
            self._save(url=without_secrets(self._open.url), open=True)
            if held is not None:
                lacks = held < record.step or held == 0 < record.events
                evaluations = {} if lacks else record.evaluations
                self._save(step=held, events=record.events if held else 0, evaluations=evaluations)
                if lacks:
                    raise _LacksSteps
        return self._open

    def _described(self) -> tuple[dict[str, Any], list[str]]:
        """Return the settings and what the run was made from, and its tags."""
        info = RunInfo()
        with suppress(SmolsumError):
            info = read(self.paths.info, RunInfo)
        made_from = {
            "model": info.model.weights, "tokenizer": info.tokenizer, "created": info.created,
            "versions": info.versions, "machine": info.machine, "revisions": info.revisions,
        }  # fmt: skip
        settings = self._run.settings
        tags = dict.fromkeys(filter(None, (settings.task, model_name(settings.model), "-".join(settings.stages))))
        return {**read_object(self.paths.config), "made_from": made_from}, list(tags)

    def _send_events(self) -> None:
        restarts = self._events.restarts
        while rows := list(self._events.read()):
            if self._events.restarts != restarts:
                self._lines, restarts = 0, self._events.restarts
            for row in rows:
                self._lines += 1
                if self._lines > self.record.events:
                    self._send_event(salvage(row, Event) or Event())
                    self._save(events=self._lines)

    def _send_event(self, event: Event) -> None:
        if event.kind == "started" and event.step is not None and event.step < self.record.step:
            self._go_back(event.step)
        if event.kind and event.kind not in NOTES:
            text = "; ".join(filter(None, (event.message, event.hint)))
            level: Level = "error" if event.kind in ("failed", "update_skipped") else "warning"
            self._opened().alert(event.kind, text, level, event.step)

    def _go_back(self, step: int) -> None:
        """Deal with steps that were sent, and that the resumed run makes again."""
        tracker, last = self._opened(), self.record.step
        if step < last and tracker.keeps_first:
            text = f"resumed from step {step}: steps {step + 1} to {last} were trained again, and are shown as at first"
            tracker.alert("resumed", text, "info", step)
        elif step < last:
            tracker.rewind(step)
            self._save(step=step, evaluations={})
            self._metrics = Tail(self.paths.metrics)

    def _send_steps(self) -> None:
        while rows := list(self._metrics.read()):
            found = [(one.step, row) for row in rows if (one := salvage(row, StepRow)) and one.step > self.record.step]
            if not found:
                continue
            tracker, last = self._opened(), self.record.step
            for step, row in found:
                if step > last and (values := _numbers(row)):
                    tracker.log(step, values, self._completions(step))
                    last = step
            tracker.flush()
            self._save(step=last)

    def _completions(self, step: int) -> Table:
        """Return the completions of the step if it is one of those that are sent."""
        if step != 1 and step % max(1, math.ceil(self._run.total / MOST_TABLES)):
            return []
        found = [(group, one) for group in read_groups(self.paths, step) for one in group.samples]
        signals = list(dict.fromkeys(name for _, one in found for name in one.rewards))
        extra = list(dict.fromkeys(name for _, one in found for name in one.extra))
        head = ["step", "example", "prompt", "completion", "reward", "advantage", *signals, "tokens", "finish", *extra]
        rows = [
            [step, group.prompt_id, group.post, one.text, one.reward, one.advantage, *map(one.rewards.get, signals),
             one.tokens, one.finish_reason, *map(one.extra.get, extra)]
            for group, one in found[:MOST_ROWS]
        ]  # fmt: skip
        return [head, *rows] if rows else []

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
        content = encode(TrackedRun, to_row(self.record), indent=2)
        replace(self._place, content, track_command(self.paths, self.tracker))


def follow(follower: Follower, warn: Callable[[str], None]) -> None:
    """Send the run until nothing works on it any more. What fails is tried again, and passed to `warn`; raises the last
    error where it still fails `SETTLE_S` seconds after the end of the run."""
    pause, until, over = WAIT_S, math.inf, False
    while True:
        if not over and not follower.state().hopeful:
            over, until = True, time.monotonic() + SETTLE_S
            time.sleep(ROUND_S / 4)  # what the trainer writes after its last status is sent too
        try:
            follower.send()
            if over:
                follower.close()
                follower.note("")
                return
        except SmolsumError as error:
            follower.note(error.message)
            warn(error.message)
            if time.monotonic() + pause > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, MAX_WAIT_S)
        else:
            follower.note("")
            pause = WAIT_S
            time.sleep(ROUND_S)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line; a value that was not finite is missing."""
    return {
        name: float(value)
        for name, value in row.items()
        if type(value) in (int, float) and abs(value) < LARGEST and name not in NEVER_DRAWN
    }


class Trackers:
    """The trackers of a trainer's run; does nothing without names. Only the trainer's thread may call it."""

    def __init__(self, names: str) -> None:
        """Raise UsageError for a tracker in `names`, separated by commas, whose package is missing."""
        self._names = names_in(names)
        for name in self._names:
            check_tracker(name, "; --track none goes without")  # a run may be resumed on another machine
        self._processes: list[_Process] = []

    def begin(self, paths: RunPaths, project: str, report: Report) -> None:
        """Start a process for each tracker. One that cannot be started is reported, as is all that happens later."""
        for name in self._names:
            try:
                self._processes.append(_Process(paths, name, project, report))
            except OSError as error:
                again = track_command(paths, name)
                report("tracker_stopped", f"{name} does not get this run: {error.strerror}; {again} does")

    def look(self, step: int) -> None:
        """Report what is new of the trackers, given the last finished step."""
        for process in self._processes:
            process.look(step)

    def settle(self, say: Callable[[str], None]) -> None:
        """Wait until all have the whole run, for a limited time, and end and report those that have not. `say` gets a
        note if this takes a while; Ctrl-C ends the wait."""
        began, said = time.monotonic(), False
        try:
            while waiting := [each.name for each in self._processes if each.hopeful(time.monotonic() - began)]:
                if not said and time.monotonic() - began > 1:
                    said = True
                    say(f"waiting for {' and '.join(waiting)}; Ctrl-C leaves the rest behind")
                time.sleep(0.05)
        except KeyboardInterrupt:
            pass
        for process in self._processes:
            process.end()
        self._processes = []


class _Process:
    """The process that sends the run to one tracker. What is wrong is said once."""

    def __init__(self, paths: RunPaths, name: str, project: str, report: Report) -> None:
        self.name, self._report, self._said = name, report, set[str]()
        self._again, self._log = track_command(paths, name), paths.tracker_log(name)
        self._record = Document(paths.tracker(name), TrackedRun)
        self._target, self._since = 0, time.monotonic()
        command = [sys.executable, "-m", "smolsum", "track", str(paths.root), "--to", name, "--follow"]
        command += ["--project", project] if project else []
        with self._log.open("ab") as log:
            # in a session apart, so that Ctrl-C ends the training, and the tracker still gets the end
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)  # the training goes first

    def look(self, step: int) -> None:
        """Report what has changed."""
        record, now = self._refreshed(), time.monotonic()
        if record.step >= self._target:
            self._target, self._since = step, now
        if self._process.poll() is not None:
            self._say("tracker_stopped", f"{self.name} gets no more of this run: {self._error()}; {self._again} does")
        elif record.problem or now - self._since > HUNG_S:
            why = self._plain(record.problem) or f"nothing was taken for {HUNG_S:.0f} s"
            self._say("tracker_behind", f"{self.name} is behind: {why}; training continues, and it is tried again")
        elif "tracker_behind" in self._said:
            self._say("tracker_back", f"{self.name} takes the run again")

    def hopeful(self, waited_s: float) -> bool:
        """Return whether it may still send the rest."""
        behind = "tracker_behind" in self._said and "tracker_back" not in self._said
        self._record.refresh()
        troubled = bool(self._record.value.problem) or behind
        return self._process.poll() is None and waited_s < (TROUBLED_S if troubled else DRAIN_S)

    def end(self) -> None:
        """End the process if it still runs, and report that the tracker lacks something."""
        code = self._process.poll()
        self._refreshed()
        if code == 0 or "tracker_stopped" in self._said:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        why = self._plain(self._refreshed().problem) or ("it takes too long" if code is None else self._error())
        with suppress(SmolsumError):  # a full disk is reported already
            self._report("tracker_behind", f"{self.name} lacks the end of this run ({why}); {self._again} sends it")

    def _refreshed(self) -> TrackedRun:
        """Read the record, and report once where the run can be seen."""
        self._record.refresh()
        if url := self._record.value.url:
            self._say("tracker", f"{self.name} shows this run: {url}")
        return self._record.value

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._report(kind, text)

    def _plain(self, text: str) -> str:
        """A message of the process without the tracker's name."""
        return text.removeprefix(f"{self.name}: ")

    def _error(self) -> str:
        """Return the last error of the process, as its log has it."""
        with suppress(OSError):
            for line in reversed(self._log.read_text("utf-8", "replace").splitlines()):
                if line.strip().startswith("error: "):
                    return self._plain(line.strip().removeprefix("error: "))
        return f"its process ended with code {self._process.returncode}"
