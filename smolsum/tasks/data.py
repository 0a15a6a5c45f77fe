"""Prompts and their references, from the package, a file or directory, the hub or a generator, checked row by row.

`data_splits` gives the rows of a split. Here they become examples: a post or a chat, references, an id, and the rest.
A chat is a list of messages, each an object with `role` and `content`. It asks with all of its turns up to the last one
of the user. If a turn of the assistant follows at the end, that is the reference. A first message of the role system
stands for this row in place of `task.system_prompt`.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeGuard

import xxhash

from smolsum.config.sections import DataConfig
from smolsum.config.stage import StageConfig
from smolsum.errors import UsageError
from smolsum.rewards import FACTS
from smolsum.tasks.data_files import kind_of, nearest_name
from smolsum.tasks.data_splits import PlacedRow, read_split

ID_COLUMN = "id"
CHAT_COLUMN = "messages"
"""the column that is taken where no row has `data.prompt_column`"""
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Example:
    """What a task asks once, such as a post to summarise; its references, if any, and the row's other columns."""

    id: str
    source: str
    references: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[dict[str, str], ...] = ()
    """of a chat, the messages before the source: each has a `role` and a `content`. A first one of the role system
    stands in place of the task's system prompt"""

    @property
    def has_system(self) -> bool:
        """Whether the example brings its own system message."""
        return bool(self.turns) and self.turns[0]["role"] == "system"


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
    origin: str = ""
    """which data the rows are from, and which of them, in words; empty: a task made the examples"""


class _ChatParts(NamedTuple):
    """A chat taken apart."""

    turns: tuple[dict[str, str], ...]
    """the messages before the user's last turn"""
    source: object
    """that turn, or what a column holds in place of a chat"""
    reference: object
    """the answer of the assistant, None if it is missing"""


def load_split(data: DataConfig, split: str, *, references: bool = True) -> Split:
    """Return the split `train`, `validation` or `test`, read under the name that `data` gives it.

    The columns of completions hold the references, or else the answers at the end of chats. Without `references` they
    are not read, and where no row has any the examples have none, unless `data.completion_column` is another than the
    default. Ids come from an `id` column if there is one, else they are `<split>-<row>`, rows counted from 1.

    Raises UsageError for wrong input, UnreachableError for a hub that does not answer.
    """
    texts = {data.prompt_column, CHAT_COLUMN, *_listed(data.completion_column), ID_COLUMN}
    rows, origin = read_split(data, split, post=lambda row, where: post_of(row, where, data), texts=texts)
    columns = _columns(rows, data, references)
    lacking = references and not columns.references and not columns.chats_answered
    examples = _examples(rows, data, split, columns)
    if not examples:
        raise UsageError(
            f"no row is left of the {split} split ({origin}): each has an empty post or no reference",
            hint="--set data.empty_texts=error names the first of them",
        )
    lost = len(rows) - len(examples)
    left_out = f"{lost} of {len(rows)} rows of the {split} split have an empty post or no reference, and were left out"
    found = generated_split(split, examples, left_out if lost else "", origin)
    if not lacking:
        return found
    used = {columns.post, ID_COLUMN}
    problem = _no_column(rows[0].where, rows[0].columns, data.completion_column, "data.completion_column", used)
    return replace(found, no_references=problem.message, references_hint=problem.hint or "")


