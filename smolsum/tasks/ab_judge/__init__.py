"""Judging which of two samples is the original."""

from smolsum.tasks.ab_judge.task import TASK as TASK
