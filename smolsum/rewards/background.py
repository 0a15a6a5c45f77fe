"""Calls of a user's function in the background that a deadline can end, and the end of a process that they freeze.

A function runs in a thread of this process: one of a notebook has no file that a child process could import, it may
keep a client or a model from step to step, and a process with MLX in it must not be forked.
"""

import asyncio
import concurrent.futures
import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

END_S = 1.0
"""how long an event loop has to answer once its coroutine is cancelled; a function has twice that to end"""
FROZEN_S = 5.0
"""how long after the deadline a process that cannot run Python any more ends"""
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


class PastDeadlineError(Exception):
    """The function ran past its deadline."""


class EndedError(Exception):
    """The function wanted to end the interpreter: with sys.exit(), for example."""


class _Stop(BaseException):
    """Raised inside a function past its deadline; no `except Exception` there keeps it."""


_stopped_s = 0.0
_loop: asyncio.AbstractEventLoop | None = None
_loop_thread: threading.Thread
_waiting = dict[Coroutine[Any, Any, Any], asyncio.AbstractEventLoop]()
"""those that have not had their turn in their loop"""


def now() -> float:
    """Return the seconds of a clock that stands still while this process is stopped in `ends_when_frozen`, by Ctrl-Z
    for example."""
    return time.monotonic() - _stopped_s


class Running:
    """A call under way in a thread, which has until a time of `now`."""

    def __init__(self, call: Callable[[], Any], until: float) -> None:
        self._until = until
        self._done = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        # a daemon: a call that hangs in C code must not keep the process from its end
        self._thread = threading.Thread(target=self._run, args=(call,), name="reward", daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else _ended(error)
        self._done.set()

    def result(self) -> Any:
        """Wait for the result. Raises what the function raises, or PastDeadlineError once it is stopped."""
        # a stop of the process is known a moment after it ends
        while not self._done.wait(max(self._until - now(), 0.0)) and not self._done.wait(2 * REPORT_S):
            if now() >= self._until:
                self.stop()
                raise PastDeadlineError("it ran past its deadline, rewards.timeout_s, and was stopped")
        if self._error is not None:
            raise self._error
        return self._result

    def stop(self) -> None:
        """End the call if it still runs; one inside of C code ends when that returns."""
        if not self._done.is_set():
            _interrupt(self._thread)
            self._done.wait(2 * END_S)


def await_in_loop(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Wait for a coroutine in the event loop that all async functions share: clients that they keep between steps stay
    usable. If it hangs without awaiting, the next one gets another loop."""
    global _loop, _loop_thread
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
        _loop_thread = threading.Thread(target=_serve, args=(_loop,), name="rewards", daemon=True)
        _loop_thread.start()
    loop, thread, answered = _loop, _loop_thread, threading.Event()
    # not the future of the task, which is told in the next turn of a loop that may end in this one
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    async def guarded() -> None:
        _waiting.pop(coroutine, None)
        try:
            outcome.set_result(await call())
        except Exception as error:
            outcome.set_exception(error)
        except BaseException as error:  # would end the loop
            outcome.set_exception(_ended(error))

    coroutine, task = guarded(), None
    _waiting[coroutine] = loop
    try:
        with suppress(RuntimeError):  # the loop has ended by now
            task = asyncio.run_coroutine_threadsafe(coroutine, loop)
        while not outcome.done():  # a thread that only waits is not interrupted
            if loop.is_closed() and not outcome.done():  # another function hung in it
                _waiting.pop(coroutine, None)
                coroutine.close()
                return await_in_loop(call)
            concurrent.futures.wait([outcome], REPORT_S)
        return outcome.result()
    finally:
        if not outcome.done() and not loop.is_closed():
            if task:
                task.cancel()
            with suppress(RuntimeError):  # another function hung in the same loop, which is closed already
                loop.call_soon_threadsafe(answered.set)
                if not answered.wait(END_S):
                    _loop = None if _loop is loop else _loop
                    loop.call_soon_threadsafe(loop.stop)
                    _interrupt(thread)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(_Stop):
        loop.run_forever()
    loop.set_exception_handler(lambda *_: None)  # tasks that end with the loop are asked again, or stopped on purpose
    for coroutine in [one for one, own in _waiting.items() if own is loop]:
        coroutine.close()
    loop.close()


def _ended(error: BaseException) -> EndedError:
    return EndedError(f"{type(error).__name__} {error}".strip()).with_traceback(error.__traceback__)


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
