"""Records in files: read strictly or leniently, and checked before they are written.

`read`, `read_lines` and `parse` are strict: a damaged file is one SmolsumError with file, line and field. `salvage` is
for views of a run that may be half written: a field that is wrong counts as missing. Unknown keys are accepted.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

import msgspec
import tomli
from msgspec import Struct

from smolsum.errors import SmolsumError
from smolsum.files import json_lines, to_json
from smolsum.runs.evaluation_records import SCORE_KEYS, SUMMARY, Score, Summary
from smolsum.runs.records import RunSettings

R = TypeVar("R", bound=Struct)


def read(path: Path, kind: type[R], *, needs: Sequence[str] = (), hint: str = "") -> R:
    """Return a JSON or TOML file as a record. Raises SmolsumError for a file that cannot be read, or lacks a key of
    `needs`; `hint` says what helps."""
    return parse(read_object(path, hint=hint), kind, str(path), needs=needs, hint=hint)


def read_object(path: Path, *, hint: str = "") -> dict[str, Any]:
    """Return the keys of a JSON or TOML file as they are. Raises SmolsumError for a file that holds nothing of the
    kind."""
    try:
        content = path.read_bytes()
        value = tomli.loads(content.decode()) if path.suffix == ".toml" else json.loads(content)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise SmolsumError(message, hint=hint or "check that it is a file and that you may read it") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(str(path), str(error), hint) from error
    if not isinstance(value, dict):
        raise _damaged(str(path), "it is not a JSON object", hint)
    return value


def read_lines(path: Path, kind: type[R], *, hint: str = "") -> list[R]:
    """Return the whole lines of a JSON Lines file that may still be growing; none if it does not exist yet. Raises
    SmolsumError, with the line, for a file that is damaged."""
    return [parse(row, kind, f"{path}:{number}", hint=hint) for number, row in json_lines(path, hint=hint)]


def parse(value: Mapping[str, Any], kind: type[R], where: str, *, needs: Sequence[str] = (), hint: str = "") -> R:
    """Return an object of a file as a record; `where` is the file, with the line if it has several. Raises
    SmolsumError, with the field, for one that is damaged or lacks a key of `needs`."""
    rekeyed = _rekeyed(value, kind)
    if lacking := [key for key in needs if key not in rekeyed]:
        raise _damaged(where, f"it has no {lacking[0]}", hint)
    try:
        return msgspec.convert(rekeyed, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problems: list[str] = []
        salvage(value, kind, problems)
        raise _damaged(where, problems[0] if problems else str(error), hint) from error


def salvage(value: object, kind: type[R], problems: list[str] | None = None) -> R | None:
    """Return what is right of an object, with defaults for the rest, as a record: a part that is wrong is left out,
    which `problems` gets a line about. None where a field without a default is missing or wrong."""
    found = _salvaged(_rekeyed(value, kind), kind, "", [] if problems is None else problems)
    return None if found is _WRONG else cast(R, found)


def checked(kind: type[Struct], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row. Raises TypeError unless it can be read again as `kind`."""
    try:
        msgspec.convert(_rekeyed(row, kind), kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"not a {kind.__name__}: {error}") from error
    return row


def encode(kind: type[Struct], row: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return a row of `kind` as JSON in UTF-8 with a line end, its keys in their order. Raises TypeError for a row that
    could not be read again, ValueError for NaN and infinities."""
    return to_json(checked(kind, row), indent=indent)


def to_row(record: Struct) -> dict[str, Any]:
    """Return a record as the keys and values of its line."""
    return cast(dict[str, Any], msgspec.to_builtins(record))


def has_scores(folder: Path) -> bool:
    """Whether the folder holds a finished evaluation."""
    return (folder / SUMMARY).exists()


def read_summary(folder: Path, needs: Sequence[str] = ()) -> Summary:
    """Return the summary of an evaluation. Raises what `read` raises."""
    path = folder / SUMMARY
    return read(path, Summary, needs=needs, hint=f"remove {path} and evaluate again")


def _damaged(where: str, problem: str, hint: str) -> SmolsumError:
    return SmolsumError(f"{where} is damaged: {problem}", hint=hint or "restore it from a copy")


def _rekeyed(value: Any, kind: type[Struct]) -> Any:
    """Return the object with the keys that `kind` gives it.

    Settings get dotted keys, except the stages. The free keys of a line of scores come together, under `metrics`. A
    number is a metric under any name: files of users may have a `judge` or a `task` that is one.
    """
    if isinstance(value, Mapping) and kind is RunSettings:
        tables = {name: table for name, table in value.items() if isinstance(table, Mapping) and name != "stages"}
        dotted = {f"{name}.{key}": one for name, table in tables.items() for key, one in table.items()}
        return dotted | {"stages": value["stages"]} if "stages" in value else dotted
    if not isinstance(value, Mapping) or kind is not Score:
        return value
    fixed = {k: v for k, v in value.items() if k in SCORE_KEYS and (k == "id" or not isinstance(v, int | float))}
    return {**fixed, "metrics": {key: free for key, free in value.items() if key not in fixed}}


_WRONG = object()


def _salvaged(value: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """What is right of a value, as `kind`; `_WRONG` if that is nothing."""
    try:
        return msgspec.convert(value, kind)
    except RecursionError:
        problems.append(f"{where} is nested too deeply")
        return _WRONG
    except msgspec.ValidationError as error:
        reason = str(error)
    known = len(problems)
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        kind = options[0] if len(options) == 1 else kind
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, Mapping):
        found, complete = dict[str, Any](), True
        for one in msgspec.structs.fields(kind):
            part = _WRONG
            if one.encode_name in value:
                part = _salvaged(value[one.encode_name], one.type, _join(where, one.encode_name), problems)
            elif one.required:
                problems.append(f"{where or 'it'} has no {one.encode_name}")
            if part is not _WRONG:
                found[one.name] = part
            complete &= part is not _WRONG or not one.required
        if complete and len(problems) > known:
            try:
                return kind(**found)
            except (TypeError, ValueError) as error:
                reason = str(error)
        elif not complete:
            return _WRONG
    elif get_origin(kind) is dict and isinstance(value, Mapping):
        parts = {k: _salvaged(part, get_args(kind)[1], _join(where, k), problems) for k, part in value.items()}
        return {k: part for k, part in parts.items() if part is not _WRONG}
    elif get_origin(kind) is list and isinstance(value, list):
        items = [_salvaged(item, get_args(kind)[0], f"{where}[{place}]", problems) for place, item in enumerate(value)]
        return [item for item in items if item is not _WRONG]
    problems.append(f"{where or 'it'} is {str(value)[:40]!r}: {reason[:1].lower()}{reason[1:]}".replace("`", ""))
    return _WRONG


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
