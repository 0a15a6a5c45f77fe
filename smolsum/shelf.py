"""The presets that a task can be given: those shipped for all, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smolsum.errors import UsageError
from smolsum.presets import KINDS, Entry, entries, preset_names, read_preset
from smolsum.tasks.task import Task
from smolsum.values import nearest


def names(task: Task, kind: str) -> tuple[str, ...]:
    """Returns the sorted names of one of `KINDS`; strategies are the task's alone."""
    shipped = () if kind == "strategies" else preset_names(kind)
    return tuple(sorted({*shipped, *_own(task, kind)}))


def find(task: Task, name: str) -> tuple[str, str]:
    """Returns kind and name of a preset; UsageError with the nearest name where there is none."""
    for kind in KINDS:
        if name in names(task, kind):
            return kind, name
    hint = "a file of your own is given with --config" if name.endswith(".toml") else None
    known = [name for kind in KINDS for name in names(task, kind)]
    raise UsageError(f"unknown preset {name!r}", hint=hint or nearest(name, known))


def read(task: Task, kind: str, name: str) -> list[Entry]:
    """Returns the entries of a preset, each with the source `preset KIND/NAME`: what is shipped for all tasks, over it
    (for a model) the task's defaults, over those what the task has under this name."""
    shipped = read_preset(kind, name) if kind != "strategies" and name in preset_names(kind) else []
    own = _own(task, kind).get(name, {})
    return shipped + (defaults(task) if kind == "models" else []) + entries(own, f"preset {kind}/{name}")


def defaults(task: Task) -> list[Entry]:
    """Returns what the task sets for every model."""
    return entries(task.defaults, f"task {task.name}")


def _own(task: Task, kind: str) -> Mapping[str, Mapping[str, Any]]:
    return {"models": task.models, "strategies": task.strategies, "profiles": task.profiles}[kind]
