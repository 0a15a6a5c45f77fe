"""The keys of a configuration: those of the sections, and those that its task adds."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, get_type_hints

from smolsum.config import SECTIONS, STAGE_FIELDS
from smolsum.errors import UsageError
from smolsum.tasks import TASKS
from smolsum.tasks.task import Task
from smolsum.values import Share, nearest


def _hints(section: str, record: type[Any]) -> dict[str, Any]:
    return {f"{section}.{key}": hint for key, hint in get_type_hints(record, include_extras=True).items()}


_GENERAL = {key: hint for name, record in SECTIONS.items() for key, hint in _hints(name, record).items()}


@dataclass(frozen=True)
class Schema:
    """What a configuration of one task may hold."""

    task: Task

    @cached_property
    def sections(self) -> dict[str, type[Any]]:
        """The record of each section."""
        return SECTIONS | {"task": self.task.settings}

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Type, with its rule, of every dotted key outside the stages."""
        return _GENERAL | _hints("task", self.task.settings) | {"task.name": Literal[tuple(TASKS)]}

    def expected(self, key: str) -> Any:
        """The type of a dotted key: a hint, `dict` for a table, None where there is no such key."""
        match key.split("."):
            case ["stages" | "stage_defaults"] | ["stages" | "stage_defaults", _]:
                return dict
            case [section]:
                return dict if section in self.sections else None
            case ["stages", _, "rewards", signal]:
                return float if signal in self.task.signals else None
            case ["stages", _, "mix", _]:
                return Share if self.task.kind else None
            case ["stages" | "stage_defaults", _, name]:
                return STAGE_FIELDS.get(name)
            case _:
                return self.fields.get(key)

    def unknown(self, key: str, source: str) -> UsageError:
        """The error for a key that does not exist, with the nearest that does."""
        section, _, name = key.rpartition(".")
        if section.endswith(".rewards"):
            hint = nearest(name, self.task.signals)
            return UsageError(f"{source}: unknown signal {name!r} in {section}", hint=hint)
        stage_keys = [f"{section}.{field}" for field in STAGE_FIELDS] if section.startswith("stages.") else []
        known = [*self.sections, "stages", *self.fields, *stage_keys]
        siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
        close = [siblings[match] for match in get_close_matches(name, siblings, n=1)]
        close += [other for other in known if other.rpartition(".")[2] == name]
        close += get_close_matches(key, known, n=1)
        choice = ", ".join(siblings.values() or [*self.sections, "stages"])
        hint = f"did you mean {close[0]}?" if close else f"choose from {choice}"
        what = f"unknown key {key!r}" + (f" of task {self.task.name}" if section == "task" else "")
        return UsageError(f"{source}: {what}", hint=hint)
