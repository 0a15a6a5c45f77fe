"""The trainer's side of experiment trackers: a process for each, which training starts and looks at between steps. Only
the end of a run waits for it.

The processes read the run directory, so a tracker that hangs, crashes or is away costs the training a look at a small
file. What is wrong is said once; at the end the trackers get a limited time for the rest.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from smolsum.config.fields import tracker_names
from smolsum.errors import SmolsumError, UsageError
from smolsum.runs.paths import RunPaths
from smolsum.runs.reader import Document
from smolsum.runs.records import TrackedRun
from smolsum.runs.trackers.tracker import check_tracker

DRAIN_S, TROUBLED_S = 60.0, 5.0
"""How long the end of a run waits for a tracker, and for one that was in trouble before."""
HUNG_S = 120.0
"""Seconds without anything taken after which a tracker is behind."""
PATIENT_S = 1.0
"""Seconds of waiting before it is explained."""
TERM_S = 2.0
"""Seconds that a process has to end before it is killed."""
NICE = 10
"""Priority of the processes, so that the training goes first."""
Report = Callable[[str, str], None]


class Trackers:
    """The trackers of a trainer's run; does nothing without names. Only the trainer's thread may call it."""

    def __init__(self, names: str) -> None:
        """Raise UsageError for a tracker in `names`, separated by commas, whose package is missing."""
        self._names = tracker_names(names)
        for name in self._names:
            try:
                check_tracker(name)
            except UsageError as error:  # a run may be resumed on another machine
                raise UsageError(error.message, hint=f"{error.hint}; --track none goes without") from error
        self._children: list[_Child] = []

    def begin(self, paths: RunPaths, project: str, report: Report) -> None:
        """Start a process for each tracker. One that cannot be started is reported."""
        for name in self._names:
            try:
                self._children.append(_Child(paths, name, project))
            except OSError as error:
                report("tracker_stopped", f"{name} does not get this run: {error.strerror}; {_again(paths, name)} does")

    def pass_on(self, report: Report, step: int = 0) -> None:
        """Report what is new of the trackers, given the last finished step."""
        for child in self._children:
            child.look(report, step)

    def settle(self, report: Report, say: Callable[[str], None]) -> None:
        """Wait until all have the whole run, for a limited time, and end and report those that have not. `say` gets a
        note if this takes a while; Ctrl-C ends the wait."""
        began, said = time.monotonic(), False
        try:
            while waiting := [child for child in self._children if child.hopeful(time.monotonic() - began)]:
                if not said and time.monotonic() - began > PATIENT_S:
                    said = True
                    say(f"waiting for {' and '.join(child.name for child in waiting)}; Ctrl-C leaves the rest behind")
                time.sleep(0.05)
        except KeyboardInterrupt:
            pass
        for child in self._children:
            child.end(report)
        self._children = []


def _again(paths: RunPaths, name: str) -> str:
    return f"smolsum track {paths.reference} --to {name}"


class _Child:
    """The process that sends the run to one tracker."""

    def __init__(self, paths: RunPaths, name: str, project: str) -> None:
        self.name, self._again, self._log = name, _again(paths, name), paths.tracker_log(name)
        self._record = Document(paths.tracker(name), TrackedRun)
        self._record.refresh()
        self._shown = self._stopped = self._late = self._back = False
        self._target, self._since = 0, time.monotonic()
        command = [sys.executable, "-m", "smolsum", "track", str(paths.root), "--to", name, "--follow"]
        with self._log.open("ab") as log:
            # in a session apart, so that Ctrl-C ends the training, and the tracker still gets the end
            self._process = subprocess.Popen(
                [*command, *(["--project", project] if project else [])],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)

    def look(self, report: Report, step: int) -> None:
        """Report what has changed."""
        self._show(report)
        record, now = self._record.value, time.monotonic()
        if self._process.poll() is not None:
            if not self._stopped:
                self._stopped = True
                report("tracker_stopped", f"{self.name} gets no more of this run: {self._reason()}; {self._again} does")
            return
        if record.step >= self._target:
            self._target, self._since = step, now
        hung = now - self._since > HUNG_S
        if (record.problem or hung) and not self._late:
            self._late = True
            why = self._problem or f"nothing was taken for {HUNG_S:.0f} s"
            report("tracker_behind", f"{self.name} is behind: {why}; training goes on, and it is tried again")
        elif self._late and not (record.problem or hung or self._back):
            self._back = True
            report("tracker_back", f"{self.name} takes the run again")

    def _show(self, report: Report) -> None:
        """Read the record, and report once where the run can be seen."""
        self._record.refresh()
        if self._record.value.url and not self._shown:
            self._shown = True
            report("tracker", f"{self.name} shows this run: {self._record.value.url}")

    def hopeful(self, waited_s: float) -> bool:
        """Return whether it may still send the rest."""
        self._record.refresh()
        troubled = bool(self._record.value.problem) or (self._late and not self._back)
        return self._process.poll() is None and waited_s < (TROUBLED_S if troubled else DRAIN_S)

    def end(self, report: Report) -> None:
        """End the process if it still runs, and report that the tracker lacks something."""
        code = self._process.poll()
        self._show(report)
        if code == 0 or self._stopped:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_S)
        self._record.refresh()
        why = self._problem or (self._reason() if code is not None else "it takes too long")
        with suppress(SmolsumError):  # a full disk is reported already
            report("tracker_behind", f"{self.name} lacks the end of this run ({why}); {self._again} sends it")

    @property
    def _problem(self) -> str:
        """Why the newest could not be sent, without the tracker's name."""
        return self._record.value.problem.removeprefix(f"{self.name}: ")

    def _reason(self) -> str:
        """Return the last error of the process, as its log has it."""
        return (
            _last_error(self._log).removeprefix(f"{self.name}: ")
            or f"its process ended with code {self._process.returncode}"
        )


def _last_error(log: Path) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
        return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    return ""
