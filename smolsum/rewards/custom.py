"""Rewards that users write: a function with TRL's signature, or one over a whole step, becomes a signal.

A function gets the step's `prompts`, `completions` and `completion_ids` (lists of N = PxG values, a prompt's
completions next to each other), the prompts' `references`, and each other column of the data by its name; it returns N
numbers, None for what has no value. It gets only what its parameters name, or all with `**kwargs`. The functions of a
step run at the same time, each with a deadline, `rewards.timeout_s`.
"""

from __future__ import annotations

import copy
import inspect
import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from smolsum.config.sections import Config
from smolsum.errors import SmolsumError, UsageError
from smolsum.rewards.background import Awaited, PastDeadlineError, Running
from smolsum.rewards.signal import Background, Begun, Values
from smolsum.types import RolloutGroup

F = TypeVar("F", bound=Callable[..., Any])

GIVEN = ("prompts", "completions", "completion_ids", "references")
"""what every function may ask for, besides the columns of the data"""
OPTIONS = "__smolsum_reward__"
"""the attribute that `reward` leaves on a function"""


@dataclass(frozen=True)
class RewardOptions:
    """What `reward` says of a function."""

    name: str = ""
    range: str = ""
    meaning: str = ""
    chats: bool = False
    whole_step: bool = False
    uses_length: bool = True


