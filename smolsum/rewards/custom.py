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
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

from smolsum.config.sections import Config
from smolsum.errors import PluginError, UsageError
from smolsum.rewards.background import EndedError, NoAnswerError, PastDeadlineError, Running, RunningAsync, now, text_of
from smolsum.rewards.signal import Background, Facts, NotApplicable, Outcomes, RewardLog
from smolsum.types import RolloutGroup

Better: TypeAlias = Literal["higher", "lower"]
Flat: TypeAlias = list[float | NotApplicable | None]
"""N = PxG values, None for what failed"""
F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = "__smolsum_reward__"
"""the attribute that `reward` leaves on a function"""
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
    for one in fields(options):
        value: Any = getattr(options, one.name)
        if type(value) is not type(one.default):
            kind, shown = ("a text", '"…"') if isinstance(one.default, str) else ("True or False", "True")
            hint = f"@smolsum.reward({one.name}={shown})"
            raise UsageError(f"reward({one.name}={value!r:.80}) is not {kind}", hint=hint)
    if better not in get_args(Better):
        raise UsageError(f"reward(better={better!r:.80}) is not higher or lower", hint='better="lower"')

    def mark(marked: F) -> F:
        setattr(marked, OPTIONS, options)
        return marked

    return mark if function is None else mark(function)


def make_reward(function: Callable[..., Any], *, file: str, sha256: str, name: str = "") -> CustomReward:
    """Return the signal of a function, marked with `reward` or not. Raises UsageError for a function that cannot be
    called as TRL calls rewards, and for a name that is no name of a signal."""
    options = getattr(function, OPTIONS, RewardOptions())
    own = name or options.name or getattr(function, "__name__", type(function).__name__)
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
    return CustomReward(own, function, options, file, sha256)


class _WrongShapeError(Exception):
    """The function returned no list with a value for each completion; completed by the name before it."""


