"""Rewards that users write: a function with TRL's signature, or one over a whole step, becomes a signal.

A function gets the step's `prompts`, `completions` and `completion_ids` (lists of N = PxG values, a prompt's
completions next to each other), the prompts' `references`, and each other column of the data by its name; it returns N
numbers, None for what it does not apply to. It gets only what its parameters name, or all with `**kwargs`; TRL's
`trainer_state`, `log_extra` and `log_metric` too. The functions of a step run at the same time, each with a deadline,
`rewards.timeout_s`.
"""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from smolsum.config.sections import Config
from smolsum.errors import PluginError, UsageError
from smolsum.rewards.background import Awaited, EndedError, PastDeadlineError, Running, now
from smolsum.rewards.reward_log import RewardLog, TrainerState
from smolsum.rewards.signal import Background, Begun, NotApplicable, Outcomes
from smolsum.types import RolloutGroup

Better: TypeAlias = Literal["higher", "lower"]
Flat: TypeAlias = list[float | NotApplicable | None]
"""N = PxG values, None for what failed"""

GIVEN = ("prompts", "completions", "completion_ids", "references", "trainer_state", "log_extra", "log_metric")
"""what every function may ask for, besides the columns of the data"""
CHAT_AS_TEXT = re.compile("string ind(ex|ices)|'str' object has no attribute")
"""what an error says where a text is taken for a list of messages"""
LARGEST = 3e38
"""of a value: advantages are 32-bit floats"""


@dataclass(frozen=True)
class RewardOptions:
    """What `reward` says of a function."""

    name: str = ""
    range: str = ""
    meaning: str = ""
    better: Better = "higher"
    chats: bool = False
    whole_step: bool = False
    uses_length: bool = True