@overload
def reward(function: F) -> F: ...
@overload
def reward(
    *,
    name: str = "",
    range: str = "",
    meaning: str = "",
    chats: bool = False,
    whole_step: bool = False,
    uses_length: bool = True,
) -> Callable[[F], F]: ...
def reward(function: F | None = None, **options: Any) -> F | Callable[[F], F]:
    """Mark a function as a reward signal, and return it unchanged.

    `name` is that of the signal, by default the function's; `range` ("[0, 1]") and `meaning`, by default the first line
    of the docstring, stand in reports. With `chats`, prompts and completions are lists of messages, as TRL's
    conversational form has them, instead of texts. With `whole_step` the function gets the P groups and the
    configuration, and returns P lists of G values. Without `uses_length` a stage that trains only such signals leaves
    out truncated completions, as DAPO does (arXiv:2503.14476, section 3.4).
    """

    def mark(marked: F) -> F:
        setattr(marked, OPTIONS, RewardOptions(**options))
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class CustomReward(Background):
    """A signal made of a user's function; `file` is where the function is written."""

    name: str
    function: Callable[..., Any]
    options: RewardOptions
    file: str
    sha256: str
    """of the file, or of the function's source text"""

    def begin(self, groups: Sequence[RolloutGroup], config: Config) -> Begun:
        """Call the function in the background; errors as of `_Call.values`."""
        return _Call(self, groups, config)

    @property
    def meaning(self) -> str:
        """What it rewards, in words."""
        first = (inspect.getdoc(self.function) or "").partition("\n")[0].strip().rstrip(".")
        return self.options.meaning or first

    @property
    def where(self) -> str:
        """The name, and where the function is."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        line = f":{code.co_firstlineno}" if code else ""
        return f"reward {self.name!r} ({Path(self.file).name}{line})"

    def accepts(self) -> tuple[list[str], list[str], bool]:
        """Return the parameters that it must get, those that it may get, and whether it takes any other."""
        required: list[str] = []
        optional: list[str] = []
        others = False
        for one in inspect.signature(self.function).parameters.values():
            if one.kind is one.VAR_KEYWORD:
                others = True
            elif one.kind not in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
                (required if one.default is one.empty else optional).append(one.name)
        return required, optional, others

    def check_columns(self, split: str, columns: Collection[str]) -> None:
        """Raise UsageError for a parameter that no column of the split gives."""
        if self.options.whole_step:
            return
        if lacking := [name for name in self.accepts()[0] if name not in (*GIVEN, *columns)]:
            known = ", ".join([*GIVEN, *columns])
            raise UsageError(
                f"{self.where} asks for {lacking[0]!r}, and the {split} split has no such column, only {known}",
                hint=f"rename the parameter, give it a default, or add the column {lacking[0]!r} to the data",
            )


def make_reward(
    function: Callable[..., Any], *, file: str, sha256: str, taken: Iterable[str] = (), name: str = ""
) -> CustomReward:
    """Return the signal of a function, marked with `reward` or not. Raises UsageError for a function that cannot be
    called as TRL calls rewards, and for a name that is no name of a signal or is `taken`."""
    options = getattr(function, OPTIONS, RewardOptions())
    own = name or options.name or getattr(function, "__name__", type(function).__name__)
    made = CustomReward(own, function, options, file, sha256)
    place = f"{Path(file).name}: reward {own!r}"
    if not own.isidentifier() or own.startswith("_"):
        raise UsageError(
            f"{place} has no usable name: letters, digits and '_', as --reward joins signals with '-'",
            hint='@smolsum.reward(name="…")',
        )
    if own in taken:
        raise UsageError(
            f"{place} has the name of another signal or metric", hint='rename it: @smolsum.reward(name="…")'
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


class _Call:
    """One step's call of a function."""

    def __init__(self, reward: CustomReward, groups: Sequence[RolloutGroup], config: Config) -> None:
        self._reward, self._groups, self._config = reward, groups, config
        self._until = time.monotonic() + config.rewards.timeout_s
        self._running = _start(reward, groups, config)

    def stop(self) -> None:
        """End the function if it still runs."""
        self._running.stop()

    def values(self) -> Values:
        """Return the PxG values, None for what failed where `rewards.on_error` is `missing`. Raises SmolsumError
        otherwise, with the first sample on which the function fails when it is called with that alone."""
        reward, groups, config = self._reward, self._groups, self._config
        count = sum(len(group.rollouts) for group in groups)
        whole = ""  # what went wrong with all of them
        cause: Exception | None = None
        try:
            flat, problems = _checked(reward, self._running.result(self._until), groups)
        except _WrongShapeError as error:
            raise SmolsumError(
                f"{reward.where} {error}", hint="return a value, or None, for each completion"
            ) from error
        except Exception as error:
            cause, whole = error, _described(error, reward)
            if isinstance(error, PastDeadlineError) or reward.options.whole_step:
                flat, problems = [None] * count, dict.fromkeys(range(count), whole)
            else:
                flat, problems = _one_by_one(reward, groups, config)
                whole = "" if problems else whole
        if not problems and not whole:
            return _nested(flat, groups)
        place = next(iter(problems), 0)
        problem = f": {whole}" if whole else f" on {_sample(groups, place)}: {problems[place]}"
        if config.rewards.on_error == "stop":
            hint = "correct it; or a new run with --set rewards.on_error=missing leaves out what fails"
            if isinstance(cause, PastDeadlineError):
                hint = "make it faster; or a new run with --set rewards.timeout_s=SECONDS gives it more time"
            raise SmolsumError(f"{reward.where} failed{problem}", hint=hint) from cause
        if problems:
            message = f"{reward.where} gave no value for {len(problems)} of {count} completions{problem}"
            from smolsum.llm.request_policy import current_hook

            current_hook().notify("reward_missing", message)
        return _nested(flat, groups)


def _one_by_one(
    reward: CustomReward, groups: Sequence[RolloutGroup], config: Config
) -> tuple[list[float | None], dict[int, str]]:
    """Return the value of each completion scored alone, and what went wrong by place: all of it, or only the first
    failure if that stops the run."""
    until = time.monotonic() + config.rewards.timeout_s
    flat: list[float | None] = []
    problems: dict[int, str] = {}
    for place, single in enumerate(_singles(groups)):
        flat.append(None)
        if problems and config.rewards.on_error == "stop":
            continue
        try:
            (flat[-1],), wrong = _checked(reward, _start(reward, [single], config).result(until), [single])
            if wrong:
                problems[place] = wrong[0]
        except Exception as error:
            problems[place] = str(error) if isinstance(error, _WrongShapeError) else _described(error, reward)
    return flat, problems


class _WrongShapeError(Exception):
    """The function returned no list with a value for each completion; completed by the name before it."""


def _sample(groups: Sequence[RolloutGroup], place: int) -> str:
    """Name the sample at a place among the N."""
    names = [f"sample {n} of prompt {group.prompt.id!r}" for group in groups for n in range(len(group.rollouts))]
    return names[place]


