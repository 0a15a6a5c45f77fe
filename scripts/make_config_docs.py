"""Writes docs/configuration.md from the records of settings, their rules and their docstrings.

python scripts/make_config_docs.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from smolsum.config.fields import base_type, toml_word
from smolsum.config.presets import read_preset
from smolsum.config.resolve import INHERITED
from smolsum.config.sections import SECTIONS, TaskConfig
from smolsum.config.stage import StageConfig
from smolsum.tasks import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
INTRODUCTION = """\
# Configuration

All settings, by section of a configuration file. `scripts/make_config_docs.py` makes this page from the records in
`smolsum/config/sections.py` and from those of the tasks.

A setting comes from the strongest layer that has it: defaults, the profile `default`, the model's preset, the task,
`--preset`, `--config FILE`, the environment (folders and workers only), `--strategy` and `--reward`, and last the other
flags and `--set SECTION.SETTING=VALUE`. `smolsum train --dry-run` prints every setting with its source, and the
strategy with the reason for it.

The stages are those of the strategy: of `--strategy`, else of a file with stages, else of the task. Of summaries that
is `constrained`, or `finetuned` where `--reward length` leaves it nothing to reward. `--set stages.NAME.SETTING=VALUE`
needs a strategy with a stage of that name.

Every run starts from `presets/profiles/default.toml`, which overrides the defaults of the records: where the two
differ, the table shows both. The presets of models and tasks override both.
"""
PROFILE = {entry.key: entry.value for entry in read_preset("profiles", "default")}
"""What the profile `default` sets, by dotted key."""
LONGEST = 48
"""Characters of a default that are shown."""
TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "table"}


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Returns the page as Markdown."""
    parts = [INTRODUCTION]
    for name, record in SECTIONS.items():
        parts.append(section(f"[{name}]", record))
        if name == "task":
            own = {task.name: task.settings for task in TASKS.values() if task.settings is not TaskConfig}
            parts += [section(f"[task] of `{task}`", record, but=TaskConfig) for task, record in own.items()]
    parts.append(section("[stages.NAME]", StageConfig))
    return "\n".join(parts)


def section(title: str, record: type[Any], *, but: type[Any] | None = None) -> str:
    """Returns heading, meaning and table of one record, without the unchanged settings of `but`."""
    inherited = {} if but is None else {field.name: field.default for field in fields(but)}
    hints, meanings = get_type_hints(record, include_extras=True), docstrings(record)
    name = title.strip("[]")
    rows = [
        f"| `{field.name}` | {_defaults(name, field)} | {_values(hints[field.name])} | {meanings[field.name]} |"
        for field in fields(record)
        if field.name not in inherited or (field.name != "name" and field.default != inherited[field.name])
    ]
    head = ["| setting | default | values | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", _one_line(inspect.getdoc(record) or ""), "", *head, *rows, ""])


def docstrings(record: type[Any]) -> dict[str, str]:
    """Returns the docstring below each field of a record and of those that it extends."""
    found: dict[str, str] = {}
    for kind in reversed(record.__mro__[:-1]):
        found |= dict(_field_docstrings(kind))
    return found


def _field_docstrings(record: type[Any]) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, _one_line(docstring)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _defaults(section: str, field: Field[Any]) -> str:
    """The record's default, and that of the profile `default` where it differs."""
    if section == "stages.NAME" and field.name in INHERITED:
        return "inherited"
    changed = PROFILE.get(f"{section}.{field.name}", field.default)
    return _default(field.default) + (f"; profile: {_default(changed)}" if changed != field.default else "")


def _default(value: object) -> str:
    if value is MISSING:
        return "inherited"
    shown = _one_line(str(value).lower() if isinstance(value, bool) else str(value))
    return f"`{shown if len(shown) <= LONGEST else shown[:LONGEST] + ' …'}`" if shown else "empty"


def _values(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{toml_word(choice)}`" for choice in get_args(hint))
    rules = [rule.words for rule in get_args(hint)[1:]] if get_origin(hint) is Annotated else []
    return ", ".join(rules if rules and base_type(hint) is str else [TYPES[base_type(hint)], *rules])


if __name__ == "__main__":
    main()