@dataclass(frozen=True)
class CustomReward(Background):
    """A signal made of a user's function; `file` is where the function is written."""

    name: str
    function: Callable[..., Any]
    options: RewardOptions
    file: str
    sha256: str
    """of the file, or of the function's source text"""

    @property
    def facts(self) -> Facts:
        """What the function's mark and docstring say of it."""
        first = (inspect.getdoc(self.function) or "").partition("\n")[0].strip().rstrip(".")
        return Facts("", self.options.range, self.options.meaning or first, by_length=self.options.uses_length)

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

    @contextmanager
    def begin(self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> Iterator[Callable[[], Outcomes]]:
        """Call the function in the background, and give what waits for its values and raises what `_outcomes` does."""
        until = now() + config.rewards.timeout_s
        running = self._start(groups, config, log, until)
        try:
            yield lambda: self._outcomes(running, groups, config, log)
        finally:
            running.stop()

    def _start(self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog, until: float) -> Running:
        function, depth = self.function, 2 if self.options.whole_step else 1
        if self.options.whole_step:
            call = partial(function, groups, config)
        else:
            call = partial(function, **self._arguments(groups, config, log))
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

            async def listed() -> list[Any] | str:
                return _listed(await call(), depth)

            return RunningAsync(listed, until)
        return Running(lambda: _listed(call(), depth), until)

    def _arguments(self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> dict[str, Any]:
        """Return what the function gets by name: N values of each, and what TRL gives besides."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        prompts = [group.prompt for group in groups for _ in group.rollouts]
        columns = dict.fromkeys(name for prompt in prompts for name in prompt.metadata)
        given: dict[str, Any] = {name: [_copied(prompt.metadata.get(name)) for prompt in prompts] for name in columns}
        given[config.data.completion_column] = [
            prompt.references[0] if len(prompt.references) == 1 else list(prompt.references) or None
            for prompt in prompts
        ]
        if self.options.chats:
            given["prompts"] = [[dict(message) for message in prompt.messages] for prompt in prompts]
            given["completions"] = [[{"role": "assistant", "content": rollout.text}] for rollout in rollouts]
        else:
            given["prompts"] = [prompt.source for prompt in prompts]
            given["completions"] = [rollout.text for rollout in rollouts]
        given["completion_ids"] = [list(rollout.token_ids) for rollout in rollouts]
        given["references"] = [list(prompt.references) for prompt in prompts]
        given |= {"trainer_state": log.state, "log_extra": log.log_extra, "log_metric": log.log_metric}
        required, optional, others = self.accepts()
        # a column that only some rows have, and that this batch therefore lacks
        given |= {name: [None] * len(prompts) for name in required if name not in given}
        return {name: values for name, values in given.items() if others or name in (*required, *optional)}

    def _outcomes(self, running: Running, groups: Sequence[RolloutGroup], config: Config, log: RewardLog) -> Outcomes:
        """Return the PxG values, None for what failed where `rewards.on_error` is `missing`. Raises PluginError
        otherwise, with the first sample on which the function fails when it is called with that alone."""
        samples = [f"sample {n} of prompt {one.prompt.id!r}" for one in groups for n in range(len(one.rollouts))]
        cause: Exception | None = None
        whole = ""
        try:
            flat, problems = self._checked(running.result(), groups)
        except _WrongShapeError as error:
            hint = self._hint(error, "return a value, or None, for each completion")
            raise PluginError(f"{self.where} {error}", hint=hint) from error
        except Exception as error:
            cause, whole = error, self._described(error)
            if isinstance(error, NoAnswerError) or self.options.whole_step:
                flat, problems = [None] * len(samples), dict.fromkeys(range(len(samples)), whole)
            else:
                flat, problems = self._one_by_one(groups, config, log)
                whole = "" if problems else whole
        problem = f": {whole}"
        if problems and not whole:
            place, wrong = next(iter(problems.items()))
            problem = f" on {samples[place]}: {wrong}"
        if config.rewards.on_error == "stop" and (problems or cause):
            hint = "correct it; or a new run with --set rewards.on_error=missing leaves out what fails"
            if isinstance(cause, PastDeadlineError):
                hint = "make it faster; or a new run with --set rewards.timeout_s=SECONDS gives it more time"
            raise PluginError(f"{self.where} failed{problem}", hint=self._hint(cause, hint)) from cause
        if problems:
            from smolsum.console import current_hook

            lost = f"gave no value for {len(problems)} of {len(samples)} completions"
            current_hook().notify("reward_missing", f"{self.where} {lost}{problem}")
        values = iter(flat)
        return [[next(values) for _ in group.rollouts] for group in groups]

    def _one_by_one(
        self, groups: Sequence[RolloutGroup], config: Config, log: RewardLog
    ) -> tuple[Flat, dict[int, str]]:
        """Return the value of each completion scored alone, and what went wrong by place: all of it, or only the first
        failure if that stops the run. What these calls log is dropped."""
        until = now() + config.rewards.timeout_s
        flat: Flat = []
        problems: dict[int, str] = {}
        for single in (RolloutGroup(one.prompt, (rollout,)) for one in groups for rollout in one.rollouts):
            flat.append(None)
            if problems and config.rewards.on_error == "stop":
                continue
            try:
                running = self._start([single], config, RewardLog([1], log.state), until)
                try:
                    (flat[-1],), wrong = self._checked(running.result(), [single])
                finally:
                    running.stop()
                problems |= {len(flat) - 1: one for one in wrong.values()}
            except _WrongShapeError as error:
                problems[len(flat) - 1] = str(error)
            except Exception as error:
                problems[len(flat) - 1] = self._described(error)
        return flat, problems

    def _checked(self, rows: list[Any] | str, groups: Sequence[RolloutGroup]) -> tuple[Flat, dict[int, str]]:
        """Return the N values of what `_listed` made of a result, and what is wrong with some, by place: those are
        None. Raises _WrongShapeError where there is not a value for each completion."""
        sizes = [len(group.rollouts) for group in groups]
        if isinstance(rows, str):
            raise _WrongShapeError(f"returned {rows}, not a list of {sum(sizes)} numbers")
        if self.options.whole_step:
            if [len(row) if isinstance(row, list) else -1 for row in rows] != sizes:
                raise _WrongShapeError(f"did not return {len(sizes)} lists (groups) of {sizes[0]} values (completions)")
            rows = [value for row in rows for value in row]
        if len(rows) != sum(sizes):
            raise _WrongShapeError(f"returned {len(rows)} values for {sum(sizes)} completions")
        flat: Flat = [NotApplicable.VALUE if value is None else _number(value) for value in rows]
        problems = {
            place: f"it returned {text_of(value, repr):.80}, not a finite number (None: it does not apply)"
            for place, value in enumerate(rows)
            if flat[place] is None
        }
        return flat, problems

    def _hint(self, error: Exception | None, usual: str) -> str:
        """Return the hint for an error: TRL's conversational form has to be chosen."""
        indexed = isinstance(error, TypeError | IndexError | AttributeError) and CHAT_AS_TEXT.search(text_of(error))
        if indexed and not (self.options.chats or self.options.whole_step):
            return (
                "prompts and completions are texts; for a function that reads messages, such as "
                'completion[0]["content"], write @smolsum.reward(chats=True) above it'
            )
        return usual

    def _described(self, error: Exception) -> str:
        """Return an exception with its line in the user's file."""
        said = text_of(error)
        if isinstance(error, NoAnswerError):
            return said
        text = said if isinstance(error, EndedError) else f"{type(error).__name__}: {said}".removesuffix(": ")
        frames = traceback.extract_tb(error.__traceback__)
        last = ([one for one in frames if one.filename == self.file] or frames)[-1]
        code = f": {last.line}" if last.line else ""
        return f"{text} (line {last.lineno} of {Path(last.filename).name}{code})"


def _copied(value: Any) -> Any:
    """Return a copy of what a function could change in the data."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


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