def _singles(groups: Sequence[RolloutGroup]) -> Iterator[RolloutGroup]:
    """Yield a group of one for each completion."""
    for group in groups:
        for rollout in group.rollouts:
            yield RolloutGroup(group.prompt, (rollout,))


def _arguments(reward: CustomReward, groups: Sequence[RolloutGroup], config: Config) -> dict[str, list[Any]]:
    """Return what the function gets: N values by name."""
    singles = list(_singles(groups))
    prompts, rollouts = [one.prompt for one in singles], [one.rollouts[0] for one in singles]
    columns = dict.fromkeys(name for prompt in prompts for name in prompt.metadata)
    given: dict[str, list[Any]] = {name: [_copied(prompt.metadata.get(name)) for prompt in prompts] for name in columns}
    given[config.data.completion_column] = [
        prompt.references[0] if len(prompt.references) == 1 else list(prompt.references) or None for prompt in prompts
    ]
    if reward.options.chats:
        given["prompts"] = [[dict(message) for message in prompt.messages] for prompt in prompts]
        given["completions"] = [[{"role": "assistant", "content": rollout.text}] for rollout in rollouts]
    else:
        given["prompts"] = [prompt.source for prompt in prompts]
        given["completions"] = [rollout.text for rollout in rollouts]
    given["completion_ids"] = [list(rollout.token_ids) for rollout in rollouts]
    given["references"] = [list(prompt.references) for prompt in prompts]
    required, optional, others = reward.accepts()
    # a column that only some rows have, and that this batch therefore lacks
    given |= {name: [None] * len(singles) for name in required if name not in given}
    return {name: values for name, values in given.items() if others or name in (*required, *optional)}


def _copied(value: Any) -> Any:
    """Return a copy of what a function could change in the data."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _checked(
    reward: CustomReward, result: Any, groups: Sequence[RolloutGroup]
) -> tuple[list[float | None], dict[int, str]]:
    """Return the N values of what a function returned, and what is wrong with some, by place: those are None. Raises
    _WrongShapeError where there is not a value for each completion."""
    sizes = [len(group.rollouts) for group in groups]
    rows = _listed(result)
    if rows is not None and reward.options.whole_step:
        inner = [_listed(row) or [] for row in rows]
        if [len(row) for row in inner] != sizes:
            raise _WrongShapeError(f"did not return {len(sizes)} lists (groups) of {sizes[0]} values (completions)")
        rows = [value for row in inner for value in row]
    if rows is None:
        kind = "None" if result is None else type(result).__name__
        raise _WrongShapeError(f"returned {kind}, not a list of {sum(sizes)} numbers")
    if len(rows) != sum(sizes):
        raise _WrongShapeError(f"returned {len(rows)} values for {sum(sizes)} completions")
    flat: list[float | None] = []
    problems: dict[int, str] = {}
    for place, value in enumerate(rows):
        number = None if value is None else _number(value)
        if value is not None and (number is None or not math.isfinite(number)):
            problems[place] = f"it returned {value!r:.80}, not a finite number (None stands for no value)"
        flat.append(None if place in problems else number)
    return flat, problems


def _listed(value: Any) -> list[Any] | None:
    """Return the values of a list, tuple or array; None for anything else."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # an array without dimensions
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _nested(flat: Sequence[float | None], groups: Sequence[RolloutGroup]) -> Values:
    values = iter(flat)
    return [[next(values) for _ in group.rollouts] for group in groups]


def _described(error: BaseException, reward: CustomReward) -> str:
    """Return an exception with its line in the user's file."""
    if isinstance(error, PastDeadlineError):
        return str(error)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    last = ([one for one in frames if one.filename == reward.file] or frames)[-1]
    code = f": {last.line}" if last.line else ""
    return f"{text} (line {last.lineno} of {Path(last.filename).name}{code})"


def _start(reward: CustomReward, groups: Sequence[RolloutGroup], config: Config) -> Running:
    """Call the function in the background."""
    function = reward.function
    call = (
        partial(function, groups, config)
        if reward.options.whole_step
        else partial(function, **_arguments(reward, groups, config))
    )
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return Awaited(call) if is_async else Running(call)
