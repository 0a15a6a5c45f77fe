"""The tasks by name. To add one: write `tasks/<name>.py` with a `TASK`, and add a line here and its name to
`TaskConfig.name`."""

from __future__ import annotations

from smolsum.tasks.task import Task
from smolsum.tasks.tldr import TASK as TLDR

TASKS: dict[str, Task] = {TLDR.name: TLDR}
