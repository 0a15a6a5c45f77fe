"""Summaries of a set length: the study's task. `settings.py` says what a summary has to be, `lengths.py` measures its
length against what its prompt asks for, `criteria.py` is what a judge is asked, and `task.py` puts all together."""

from smolsum.tasks.tldr.task import TASK as TASK
