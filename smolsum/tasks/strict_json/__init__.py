"""Strict JSON: answers that satisfy a JSON Schema."""

from smolsum.tasks.strict_json.task import TASK as TASK