def check_references(splits: Mapping[str, Split], stages: Mapping[str, StageConfig]) -> str:
    """Return a warning if a split has no references; empty if all have some. Raises UsageError where a stage learns
    from references or uses a signal that compares with them, and the splits that it is trained and validated on have
    none."""
    without = sum(not example.references for example in splits["train"].examples) if "train" in splits else 0
    for name_of_stage, stage in stages.items():
        if without and stage.learn == "references":
            raise UsageError(
                f"stage {name_of_stage} learns from references, but "
                f"{splits['train'].no_references or f'{without} prompts of the train split have none'}",
                hint=f"--set stages.{name_of_stage}.learn=best, which needs none",
            )
    lacking = {name: split for name, split in splits.items() if split.no_references}
    comparing = [name for name, facts in FACTS.items() if facts.by_reference]
    for name, split in lacking.items():
        for name_of_stage, stage in stages.items():
            compared = [signal for signal in comparing if stage.used_signals.get(signal)]
            if compared and name in ("train", "validation"):
                compare = "compares" if len(compared) == 1 else "compare"
                raise UsageError(
                    f"stage {name_of_stage} uses {' and '.join(compared)}, which {compare} with references, but "
                    f"{split.no_references}",
                    hint=f"{split.references_hint}; or --reward length, which needs none",
                )
    first = next((split.no_references for split in lacking.values()), "")
    return first and f"no references: {first}; not measured on {', '.join(lacking)}: {', '.join(comparing)}"


def generated_split(name: str, examples: Iterable[Example], left_out: str = "", origin: str = "") -> Split:
    """Return the split that these examples make, with a fingerprint of their content, whether a task made them from a
    seed or they were read: `origin` then says where, and `left_out` what is not among them. Ids must be unique."""
    made = tuple(examples)
    return Split(name, made, _fingerprint(made), left_out, origin=origin)


def overlap(a: Split, b: Split) -> list[str]:
    """Return the posts that are in both splits, word for word and with the turns before them, each once and in the
    order of `a`."""
    known = {_asked(example) for example in b.examples}
    shared = {asked: example.source for example in a.examples if (asked := _asked(example)) in known}
    return list(shared.values())


def _asked(example: Example) -> tuple[str, ...]:
    return (*(text for turn in example.turns for text in (turn["role"], turn["content"])), example.source)


def post_of(row: Mapping[str, Any], where: str, data: DataConfig) -> object:
    """Return what a row asks about: its text, or its chat up to the user's last turn. Raises UsageError for a row that
    has neither, unless it will be dropped."""
    column = CHAT_COLUMN if CHAT_COLUMN in row and data.prompt_column not in row else data.prompt_column
    if data.empty_texts == "drop" and column not in row:
        return None
    value = column_of(row, where, column, "data.prompt_column", {ID_COLUMN, *_listed(data.completion_column)})
    chat = _read_chat(value, f"{where}: {column!r}")
    return [*chat.turns, {"role": "user", "content": chat.source}] if chat.turns else chat.source


@dataclass(frozen=True)
class _Columns:
    """What is read from which column of a split."""

    post: str
    references: tuple[str, ...]
    chats_answered: bool
    """whether chats have the references, at their ends"""


def _columns(rows: Sequence[PlacedRow], data: DataConfig, references: bool) -> _Columns:
    """Return the columns to read. Raises UsageError where no row has that of posts, or one of completions that was
    named."""

    def occurs(column: str) -> bool:
        return any(column in row.columns for row in rows)

    first, completion = rows[0], data.completion_column
    post = CHAT_COLUMN if occurs(CHAT_COLUMN) and not occurs(data.prompt_column) else data.prompt_column
    if not occurs(post):
        taken = {ID_COLUMN, *_listed(completion)}
        raise _no_column(first.where, first.columns, post, "data.prompt_column", taken)
    if not references:
        return _Columns(post, (), False)
    named = (completion,) if occurs(completion) else _listed(completion)
    if unknown := [column for column in named if not occurs(column)]:
        if completion != DataConfig().completion_column:
            raise _no_column(first.where, first.columns, unknown[0], "data.completion_column", {post, ID_COLUMN})
        return _Columns(post, (), any(_is_answered(row.columns.get(post)) for row in rows))
    return _Columns(post, named, False)


def _listed(setting: str) -> tuple[str, ...]:
    return tuple(name for part in setting.split(",") if (name := part.strip()))


def _is_answered(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[-1], Mapping) and (
        value[-1].get("role") == "assistant"
    )  # fmt: skip


