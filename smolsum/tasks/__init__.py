"""The tasks by name. To add one: write `tasks/<name>.py` with a `TASK` (`task.py` says what is in it), and add a
line."""

from __future__ import annotations

from smolsum.tasks import ab_judge, doc_qa, strict_json, tldr
from smolsum.tasks.task import Task

TASKS: dict[str, Task] = {
    "tldr": tldr.TASK,
    "ab-judge": ab_judge.TASK,
    "doc-qa": doc_qa.TASK,
    "strict-json": strict_json.TASK,
}
DEFAULT_TASK = "tldr"
"""meant where no task is named"""
