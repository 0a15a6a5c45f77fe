"""Prompts and their references, from the package, a local directory, the hub or a generator, checked row by row.

A split is one file (or its shards): of `builtin:NAME`, a directory that holds
`<split>.jsonl`, `<split>.json` (one object a line), `<split>.parquet` or, as a hub snapshot does,
`data/<split>-00000-of-00001.parquet`, or a hub id `owner/name`, perhaps with a configuration and a revision.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from smolsum.config.hub import FORM, HubName, hub_name
from smolsum.config.sections import DataConfig
from smolsum.errors import UsageError
from smolsum.rewards import COMPARED
from smolsum.tasks.data_rows import (
    BUILTIN,
    BUILTIN_NAMES,
    LAYOUT,
    SUFFIXES,
    PlacedRow,
    kind_of,
    nearest_name,
    read_builtin,
    read_directory,
)
from smolsum.tasks.hub_data import read_hub

SPLITS = ("train", "validation", "test")
ID_COLUMN = "id"


@dataclass(frozen=True)
class Example:
    """What a task asks once, such as a post to summarise; its references, if any, and the row's other columns."""

    id: str
    source: str
    references: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """The examples of one split in file order; `fingerprint` is the XXH3-128 of their content, in hex."""

    name: str
    examples: tuple[Example, ...]
    fingerprint: str
    left_out: str = ""
    """which data the task could not use, and why, as a warning"""
    no_references: str = ""
    """why no example has a reference although rows may have some; empty otherwise"""
    references_hint: str = ""
    """the setting that may find them"""


def load_split(data: DataConfig, split: str, *, references: bool = True) -> Split:
    """Return the split `train`, `validation` or `test`, read under the name that `data` gives it.

    The column of completions holds the references. Without `references` it is not read, and where no row has it the
    examples have none, unless `data.completion_column` is another than the default. Ids come from an `id` column if
    there is one, else they are `<split>-<row>`, rows counted from 1.

    Raises UsageError for wrong input, UnreachableError for a hub that does not answer.
    """
    rows, column = read_split(data, split), data.completion_column
    lacking = references and column == DataConfig().completion_column and not any(column in row for _, row in rows)
    found = generated_split(split, _examples(rows, data, split, references and not lacking))
    if not lacking:
        return found
    problem = _no_column(*rows[0], column, "data.completion_column", {data.prompt_column, ID_COLUMN})
    return replace(found, no_references=problem.message, references_hint=problem.hint or "")


def check_references(splits: Mapping[str, Split], stages: Mapping[str, Mapping[str, float]]) -> str:
    """Return a warning if a split has no references; empty if all have some. Raises UsageError where a stage has a
    reward that compares with references (weights by stage and signal), and the splits that it is trained and validated
    on have none."""
    lacking = {name: split for name, split in splits.items() if split.no_references}
    for name, split in lacking.items():
        for stage, weights in stages.items():
            compared = [signal for signal in COMPARED if weights.get(signal)]
            if compared and name in ("train", "validation"):
                compare = "compares" if len(compared) == 1 else "compare"
                raise UsageError(
                    f"stage {stage} rewards {' and '.join(compared)}, which {compare} with references, but "
                    f"{split.no_references}",
                    hint=f"{split.references_hint}; or --reward length, which needs none",
                )
    first = next((split.no_references for split in lacking.values()), "")
    return first and f"no references: {first}; not measured on {', '.join(lacking)}: {', '.join(COMPARED)}"