def _examples(rows: Sequence[PlacedRow], data: DataConfig, split: str, columns: _Columns) -> list[Example]:
    """Return the rows as examples, without those that have an empty text where `data.empty_texts` drops them. Raises
    UsageError with the place of the first row that breaks a rule."""
    has_ids = any(ID_COLUMN in row.columns for row in rows)
    used = {columns.post, *columns.references, ID_COLUMN}
    drops, examples = data.empty_texts == "drop", list[Example]()
    needed = [] if drops else [columns.post, *(columns.references if len(columns.references) == 1 else ())]
    seen: dict[str, str] = {}
    for where, row, number in rows:
        if lacking := [column for column in needed if column not in row]:
            raise UsageError(
                f"{where} has no column {lacking[0]!r}, only {_names(row)}; other rows have it",
                hint="complete or remove the row",
            )
        what = f"{where}: {columns.post!r}"
        value = row.get(columns.post)
        chat = _read_chat(value, what)
        _check_chat(value, chat, what, columns)
        if columns.chats_answered and _is_chat(value) and chat.reference is None and not drops:
            raise UsageError(
                f"{what} does not end with a turn of the assistant, as it does in other rows",
                hint="complete or remove the row, or --set data.empty_texts=drop",
            )
        name = _id(row.get(ID_COLUMN), where) if has_ids else f"{split}-{number}"
        if name in seen:
            raise UsageError(
                f"{where} has the id {name!r} of {seen[name]}",
                hint=f"make ids unique, or rename column {ID_COLUMN!r} to have rows numbered",
            )
        seen[name] = where
        answers = _answers(row, where, chat, columns)
        if drops:
            answers = [(at, text) for at, text in answers if not _is_empty(text)]
            if _is_empty(chat.source) or (not answers and (columns.references or columns.chats_answered)):
                continue
        examples.append(
            Example(
                id=name,
                source=_text(chat.source, what),
                references=tuple(_text(text, at) for at, text in answers),
                metadata={column: value for column, value in row.items() if column not in used},
                turns=chat.turns,
            )
        )
    return examples


def _check_chat(value: object, chat: _ChatParts, what: str, columns: _Columns) -> None:
    """Raise UsageError for a chat that brings a reference besides that of a column, or that should be one and is
    not."""
    if columns.references and chat.reference is not None:
        raise UsageError(
            f"{what} ends with the assistant's turn, and the row has {columns.references[0]!r} too",
            hint=f"end it with the user's turn, or rename the column {columns.references[0]!r}",
        )
    if columns.post == CHAT_COLUMN and isinstance(value, str):
        raise UsageError(
            f"{what} is text, not a list of messages",
            hint=f"--set data.prompt_column={CHAT_COLUMN} takes the text as it is",
        )


def _answers(row: Mapping[str, Any], where: str, chat: _ChatParts, columns: _Columns) -> list[tuple[str, object]]:
    """Return the references of a row, each with its place. Among several, null stands for none. Raises UsageError for a
    row without any."""
    if columns.chats_answered:
        return [(f"{where}: the answer at the end of {columns.post!r}", chat.reference)]
    found: list[tuple[str, object]] = []
    for column in columns.references:
        value, what = row.get(column), f"{where}: {column!r}"
        if _is_chat(value):
            found.append((what, _read_answer(value, what)))
        elif isinstance(value, list):
            found += [(what, item) for item in value if item is not None] or [(what, value)]
        elif value is not None or len(columns.references) == 1:
            found.append((what, value))
    return found or [(f"{where}: each of {', '.join(map(repr, columns.references))}", None)] * bool(columns.references)


