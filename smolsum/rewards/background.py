"""Calls of a user's function in the background that a deadline can end, and the end of a process that they freeze.

A function runs in a thread of this process: one of a notebook has no file that a child process could import, it may
keep a client or a model from step to step, and a process with MLX in it must not be forked.
"""

import asyncio
import ctypes
import faulthandler
import inspect
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, TypeAlias

END_S = 1.0
"""how long an event loop has to come to its next turns, and then to end; a thread has twice that"""
FROZEN_S = 5.0
"""how long after the deadline a process that cannot run Python any more ends"""
ASKED = 3
"""times at most that an async function is asked whose event loop ends"""
REPORT_S, STOPPED_S = 0.25, 1.0
"""between two signs of life of Python, and how late one is if the process was stopped"""
TICKS = 10
"""times in a row without a sign of life that mean that Python is frozen"""
ASK, DUMP = signal.SIGURG, signal.SIGUSR2
"""the signals that have C code write the traceback of a thread, and of all; no other use, and no harm, has the first"""
WATCHDOG = f"""
import os, select, sys, time

def heard(seconds=None):
    ready, _, _ = select.select([0], [], [], seconds)
    return (os.read(0, 2**16) or sys.exit()) if ready else b""

def alive(seconds):
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if b"alive" in heard(left):
            return True
    return False

message, pid, limit_s, silent, said = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 0, b""
while silent < {TICKS}:
    if silent:
        os.kill(pid, {ASK:d})
        heard()
    silent = 0 if alive(limit_s / {TICKS}) else silent + 1
os.kill(pid, {DUMP:d})
while more := heard(1.0):
    said += more
print(message, said.decode(errors="replace"), sep="\\n\\n", file=sys.stderr, flush=True)
os.kill(pid, {signal.SIGKILL:d})
"""
"""A process that hears Python's signs of life and, without them, asks the C code of the fault handler, which a frozen
process answers at once and one that was stopped when it goes on. All threads are shown only once Python is frozen, as
to read their frames while they run may crash."""


class NoAnswerError(Exception):
    """The function gave no answer, and would give none for fewer completions."""


class PastDeadlineError(NoAnswerError):
    """The function ran past its deadline."""


class EndedError(Exception):
    """The function raised what is no Exception: it wanted to end the interpreter with sys.exit(), for example."""


class _Stop(BaseException):
    """Raised inside a function past its deadline; no `except Exception` there keeps it."""


class _StopLoop(SystemExit):
    """Raised inside an event loop that a function keeps from its next turn; asyncio ends the loop with it at once."""


_Answer: TypeAlias = tuple[Any, Exception | None]
"""what a call returned, or what it raised"""
_stopped_s = 0.0


def now() -> float:
    """Return the seconds of a clock that stands still while this process is stopped in `ends_when_frozen`, by Ctrl-Z
    for example."""
    return time.monotonic() - _stopped_s


