"""What a tracker gets of a run, and how a tracker is opened.

A tracker's package is imported when the tracker is opened, in the process that sends, and nowhere else.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from smolsum.config.fields import TRACKERS
from smolsum.config.presets import leaves
from smolsum.errors import SmolsumError, UnreachableError, UsageError, nearest

PROJECT = "smolsum"
"""The project of runs for which neither the settings nor the tracker's own environment name one."""
HEAD, TAIL = 120, 100
"""Characters quoted from the beginning and the end of a library's error, which may have the reason last."""
MARKER = "learning_rate"
"""A metric that every step has, and no evaluation."""
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class TrackedIdentity:
    """The run as a tracker knows it."""

    root: Path
    """the run directory"""
    name: str
    id: str
    """made once for this run and this tracker, and kept in the run directory"""
    project: str
    """empty: as the tracker's environment says, or `PROJECT`"""
    group: str
    tags: tuple[str, ...]
    config: dict[str, Any]
    """the tables of config.toml, and under `made_from` the facts of run.json"""
    step: int
    """the last step that was sent; 0 before the first"""

    def project_or(self, variable: str) -> str:
        """Return the project; where the run names none, that of an environment variable."""
        return self.project or os.environ.get(variable) or PROJECT

    @property
    def settings(self) -> dict[str, Any]:
        """`config` by dotted key."""
        return leaves(self.config)


@dataclass(frozen=True)
class CompletionTable:
    """Rollouts of a step: a row for each, with numbers, texts and None."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


class Tracker(Protocol):
    """A tracked run that is open. Any call may raise whatever the tracker's package raises."""

    url: str
    """where to look at the run"""
    held: int | None
    """the last step that the tracker has; None where it cannot say"""
    keeps_first: bool
    """whether a step that was sent stays, so that it cannot be sent again with other values"""

    def log(self, step: int, values: Mapping[str, float], table: CompletionTable | None) -> None:
        """Take the metrics of a step, which is above all steps before, with completions where there are some."""

    def alert(self, title: str, text: str, level: Level, step: int | None) -> None:
        """Take something that the user should know."""

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation of this step's weights; a name that was there gets the new value."""

    def rewind(self, step: int) -> None:
        """Forget everything after a step. Only for trackers that do not keep the first value."""

    def flush(self) -> None:
        """Return once what was sent survives the end of this process, where the tracker can promise that."""

    def close(self, state: str) -> None:
        """End the connection; `state` is the run's (`smolsum.runs.run_state`)."""


def check_tracker(name: str) -> None:
    """Raise UsageError for a name that is no tracker, and for a tracker whose package is missing. Imports nothing."""
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker {name!r}", hint=nearest(name, TRACKERS))
    if not is_installed(name):
        raise UsageError(
            f"--track {name} needs the package {name}, which is not installed",
            hint=f"uv sync --extra {name}, or pip install {name}",
        )


def is_installed(name: str) -> bool:
    """Whether the package of a tracker can be found."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def open_tracker(name: str, run: TrackedIdentity) -> Tracker:
    """Return the tracked run, made or continued. Raises as `speaking_to` does."""
    with speaking_to(name):
        opened: Tracker = import_module(f"smolsum.runs.trackers.to_{name}").open_run(run)
        return opened


@contextmanager
def speaking_to(name: str) -> Iterator[None]:
    """Print to stderr what a tracker's package prints in the block, and turn all that it raises into UnreachableError
    with one line of it."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (SmolsumError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a package may even exit where it is imported
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = without_secrets(lines[0])
        shown = said if len(said) <= HEAD + TAIL else f"{said[:HEAD]} … {said[-TAIL:]}"
        raise UnreachableError(f"{name}: {shown}", hint=REMEDIES.get(name)) from error


REMEDIES = {"wandb": "wandb login or WANDB_API_KEY=…; WANDB_MODE=offline needs neither key nor server"}


def without_secrets(text: str) -> str:
    """Return a text without the passwords and tokens of its URLs: it may be written into the run."""
    text = re.sub(r"(?<=://)[^/@\s]+@", "", text)
    return re.sub(r"(?i)\b([\w-]*(?:token|key|password|secret))=[^&\s]+", r"\1=…", text)