def _is_chat(value: object) -> TypeGuard[list[Any]]:
    """Return whether a column's value is a list with objects in it, and not one of texts."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _read_chat(value: object, what: str) -> _ChatParts:
    """Return the parts of a chat, or of what is not one; `what` names its place. Raises UsageError for what is no
    message, and for a chat in which the user does not speak last or is answered by the last message. The user's last
    turn may be empty."""
    if not _is_chat(value):
        return _ChatParts((), value, None)
    messages = [_message(item, f"message {number} of {what}") for number, item in enumerate(value, start=1)]
    if messages and messages[0]["role"] == "system" and not messages[0]["content"].strip():
        messages = messages[1:]  # many data sets have an empty one in every row
    if late := [number for number, one in enumerate(messages, start=1) if one["role"] == "system" and number > 1]:
        raise UsageError(f"message {late[0]} of {what} has the role system", hint="only the first message may have it")
    if all(one["role"] != "user" for one in messages):
        raise UsageError(f"{what} has no turn of the user", hint="add what is asked, or remove the row")
    answer = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if messages[-1]["role"] != "user":
        raise UsageError(
            f"{what} has no turn of the user before its last message",
            hint="end it with the user's turn and the assistant's answer, or remove the row",
        )
    *turns, last = messages
    if empty := next((number for number, one in enumerate(turns, start=1) if not one["content"].strip()), None):
        raise UsageError(f"turn {empty} of {what} is empty", hint="put the text there, or remove the row")
    return _ChatParts(tuple(turns), last["content"], answer)


def _read_answer(value: Sequence[Any], what: str) -> str:
    """Return the text of a completion that is one message of the assistant, as TRL has it. Raises UsageError for any
    other list of messages."""
    messages = [_message(item, f"message {number} of {what}") for number, item in enumerate(value, start=1)]
    if [one["role"] for one in messages] != ["assistant"]:
        roles = ", ".join(one["role"] for one in messages)
        raise UsageError(f"{what} has messages of {roles}, not one of the assistant", hint="keep the answer alone")
    return messages[0]["content"]


def _message(item: Any, what: str) -> dict[str, str]:
    """Return role and content. Other keys of a message are not for the model."""
    if not isinstance(item, Mapping):
        raise UsageError(f"{what} is {kind_of(item)}, not an object", hint="a message has a role and a content")
    if lacking := [key for key in ("role", "content") if key not in item]:
        others = ", ".join(map(str, item)) or "an empty object"
        hint = "rename its keys to role and content (roles: system, user, assistant)"
        raise UsageError(f"{what} has no {lacking[0]}, only {others}", hint=hint)
    role, content = item["role"], item["content"]
    if role not in ROLES:
        raise UsageError(f"{what} has the role {role!r}", hint=f"it has to be one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UsageError(f"the content of {what} is {kind_of(content)}, not text", hint="put the text there")
    return {"role": role, "content": content}


def _is_empty(value: object) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


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
        f"{where} has no column {column!r}, only {_names(row)}",
        hint=f"--set {setting}={near}" if free else f"add the column {column!r}",
    )


def _names(row: Mapping[str, Any]) -> str:
    """Return the names of a row's columns, long ones cut: a file without a line of names has texts there."""
    return ", ".join(name if len(name) <= 40 else f"{name[:40]}…" for name in row) or "an empty object"


def _text(value: object, what: str) -> str:
    """Return `value` unchanged. Raises UsageError unless it is text that a tokenizer accepts."""
    if isinstance(value, str) and value.strip() and not re.search("[\0\ud800-\udfff]", value):
        return value
    problem = "holds a NUL or half a surrogate pair"
    if value == []:
        problem = "is an empty list"
    elif isinstance(value, list) and not any(item is not None for item in value):
        problem = "is a list of nulls"
    elif not isinstance(value, str):
        problem = f"is {kind_of(value)}, not text"
    elif not value.strip():
        problem = "is empty"
    raise UsageError(f"{what} {problem}", hint="put the text there, or remove the row")


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
        row += [example.turns] if example.turns else []
        digest.update(json.dumps(row, sort_keys=True, separators=(",", ":"), default=str).encode() + b"\n")
    return str(digest.hexdigest())


def _canonical(value: Any) -> Any:
    """Return `value` without what Parquet's columns add: nulls for absent keys, and 3.0 for a 3 among floats."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
