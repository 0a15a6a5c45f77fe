"""The tasks by name. To add one, write `tasks/<name>.py` with a `TASK` (see `base.py`) and add its name to `NAMES`.

`TASKS` is made on first use, so that `--help` lists the names without importing the tasks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsum.tasks.base import Task

    TASKS: dict[str, Task]

NAMES = ("tldr", "ab-judge", "doc-qa", "strict-json")
"""the names of all tasks; `strict-json` is the module `strict_json`"""
DEFAULT_TASK = "tldr"
"""the task of a command that names none"""


def __getattr__(name: str) -> dict[str, Task]:
    if name != "TASKS":
        raise AttributeError(f"module {__name__} has no {name!r}")
    found: dict[str, Task] = {task: import_module(f"{__name__}.{task.replace('-', '_')}").TASK for task in NAMES}
    globals()["TASKS"] = found
    return found
