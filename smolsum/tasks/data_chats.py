"""Chats in the rows of data: lists of messages, each an object with `role` and `content`.

A chat asks with all of its turns up to the last one of the user. If a turn of the assistant follows at the end, that is
the reference. A first message of the role system stands for this row in place of `task.system_prompt`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from smolsum.errors import UsageError
from smolsum.tasks.data_rows import kind_of

COLUMN = "messages"
"""the column that is taken where no row has `data.prompt_column`"""
ROLES = ("system", "user", "assistant")


class ChatParts(NamedTuple):
    """A chat taken apart."""

    turns: tuple[dict[str, str], ...]
    """the messages before the user's last turn"""
    source: object
    """that turn, or what a column holds in place of a chat"""
    reference: object
    """the answer of the assistant, None if it is missing"""


def is_chat(value: object) -> TypeGuard[list[Any]]:
    """Return whether a column's value is a list with objects in it, and not one of texts."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def read_chat(value: Sequence[Any], what: str) -> ChatParts:
    """Return the parts of a chat; `what` names its place. Raises UsageError for what is no message, and for a chat in
    which the user does not speak last or is answered by the last message. The user's last turn may be empty."""
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
    return ChatParts(tuple(turns), last["content"], answer)


def read_answer(value: Sequence[Any], what: str) -> str:
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
