"""Flags that several commands share, each declared once, and the state that commands share with `main`.

A flag is an alias such as `TaskFlag`; flags that always come together are a record such as `OutputFlags`, which a
command takes as one parameter. `command` spreads such records over the signature that Typer reads.
"""

import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from smolsum import console
from smolsum.errors import UsageError
from smolsum.tasks import DEFAULT_TASK, NAMES

TaskFlag = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help=f"What the model has to do: {', '.join(NAMES)}, or the file of a task.  [default: {DEFAULT_TASK}]",
    ),
]
PluginFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Python file with rewards, a task or criteria of your own; FILE.py:FUNCTION for one reward; repeatable.",
    ),
]
RunsFlag = Annotated[
    str | None,
    typer.Option("--runs-dir", metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
]
WorkerFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        metavar="URL",
        help="Let this `smolsum serve-worker` sample; repeatable.  [default: $SMOLSUM_WORKERS, separated by commas]",
    ),
]
PresetFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="Shipped settings: study: as the study ran, flaws included; kalomaze: constant rate after a warm-up, "
        "tight clipping; small: a small model of your own; a task's own (docs/); repeatable.",
    ),
]
VllmPythonFlag = Annotated[
    str | None,
    typer.Option("--vllm-python", metavar="PATH", help="Python of the environment that has vLLM.  [default: this one]"),
]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def worker_list(flag: list[str] | None) -> str | None:
    """The value of `workers.urls` for --worker; None without the flag. Raises UsageError for an empty one."""
    if flag and not all(url.strip() for url in flag):
        raise UsageError("--worker is empty", hint="--worker http://HOST:PORT, as serve-worker prints it")
    return ",".join(flag) if flag else None


def set_option(examples: str) -> Any:
    """`--set` with examples that suit the command."""
    return typer.Option("--set", metavar="KEY=VALUE", help=f"One setting, e.g. {examples}; repeatable.")


@dataclass(frozen=True)
class OutputFlags:
    """How much a long command prints, and how."""

    plain: Annotated[bool, typer.Option("--plain", help="No colour and no progress bar: one line per update.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False

    def apply(self) -> None:
        """Set up the console, and the progress bars of the Hugging Face libraries unless the user has set them.

        Both libraries read these variables when they are imported.
        """
        console.set_plain(self.plain)
        if self.quiet or not console.live():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@dataclass
class Invocation:
    """One call of `smolsum`: what a command that asks for it learns, and leaves for `main`."""

    arguments: Sequence[str]
    flags: Sequence[str] = ()
    """Flags that were given, in the order of the help."""
    debug: bool = False
    """Whether an error shows its traceback."""
    explained: bool = False
    """Whether the reason for a non-zero exit code is already on stderr."""

    @property
    def command_line(self) -> str:
        """The command as it was typed, quoted for a shell."""
        return shlex.join(["smolsum", *self.arguments])


def runs_folder(flag: str | None) -> Path:
    """Return the directory of all runs: the flag, the environment, or `runs`."""
    return Path(flag or os.environ.get("SMOLSUM_RUNS_DIR") or "runs")


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` as Typer takes it: its own flags, then the fields of each record among its parameters, then
    --debug. A parameter `invocation` is filled in."""
    own: list[inspect.Parameter] = []
    records: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            records[parameter.name] = parameter.annotation
        else:
            own.append(_parameter(parameter.name, parameter.annotation, parameter.default))
    takes_invocation = records.pop("invocation", None) is not None
    shared = []
    for record in records.values():
        hints = get_type_hints(record, include_extras=True)
        shared += [_parameter(field.name, hints[field.name], field.default) for field in fields(record)]
    parameters = [_parameter("context", typer.Context), *own, *shared, _parameter("debug", DebugFlag, False)]

    @wraps(function)
    def run(context: typer.Context, *, debug: bool, **given: Any) -> None:
        invocation: Invocation = context.obj
        invocation.debug = debug
        invocation.flags = [one.opts[0] for one in context.command.params if one.name and _is_given(context, one.name)]
        _refuse_repeated(context, invocation.arguments)
        for name, record in records.items():
            given[name] = record(**{field.name: given.pop(field.name) for field in fields(record)})
        function(**given, **({"invocation": invocation} if takes_invocation else {}))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _refuse_repeated(context: typer.Context, arguments: Sequence[str]) -> None:
    """Raise UsageError for an option of one value that is given twice, of which only the last would count."""
    typed = [argument.partition("=")[0] for argument in arguments]
    for one in context.command.params:
        single = one.nargs == 1 and not getattr(one, "multiple", True) and not getattr(one, "is_flag", True)
        if single and sum(map(typed.count, one.opts)) > 1:
            raise UsageError(f"{one.opts[0]} takes one value, and is given more than once", hint="give it once")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
