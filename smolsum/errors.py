"""Errors that a user can do something about, with their exit codes, and the hint of the nearest name.

SmolsumError            1    the work failed; partial results are kept
├── PluginError         1    code of the user failed; the run resumes with the same code only
├── UsageError          2    a flag, a configuration value or an input file is wrong
│   └── UnusedSetting   2    a configuration value means nothing next to the others
├── UnreachableError    3    a worker, judge or hub does not answer
├── MachineError        4    this machine cannot do it
└── InterruptedRun    130    stopped by the user; a checkpoint is saved
"""

from collections.abc import Iterable
from difflib import get_close_matches


class SmolsumError(Exception):
    """A failure: one sentence for the user and, where possible, a hint, mostly the command that helps."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class PluginError(SmolsumError):
    """A function of a plugin failed while a run was under way."""


class UsageError(SmolsumError):
    """The request itself is wrong: nothing was started, nothing was lost."""

    exit_code = 2


class UnusedSetting(UsageError):
    """A setting that nothing reads together with the others; `key` is its dotted name."""

    def __init__(self, message: str, *, key: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class UnreachableError(SmolsumError):
    """A server did not answer; trying again later may help."""

    exit_code = 3


class MachineError(SmolsumError):
    """This machine lacks what the request needs."""

    exit_code = 4


class InterruptedRun(SmolsumError):
    """The user stopped or declined something; what was done before is kept."""

    exit_code = 130


def nearest(word: str, options: Iterable[str]) -> str:
    """Return a hint: the option closest to `word`, or all of them where none is close."""
    names = list(options)
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(names)}"