class Running:
    """A call under way in a thread, whose deadline is a time of `now`."""

    def __init__(self, call: Callable[[], Any], until: float) -> None:
        self._call, self._until = call, until
        # a queue of C code: _Stop may be raised anywhere in the thread, and must leave no lock held
        self._answers = queue.SimpleQueue[_Answer]()
        self._answer: _Answer | None = None
        self._begin()

    def result(self) -> Any:
        """Wait for the result. Raises what the function raises, or PastDeadlineError once it is stopped."""
        while True:
            left = self._until - now()
            # a stop of the process is known a moment after it ends
            if answer := self._wait(min(left, REPORT_S) if left > 0 else 2 * REPORT_S):
                value, error = answer
                if error is not None:
                    raise error
                return value
            if self._is_asked_again():
                continue
            if left <= 0 and now() >= self._until:
                self.stop()
                if not self._is_asked_again():
                    raise PastDeadlineError("it ran past its deadline, rewards.timeout_s")

    def stop(self) -> None:
        """End the call if it still runs; one inside of C code ends when that returns."""
        if not self._wait(0.0):
            self._interrupt()

    def _wait(self, seconds: float) -> _Answer | None:
        with suppress(queue.Empty):
            self._answer = self._answer or self._answers.get(timeout=seconds)
        return self._answer

    def _begin(self) -> None:
        # a daemon: a call that hangs in C code must not keep the process from its end
        self._thread = threading.Thread(target=self._run, name="reward", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(_Stop):
            try:
                answer: _Answer = self._call(), None
            except BaseException as error:
                answer = None, _as_exception(error)
            self._answers.put(answer)

    def _is_asked_again(self) -> bool:
        """Begin again, with another deadline, what can have no answer because of another call."""
        return False

    def _interrupt(self) -> None:
        _raise_in(self._thread, _Stop)
        self._thread.join(2 * END_S)


class RunningAsync(Running):
    """A call of an async function under way in the event loop that all of them share: clients that they keep between
    steps stay usable. If one keeps the others from their turn, the loop ends, and they are asked again in the next."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Any]], until: float) -> None:
        self._seconds, self._asked = until - now(), 0
        super().__init__(call, until)

    def _begin(self) -> None:
        self._asked += 1
        self._loop = _Loop.in_use()
        self._task: asyncio.Task[None] | None = None
        self._loop.call_soon(partial(self._start, self._loop))

    def _start(self, loop: "_Loop") -> None:
        if loop is self._loop:  # else it comes too late: there is another one by now
            self._task = asyncio.get_running_loop().create_task(self._await())

    async def _await(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            answer: _Answer = await self._call(), None
        except _StopLoop:  # this one is past its deadline, or another one is and this one is asked again
            raise
        except BaseException as error:  # would end the loop
            answer = None, _as_exception(error)
        if loop.is_running():  # else it is thrown away with its loop, and asked again
            self._answers.put(answer)

    def _is_asked_again(self) -> bool:
        # in this order: the last turn of a loop may bring the answer
        if self._loop.is_usable() or self._wait(0.0):
            return False
        if self._task is not None and self._loop.hung is self._task:
            return False
        if self._asked == ASKED:
            by = f", at last by {self._loop.ended_by}" if self._loop.ended_by else ""
            raise NoAnswerError(f"its event loop ended {ASKED} times{by}")
        self._until = now() + self._seconds
        self._begin()
        return True

    def _interrupt(self) -> None:
        if self._loop.is_usable():
            self._loop.call_soon(lambda: self._task and self._task.cancel())
            self._loop.end_unless_it_turns()


class _Loop:
    """An event loop in a thread."""

    _kept: ClassVar[list["_Loop"]] = []
    """the one in use last, after those that have ended and are not closed yet"""
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ended = False
        self.hung: asyncio.Task[Any] | None = None
        """what kept the loop from its next turn, if it was ended for that"""
        self.ended_by = ""
        """what a callback or task of users raised to end the interpreter"""
        self.thread = threading.Thread(target=self._serve, name="rewards", daemon=True)
        self.thread.start()

    @classmethod
    def in_use(cls) -> "_Loop":
        """Return the loop of all async functions, another one if the last has ended."""
        with cls._lock:
            # not in their own threads, in which _StopLoop may be raised late
            for one in [one for one in cls._kept if not (one.thread.is_alive() or one.loop.is_running())]:
                cls._kept.remove(one)
                one._close()
            if not (cls._kept and cls._kept[-1].is_usable()):
                cls._kept.append(cls())
            return cls._kept[-1]

    def is_usable(self) -> bool:
        """Return whether what is put into it has its turn, as far as is known."""
        return not self._ended and self.thread.is_alive()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, unless it ends before."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(function)

    def end_unless_it_turns(self) -> None:
        """End the loop, and what hangs in it, if it does not come to its next turn but one in time: what is cancelled
        in the next turn hears of it in the one after that."""
        turns = queue.SimpleQueue[None]()
        self.call_soon(lambda: self.loop.call_soon(turns.put, None))
        try:
            turns.get(timeout=END_S)
        except BaseException as error:  # also where Ctrl-C ends the wait
            self.hung, self._ended = asyncio.current_task(self.loop), True
            self.loop.set_exception_handler(_say_nothing)
            self.call_soon(self.loop.stop)
            _raise_in(self.thread, _StopLoop)
            if not isinstance(error, queue.Empty):
                raise
            self.thread.join(END_S)

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
        except _StopLoop:
            pass
        except SystemExit as error:
            self.ended_by = _said(error)
        self.loop.set_exception_handler(_say_nothing)

    def _close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            if inspect.iscoroutine(own := task.get_coro()) and inspect.getcoroutinestate(own) == "CORO_CREATED":
                own.close()
        self.loop.close()


def _say_nothing(*_: Any) -> None:
    """Handle what asyncio says of tasks that end with their loop: they are asked again, or stopped on purpose."""


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else EndedError(_said(error)).with_traceback(error.__traceback__)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__} {text_of(error)}".strip()


def text_of(value: Any, form: Callable[[Any], str] = str) -> str:
    """Return a value as text; only its type where its own class cannot say it."""
    try:
        return form(value)
    except Exception:  # a user's class may raise anything
        return f"<{type(value).__name__}>"


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an exception in a thread, as soon as it runs Python code."""
    if thread.is_alive():  # its number is given to others afterwards
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


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
    command = [sys.executable, "-I", "-S", "-c", WATCHDOG, message, str(os.getpid()), str(limit_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watchdog:
        assert watchdog.stdin is not None
        pipe = watchdog.stdin.fileno()

        def report() -> None:
            faulthandler.register(ASK, file=pipe, all_threads=False)
            faulthandler.register(DUMP, file=pipe)
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
            watchdog.kill()
            faulthandler.unregister(ASK)
            faulthandler.unregister(DUMP)
