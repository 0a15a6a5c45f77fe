"""Configuration as text: the TOML files shipped in this folder, and the user's own.

models/       a model with the data and the step sizes that suit it; `[stage_defaults.NAME]` holds values
              for the stages of that name, whichever strategy makes them
strategies/   the stages of a run; in `rewards` the word "quality" stands for the signals of --reward
profiles/     everything else; `default` lies under every run

To add one, add a file here, opening with a comment that says what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from smolsum.errors import UsageError

KINDS = ("profiles", "models", "strategies")


class Entry(NamedTuple):
    """One dotted key, its value (for a table a dict, whose own entries follow) and where it stands."""

    key: str
    value: Any
    source: str


def preset_names(kind: str) -> tuple[str, ...]:
    """Returns the sorted names of the shipped presets of one of `KINDS`."""
    files = (path.name for path in _folder(kind).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def read_preset(kind: str, name: str) -> list[Entry]:
    """Returns the entries of a shipped preset, each with the source `preset KIND/NAME`."""
    return entries(read_table(kind, name), f"preset {kind}/{name}")


def read_table(kind: str, name: str) -> dict[str, Any]:
    """Returns a shipped preset as nested tables."""
    return tomli.loads(_folder(kind).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def entries(table: Mapping[str, Any], source: str) -> list[Entry]:
    """Returns the entries of nested tables that come from one place."""
    return [Entry(key, value, source) for key, value in walk(table)]


def read_file(path: Path) -> list[Entry]:
    """Returns the entries of a configuration file, each with the source `PATH:LINE`.

    UsageError where the file is missing, unreadable or not TOML (with line and column).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise UsageError(
            f"{path}:{error.lineno}:{error.colno}: not TOML: {_lower(error.msg)}",
            hint='a line is a [section] or `key = value`, with texts in "quotes"',
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text", hint="save the file as UTF-8") from error
    except OSError as error:
        inside = path / "config.toml"
        hint = f"--config {inside}" if inside.is_file() else "check the path given with --config"
        raise UsageError(
            f"cannot read the configuration file {path}: {_lower(str(error.strerror))}", hint=hint
        ) from error
    lines = line_numbers(text)
    return [Entry(key, value, f"{path}:{lines[key]}" if key in lines else str(path)) for key, value in walk(document)]


def walk(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every dotted key with its value, a table before what it holds."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        yield key, value
        if isinstance(value, dict):
            yield from walk(value, f"{key}.")


def line_numbers(text: str) -> dict[str, int]:
    """Returns the line, from 1, on which each dotted key of a valid TOML text first appears.

    tomli gives no positions. A statement ends where the lines since the last one parse below their header, so
    strings and arrays over several lines need no care.
    """
    found: dict[str, int] = {}
    header, statement, start = "", "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += line + "\n"
        is_header = statement.lstrip().startswith("[")
        try:
            table = tomli.loads(statement if is_header else header + statement)
        except tomli.TOMLDecodeError:
            continue
        for key, _ in walk(table):
            found.setdefault(key, start)
        header = statement if is_header else header
        statement, start = "", number + 1
    return found


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _folder(kind: str) -> Traversable:
    return resources.files(__name__).joinpath(kind)
