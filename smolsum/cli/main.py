"""The command line: parse, dispatch, and turn every failure into `error:`, `hint:` and an exit code.

Nothing heavy is imported at module level, so that `smolsum --help` answers at once: each command imports what it runs.
Typer's markup is off for the same reason (its help would load Rich), and so is its handling of exceptions, as all
errors are printed alike.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from smolsum import console
from smolsum.cli.data import data
from smolsum.cli.doctor import doctor
from smolsum.cli.evaluate import baseline, evaluate
from smolsum.cli.export import export, push
from smolsum.cli.options import Invocation, command
from smolsum.cli.plan import plan
from smolsum.cli.report import report
from smolsum.cli.runs import runs
from smolsum.cli.serve_worker import serve_worker
from smolsum.cli.stats import stats
from smolsum.cli.track import track
from smolsum.cli.train import train
from smolsum.cli.verify import verify
from smolsum.cli.watch import watch
from smolsum.errors import SmolsumError, UsageError

# \b keeps the lines of a paragraph as they are
_EXIT_CODES = """\b
Exit codes:
  0    done
  1    the work failed; partial results are kept
  2    a flag, a configuration value or an input file is wrong
  3    a worker, judge or hub does not answer
  4    this machine cannot do it
  130  interrupted; what was saved can be resumed
"""

app = typer.Typer(
    epilog=_EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command in `argv` (default: the process's arguments) and returns its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    invocation = Invocation(args)
    try:
        code = app(args, prog_name="smolsum", standalone_mode=False, obj=invocation)
    except SmolsumError as failure:
        return _fail(failure, invocation)
    except typer.TyperException as failure:
        message = failure.format_message().rstrip(".").replace("Value error, ", "")  # which Pydantic adds
        help_page = f"smolsum {args[0]} --help" if args and args[0] in COMMANDS else "smolsum --help"
        return _fail(UsageError(message[:1].lower() + message[1:], hint=help_page), invocation)
    except KeyboardInterrupt:
        code = 130
    except Exception as failure:  # a fault of the program: say so like any other error
        hint = None if invocation.debug else f"{invocation.command_line} --debug"
        unexpected = SmolsumError(f"unexpected {type(failure).__name__}: {failure}", hint=hint)
        unexpected.__cause__ = failure
        return _fail(unexpected, invocation)
    # Typer turns a Ctrl-C inside a command into this code and says nothing
    if code == 130 and not invocation.explained:
        console.error(KeyboardInterrupt("interrupted"))
    return code or 0


def _fail(failure: SmolsumError, invocation: Invocation) -> int:
    if invocation.debug:
        import traceback

        traceback.print_exception(failure)
    console.error(failure)
    return failure.exit_code


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.data(f"smolsum {version('smolsum')}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _app(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train tiny language models to obey a hard output constraint with GRPO.

    Results go to stdout, messages to stderr.
    """
    if context.invoked_subcommand is None:
        console.narrate(context.get_help())
        raise typer.Exit(2)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "train": train,
    "serve-worker": serve_worker,
    "watch": watch,
    "baseline": baseline,
    "eval": evaluate,
    "stats": stats,
    "plan": plan,
    "report": report,
    "verify": verify,
    "export": export,
    "push": push,
    "track": track,
    "data": data,
    "runs": runs,
    "doctor": doctor,
}
for _name, _function in COMMANDS.items():
    app.command(_name, epilog=_EXIT_CODES)(command(_function))