@dataclass(frozen=True)
class CustomReward(Background):
    """A signal made of a user's function; `file` is where the function is written."""

    name: str
    function: Callable[..., Any]
    options: RewardOptions
    file: str
    sha256: str
    """of the file, or of the function's source text"""

    def begin(self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> Begun:
        """Call the function in the background; errors as of `_Call.values`."""
        return _Call(self, groups, config, log)

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


class _Call:
    """One step's call of a function."""

    def __init__(self, reward: CustomReward, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> None:
        self._reward, self._groups, self._config, self._log = reward, groups, config, log
        self._until = now() + config.rewards.timeout_s
        self._running = _start(reward, groups, config, log)

    def stop(self) -> None:
        """End the function if it still runs."""
        self._running.stop()

    def values(self) -> Outcomes:
        """Return the PxG values, None for what failed where `rewards.on_error` is `missing`. Raises PluginError
        otherwise, with the first sample on which the function fails when it is called with that alone."""
        try:
            flat, problems = _checked(self._reward, self._running.result(self._until), self._groups)
        except _WrongShapeError as error:
            hint = _remedy(error, self._reward, "return a value, or None, for each completion")
            raise PluginError(f"{self._reward.where} {error}", hint=hint) from error
        except Exception as error:
            flat = self._without(error)
        else:
            if problems:
                self._fail_or_notify(problems)
        return _nested(flat, self._groups)

    def _without(self, error: Exception) -> Flat:
        """Return the values after the call failed with `error`: those of the completions that can be scored alone."""
        reward, whole = self._reward, _described(error, self._reward)
        count = sum(len(group.rollouts) for group in self._groups)
        if isinstance(error, PastDeadlineError) or reward.options.whole_step:
            self._fail_or_notify(dict.fromkeys(range(count), whole), error, whole)
            return [None] * count
        flat, problems = _one_by_one(reward, self._groups, self._config, self._log.state)
        if problems:
            self._fail_or_notify(problems, error)
        elif self._config.rewards.on_error == "stop":
            self._fail_or_notify({}, error, whole)
        return flat

    def _fail_or_notify(self, problems: Mapping[int, str], cause: Exception | None = None, whole: str = "") -> None:
        """Raise PluginError for what is wrong at these places, or with the `whole` call; an event instead where
        `rewards.on_error` is `missing`."""
        place = next(iter(problems), 0)
        problem = f": {whole}" if whole else f" on {_sample(self._groups, place)}: {problems[place]}"
        if self._config.rewards.on_error == "stop":
            hint = "correct it; or a new run with --set rewards.on_error=missing leaves out what fails"
            if isinstance(cause, PastDeadlineError):
                hint = "make it faster; or a new run with --set rewards.timeout_s=SECONDS gives it more time"
            raise PluginError(
                f"{self._reward.where} failed{problem}", hint=_remedy(cause, self._reward, hint)
            ) from cause
        from smolsum.llm.request_policy import current_hook

        count = sum(len(group.rollouts) for group in self._groups)
        message = f"{self._reward.where} gave no value for {len(problems)} of {count} completions{problem}"
        current_hook().notify("reward_missing", message)


def _remedy(error: Exception | None, reward: CustomReward, usual: str) -> str:
    """Return the hint for an error: TRL's conversational form has to be chosen."""
    indexed = isinstance(error, TypeError | IndexError | AttributeError) and CHAT_AS_TEXT.search(_text(error))
    if indexed and not (reward.options.chats or reward.options.whole_step):
        return (
            "prompts and completions are texts; for a function that reads messages, such as "
            'completion[0]["content"], write @smolsum.reward(chats=True) above it'
        )
    return usual


def _one_by_one(
    reward: CustomReward, groups: Sequence[RolloutGroup], config: Config, state: TrainerState
) -> tuple[Flat, dict[int, str]]:
    """Return the value of each completion scored alone, and what went wrong by place: all of it, or only the first
    failure if that stops the run. What these calls log is dropped."""
    until = now() + config.rewards.timeout_s
    flat: Flat = []
    problems: dict[int, str] = {}
    for place, single in enumerate(_singles(groups)):
        flat.append(None)
        if problems and config.rewards.on_error == "stop":
            continue
        try:
            running = _start(reward, [single], config, RewardLog([1], state))
            (flat[-1],), wrong = _checked(reward, running.result(until), [single])
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


def _arguments(reward: CustomReward, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> dict[str, Any]:
    """Return what the function gets by name: N values of each, and what TRL gives besides."""
    singles = list(_singles(groups))
    prompts, rollouts = [one.prompt for one in singles], [one.rollouts[0] for one in singles]
    columns = dict.fromkeys(name for prompt in prompts for name in prompt.metadata)
    given: dict[str, Any] = {name: [_copied(prompt.metadata.get(name)) for prompt in prompts] for name in columns}
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
    given |= {"trainer_state": log.state, "log_extra": log.log_extra, "log_metric": log.log_metric}
    required, optional, others = reward.accepts()
    # a column that only some rows have, and that this batch therefore lacks
    given |= {name: [None] * len(singles) for name in required if name not in given}
    return {name: values for name, values in given.items() if others or name in (*required, *optional)}


def _copied(value: Any) -> Any:
    """Return a copy of what a function could change in the data."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def _checked(
    reward: CustomReward, rows: list[Any] | str, groups: Sequence[RolloutGroup]
) -> tuple[Flat, dict[int, str]]:
    """Return the N values of what `_listed` made of a result, and what is wrong with some, by place: those are None.
    Raises _WrongShapeError where there is not a value for each completion."""
    sizes = [len(group.rollouts) for group in groups]
    if isinstance(rows, str):
        raise _WrongShapeError(f"returned {rows}, not a list of {sum(sizes)} numbers")
    if reward.options.whole_step:
        if [len(row) if isinstance(row, list) else -1 for row in rows] != sizes:
            raise _WrongShapeError(f"did not return {len(sizes)} lists (groups) of {sizes[0]} values (completions)")
        rows = [value for row in rows for value in row]
    if len(rows) != sum(sizes):
        raise _WrongShapeError(f"returned {len(rows)} values for {sum(sizes)} completions")
    flat: Flat = []
    problems: dict[int, str] = {}
    for place, value in enumerate(rows):
        number = NotApplicable.VALUE if value is None else _number(value)
        if number is None:
            problems[place] = f"it returned {_text(value, repr):.80}, not a finite number (None: it does not apply)"
        flat.append(number)
    return flat, problems


def _listed(value: Any, depth: int) -> list[Any] | str:
    """Return the values of a list, tuple, array or generator, to this depth; the type of anything else. It runs where
    the function does, as a generator is the user's code too."""
    if value is None or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return "None" if value is None else type(value).__name__
    try:
        rows = iter(value)
    except TypeError:  # an array without dimensions
        return type(value).__name__
    return [_listed(row, depth - 1) if depth > 1 else row for row in rows]


def _number(value: Any) -> float | None:
    """Return a value as a number that a 32-bit float holds; None for anything else."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except Exception:  # whatever a user's class raises, or a whole number that is too large
        return None
    return number if abs(number) <= LARGEST else None  # not for NaN either


def _nested(flat: Flat, groups: Sequence[RolloutGroup]) -> Outcomes:
    values = iter(flat)
    return [[next(values) for _ in group.rollouts] for group in groups]


def _described(error: BaseException, reward: CustomReward) -> str:
    """Return an exception with its line in the user's file."""
    if isinstance(error, PastDeadlineError):
        return str(error)
    said = _text(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, EndedError):
        text = said
    frames = traceback.extract_tb(error.__traceback__)
    last = ([one for one in frames if one.filename == reward.file] or frames)[-1]
    code = f": {last.line}" if last.line else ""
    return f"{text} (line {last.lineno} of {Path(last.filename).name}{code})"


def _text(value: Any, form: Callable[[Any], str] = str) -> str:
    """Return a value as text; only its type where its own class cannot say it."""
    try:
        return form(value)
    except Exception:  # a user's class may raise anything
        return f"<{type(value).__name__}>"


def _start(reward: CustomReward, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> Running:
    """Call the function in the background."""
    function, whole = reward.function, reward.options.whole_step
    call = partial(function, groups, config) if whole else partial(function, **_arguments(reward, groups, config, log))
    depth = 2 if whole else 1

    async def awaited() -> list[Any] | str:
        return _listed(await call(), depth)

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return Awaited(awaited)
    return Running(lambda: _listed(call(), depth))
