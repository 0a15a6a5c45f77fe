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
SUITES = ("ifbench", "jsonschemabench", "lifebench")
"""public benchmarks, tasks that only evaluate; each is a module of `suites`"""
DEFAULT_TASK = "tldr"
"""the task of a command that names none"""


def __getattr__(name: str) -> dict[str, Task]:
    if name != "TASKS":
        raise AttributeError(f"module {__name__} has no {name!r}")
    modules = [*(task.replace("-", "_") for task in NAMES), *(f"suites.{suite}" for suite in SUITES)]
    tasks = (import_module(f"{__name__}.{module}").TASK for module in modules)
    found: dict[str, Task] = {task.name: task for task in tasks}
    globals()["TASKS"] = found
    return found
