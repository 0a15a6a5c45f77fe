"""The decorator `smolsum.reward`, and the check of a user's function before it becomes a signal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, overload

from smolsum.errors import UsageError
from smolsum.rewards.custom import Better, CustomReward, RewardOptions

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = "__smolsum_reward__"
"""the attribute that `reward` leaves on a function"""


@overload
def reward(function: F) -> F: ...
@overload
def reward(
    *,
    name: str = "",
    range: str = "",
    meaning: str = "",
    better: Better = "higher",
    chats: bool = False,
    whole_step: bool = False,
    uses_length: bool = True,
) -> Callable[[F], F]: ...
def reward(
    function: F | None = None,
    *,
    name: str = "",
    range: str = "",
    meaning: str = "",
    better: Better = "higher",
    chats: bool = False,
    whole_step: bool = False,
    uses_length: bool = True,
) -> F | Callable[[F], F]:
    """Mark a function as a reward signal, and return it unchanged.

    `name` is that of the signal, by default the function's; `range` ("[0, 1]") and `meaning`, by default the first line
    of the docstring, stand in reports, and `better` says which values are better there. With `chats`, prompts and
    completions are lists of messages, as TRL's conversational form has them, instead of texts. With `whole_step` the
    function gets the P groups and the configuration, and returns P lists of G values. Without `uses_length` a stage
    that trains only such signals leaves out truncated completions, as DAPO does (arXiv:2503.14476, section 3.4).
    Raises UsageError for a value of another type.
    """
    given: Any = function
    if given is not None and not callable(given):
        hint = f"@smolsum.reward(name={given!r:.80})" if isinstance(given, str) else "@smolsum.reward above a function"
        raise UsageError(f"reward({given!r:.80}): this is not a function", hint=hint)
    options = RewardOptions(name, range, meaning, better, chats, whole_step, uses_length)
    _check_types(options)

    def mark(marked: F) -> F:
        setattr(marked, OPTIONS, options)
        return marked

    return mark if function is None else mark(function)


def _check_types(options: RewardOptions) -> None:
    """Raise UsageError for an option whose value has another type than its default, and for an unknown `better`."""
    for one in fields(RewardOptions):
        value: Any = getattr(options, one.name)
        if type(value) is not type(one.default):
            kind = "a text" if isinstance(one.default, str) else "True or False"
            shown = '"…"' if isinstance(one.default, str) else "True"
            hint = f"@smolsum.reward({one.name}={shown})"
            raise UsageError(f"reward({one.name}={value!r:.80}) is not {kind}", hint=hint)
    if options.better not in get_args(Better):
        raise UsageError(f"reward(better={options.better!r:.80}) is not higher or lower", hint='better="lower"')


def make_reward(function: Callable[..., Any], *, file: str, sha256: str, name: str = "") -> CustomReward:
    """Return the signal of a function, marked with `reward` or not. Raises UsageError for a function that cannot be
    called as TRL calls rewards, and for a name that is no name of a signal."""
    options = getattr(function, OPTIONS, RewardOptions())
    own = name or options.name or getattr(function, "__name__", type(function).__name__)
    made = CustomReward(own, function, options, file, sha256)
    place = f"{Path(file).name}: reward {own!r}"
    if not own.isidentifier() or own.startswith("_"):
        raise UsageError(
            f"{place} has no usable name: letters, digits and '_', as --reward joins signals with '-'",
            hint='@smolsum.reward(name="…")',
        )
    if not callable(function):
        raise UsageError(f"{place} is not a function", hint="def NAME(prompts, completions, **kwargs): …")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{place} has no signature", hint="wrap it in a function") from error
    if not options.whole_step and (positional := [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]):
        raise UsageError(
            f"{place} takes {positional[0]!r} by position only, and everything is given by name",
            hint="remove the '/' from its parameters",
        )
    return made