def read_split(data: DataConfig, split: str) -> list[PlacedRow]:
    """Return the rows of the split `train`, `validation` or `test`; errors as of `load_split`."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}", hint=f"choose from {', '.join(SPLITS)}")
    name, setting = getattr(data, f"{split}_split"), f"data.{split}_split"
    if data.path.startswith(BUILTIN):
        return read_builtin(data.path.removeprefix(BUILTIN), name, setting)
    if (hub := _on_hub(data.path)) is not None:
        return read_hub(hub, name, setting)
    return read_directory(Path(os.path.expanduser(data.path)), name, setting)


def _on_hub(path: str) -> HubName | None:
    """Return the parts of a hub id, None for a path on this machine: one that exists, or looks like a path, is never
    looked up on a hub. Raises UsageError for what is neither."""
    if path.startswith(("./", "../", "/", "~")) or path.endswith(SUFFIXES) or Path(path).exists():
        return None
    if (hub := hub_name(path)) is None:
        raise UsageError(
            f"no data at {path!r}: no such directory, and not a hub id ({FORM})",
            hint=f"--set data.path=DIR, {LAYOUT}, or {BUILTIN}{BUILTIN_NAMES[0]}",
        )
    return hub


def generated_split(name: str, examples: Iterable[Example], left_out: str = "") -> Split:
    """Return a split of examples that a task made from a seed, or from data of which some may be `left_out`, with a
    fingerprint like one that was read. Ids must be unique."""
    made = tuple(examples)
    return Split(name, made, _fingerprint(made), left_out)


def overlap(a: Split, b: Split) -> list[str]:
    """Return the posts that are in both splits, word for word, each once and in the order of `a`."""
    known = {example.source for example in b.examples}
    return list(dict.fromkeys(example.source for example in a.examples if example.source in known))


def _examples(rows: Sequence[PlacedRow], data: DataConfig, split: str, has_references: bool) -> Iterator[Example]:
    """Yield the rows as examples. Raises UsageError with the place of the first row that breaks a rule."""
    has_ids = any(ID_COLUMN in row for _, row in rows)
    columns = [data.prompt_column, *([data.completion_column] if has_references else [])]
    used = {*columns, ID_COLUMN}
    known = [column for column in columns if any(column in row for _, row in rows)]
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows, start=1):
        if lacking := [column for column in known if column not in row]:
            raise UsageError(
                f"{where} has no column {lacking[0]!r}, only {', '.join(row) or 'an empty object'}; other rows have it",
                hint="complete or remove the row",
            )
        source = column_of(row, where, data.prompt_column, "data.prompt_column", used)
        references = _references(row, where, data, used) if has_references else ()
        name = _id(row.get(ID_COLUMN), where) if has_ids else f"{split}-{number}"
        if name in seen:
            raise UsageError(
                f"{where} has the id {name!r} of {seen[name]}",
                hint=f"make ids unique, or rename column {ID_COLUMN!r} to have rows numbered",
            )
        seen[name] = where
        yield Example(
            id=name,
            source=_texts([source], f"{where}: {data.prompt_column!r}")[0],
            references=references,
            metadata={column: value for column, value in row.items() if column not in used},
        )


def _references(row: Mapping[str, Any], where: str, data: DataConfig, used: Collection[str]) -> tuple[str, ...]:
    completion = column_of(row, where, data.completion_column, "data.completion_column", used)
    values = completion if isinstance(completion, list) else [completion]
    return _texts(values, f"{where}: {data.completion_column!r}")


def column_of(row: Mapping[str, Any], where: str, column: str, setting: str, taken: Collection[str] = ()) -> Any:
    """Return a row's value in `column`, which `setting` names. Raises UsageError where the row has no such column, with
    the nearest of those that are not `taken`."""
    if column not in row:
        raise _no_column(where, row, column, setting, taken)
    return row[column]


def _no_column(where: str, row: Mapping[str, Any], column: str, setting: str, taken: Collection[str]) -> UsageError:
    free = [name for name in row if name not in taken]
    near = nearest_name(column, free) or (free[0] if len(free) == 1 else "NAME")
    return UsageError(
        f"{where} has no column {column!r}, only {', '.join(row) or 'an empty object'}",
        hint=f"--set {setting}={near}" if free else f"add the column {column!r}",
    )


def _texts(values: Sequence[Any], what: str) -> tuple[str, ...]:
    """Return `values` unchanged. Raises UsageError unless each is text that a tokenizer accepts."""
    problem = "" if values else "is an empty list"
    for value in values:
        if not isinstance(value, str):
            problem = f"is {kind_of(value)}, not text"
        elif not value.strip():
            problem = "is empty"
        elif re.search("[\0\ud800-\udfff]", value):
            problem = "holds a NUL or half a surrogate pair"
    if problem:
        raise UsageError(f"{what} {problem}", hint="put the text there, or remove the row")
    return tuple(values)


def _id(value: object, where: str) -> str:
    if type(value) not in (str, int) or value == "":
        raise UsageError(
            f"{where}: {ID_COLUMN!r} is {kind_of(value) if value != '' else 'empty'}",
            hint=f"give every row a text or whole number, or rename column {ID_COLUMN!r}",
        )
    return str(value)


def _fingerprint(examples: Iterable[Example]) -> str:
    """Return the XXH3-128 of the rows as canonical JSON: one for JSON Lines, Parquet and the hub."""
    digest = xxhash.xxh3_128()
    for example in examples:
        row = [example.id, example.source, example.references, _canonical(example.metadata)]
        digest.update(json.dumps(row, sort_keys=True, separators=(",", ":"), default=str).encode() + b"\n")
    return str(digest.hexdigest())


def _canonical(value: Any) -> Any:
    """Return `value` without what Parquet's columns add: nulls for absent keys, and 3.0 for a 3 among floats."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
