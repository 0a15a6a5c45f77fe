"""Calls of a user's function in the background, in a thread or in an event loop, that a deadline can end, and
the end of a process that they freeze."""

import asyncio
import ctypes
import faulthandler
import os
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

END_S = 1.0
"""how long a function has to end after its deadline"""
FROZEN_S = 5.0
"""how long after the deadline a process that cannot run Python any more ends"""


REPORT_S, STOPPED_S = 0.25, 1.0
"""between two signs of life of Python, and how late one is if the process was stopped"""
TICKS = 10
"""tracebacks in a row without a word from Python that mean so"""
WATCHDOG = """
ticks=0 traceback=
while IFS= read -r line; do
  case $line in
    alive) ticks=0 ;;
    Timeout*)
      ticks=$((ticks + 1))
      [ "$ticks" -le "$2" ] || { printf '%s\\n\\n%s\\n' "$0" "$traceback" >&2; kill -9 "$1"; exit; }
      traceback= ;;
    *) traceback="$traceback
$line" ;;
  esac
done
"""
"""A shell that reads what Python and its fault handler write: a timer in C, which dumps tracebacks while Python cannot
run. Each tick is short, so that a process that was stopped and goes on is not taken for a frozen one."""


class PastDeadlineError(Exception):
    """The function ran past its deadline."""


class EndedError(Exception):
    """The function wanted to end the interpreter: with sys.exit(), for example."""


class _Stop(BaseException):
    """Raised inside a function past its deadline; no `except Exception` there keeps it."""


_stopped_s = 0.0


def now() -> float:
    """Return the seconds of a clock that stands still while this process is stopped in `ends_when_frozen`, by Ctrl-Z
    for example."""
    return time.monotonic() - _stopped_s


def _wait(done: threading.Event, until: float) -> bool:
    """Wait until this time of `now`; returns whether `done` is set. A stop is known a moment after it ends."""
    while not done.wait(max(until - now(), 0.0)) and not done.wait(2 * REPORT_S):
        if now() >= until:
            return False
    return True


class Running:
    """A call under way in a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._begin(call)

    def _begin(self, call: Callable[[], Any]) -> None:
        # a daemon: a call that hangs in C code must not keep the process from its end
        self._thread = threading.Thread(target=self._run, args=(call,), name="reward", daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, until: float) -> Any:
        """Wait for the result until this time of `now`. Raises what the function raises, or
        PastDeadlineError once it is stopped."""
        if not _wait(self._done, until):
            self.stop()
            raise PastDeadlineError("it ran past its deadline, rewards.timeout_s, and was stopped")
        if self._error is not None and not isinstance(self._error, Exception):
            ended = EndedError(f"{type(self._error).__name__} {self._error}".strip())
            raise ended.with_traceback(self._error.__traceback__) from self._error
        if self._error is not None:
            raise self._error
        return self._result

    def stop(self) -> None:
        """End the call if it still runs; one inside of C code ends when that returns."""
        if not self._done.is_set():
            _interrupt(self._thread)
            self._done.wait(END_S)


class Awaited(Running):
    """A coroutine under way, in the event loop that all async functions share: clients that they keep between steps
    stay usable."""

    _loop: asyncio.AbstractEventLoop | None = None
    _loop_thread: threading.Thread

    def _begin(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if Awaited._loop is None:
            Awaited._loop = asyncio.new_event_loop()
            Awaited._loop_thread = threading.Thread(target=_serve, args=(Awaited._loop,), name="rewards", daemon=True)
            Awaited._loop_thread.start()
        self._future = asyncio.run_coroutine_threadsafe(call(), Awaited._loop)
        self._future.add_done_callback(self._finish)

    def _finish(self, future: Any) -> None:
        if not future.cancelled():
            self._error = future.exception()
            self._result = None if self._error else future.result()
        self._done.set()

    def stop(self) -> None:
        """Cancel the coroutine if it still runs. If it hangs without awaiting, the next one gets another loop."""
        loop, answered = Awaited._loop, threading.Event()
        if self._done.is_set() or loop is None:
            return
        self._future.cancel()
        loop.call_soon_threadsafe(answered.set)
        if not answered.wait(END_S):
            Awaited._loop = None
            loop.call_soon_threadsafe(loop.stop)
            _interrupt(Awaited._loop_thread)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(_Stop):
        loop.run_forever()
    loop.close()


def _interrupt(thread: threading.Thread) -> None:
    """Raise _Stop in a thread, as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stop))


@contextmanager
def ends_when_frozen(names: Sequence[str], timeout_s: float) -> Iterator[None]:
    """Kill the process, with a traceback on stderr, once these rewards keep all of Python from running for `timeout_s`
    seconds and a few more: code in C that holds the interpreter's lock, such as a regular expression that backtracks
    for ever, cannot be stopped in another way, and would freeze the process. Time in which the process is stopped, by
    Ctrl-Z for example, does not count.
    """
    limit_s = timeout_s + FROZEN_S
    message = (
        f"error: Python could not run for {limit_s:g} s (rewards.timeout_s + {FROZEN_S:g}) while it computed "
        f"{' and '.join(names)}: code in C, such as a regular expression that backtracks for ever, cannot be stopped, "
        "so the process ends; what the run has saved stays\n\n"
        "hint: correct the line of the plugin that is named below, and begin a new run: "
        "smolsum train --config RUN/config.toml --plugin FILE.py --name OTHER"
    )
    done = threading.Event()
    command = ["/bin/sh", "-c", WATCHDOG, message, str(os.getpid()), str(TICKS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdin is not None
        pipe = shell.stdin.fileno()

        def report() -> None:
            faulthandler.dump_traceback_later(limit_s / TICKS, repeat=True, file=pipe)
            with suppress(OSError):  # the watchdog was killed
                os.write(pipe, b"alive\n")

        def keep_reporting() -> None:
            global _stopped_s
            before = time.monotonic()
            while not done.wait(REPORT_S):
                report()
                late_s = time.monotonic() - before - REPORT_S
                before += REPORT_S + late_s
                _stopped_s += late_s if late_s > STOPPED_S else 0.0

        report()
        thread = threading.Thread(target=keep_reporting, name="frozen", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            faulthandler.cancel_dump_traceback_later()
