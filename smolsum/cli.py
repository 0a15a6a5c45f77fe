"""The command line: parse, dispatch, and turn every failure into `error:`, `hint:` and an exit code.

Nothing heavy is imported at module level, so that `smolsum --help` answers at once: each command imports what
it runs. Typer's markup is off for the same reason (its help would load Rich), and its handling of exceptions
too, as errors look alike wherever they come from.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smolsum import console
from smolsum.errors import SmolsumError, UsageError

if TYPE_CHECKING:
    from smolsum.config import Config

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
    # the command notes here whether tracebacks are wanted
    told: dict[str, Any] = {"debug": False}
    try:
        code = app(args, prog_name="smolsum", standalone_mode=False, obj=told)
    except SmolsumError as failure:
        return _fail(failure, told)
    except typer.TyperException as failure:
        message = failure.format_message().rstrip(".")
        help_page = f"smolsum {args[0]} --help" if args and args[0] in ("train", "stats") else "smolsum --help"
        return _fail(UsageError(message[:1].lower() + message[1:], hint=help_page), told)
    except KeyboardInterrupt:
        code = 130
    except Exception as failure:
        hint = None if told["debug"] else f"smolsum {shlex.join([*args, '--debug'])}"
        unexpected = SmolsumError(f"unexpected {type(failure).__name__}: {failure}", hint=hint)
        unexpected.__cause__ = failure
        return _fail(unexpected, told)
    # Typer turns a Ctrl-C inside a command into this code and says nothing
    if code == 130:
        console.error(KeyboardInterrupt("interrupted"))
    return code or 0


def _fail(failure: SmolsumError, told: dict[str, Any]) -> int:
    if told["debug"]:
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
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train tiny language models to obey a hard output constraint with GRPO.

    Results go to stdout, everything said to a person to stderr.
    """
    if context.invoked_subcommand is None:
        console.narrate(context.get_help())
        raise typer.Exit(2)


@app.command(epilog=_EXIT_CODES)
def train(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Preset (tiny, tiny-lfm, qwen, lfm), local directory or hub id.  [default: tiny]",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY",
            help="finetuned: length first, then quality; included: both at once.  [default: finetuned]",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="SIGNALS",
            help="Quality signals: rouge, meteor, bleu or several joined by '-', overlong among them to punish coming "
            "near the token limit; length: no quality signal.  [default: meteor]",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Shipped settings, e.g. study: as the study ran, flaws included; repeatable."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings in TOML; a run's config.toml repeats that run."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, e.g. grpo.beta=0.1 or stages.length.steps=50; repeatable.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the run.  [default: model, strategy, rewards and time]"),
    ] = None,
    runs_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Directory of all runs.  [default: $SMOLSUM_RUNS_DIR or runs]"),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a stopped run, exactly where it was."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print all settings with their sources and the steps; stop.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No colour, no bar: one plain line a report.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a model with GRPO and print the directory of the run.

    \b
    Minutes on two CPU cores:
      smolsum train --model tiny --strategy finetuned --reward meteor
    """
    context.obj["debug"] = debug
    console.set_plain(plain)
    if resume is not None:
        given = {
            "--model": model is not None,
            "--strategy": strategy is not None,
            "--reward": reward is not None,
            "--preset": bool(preset),
            "--config": config is not None,
            "--set": bool(sets),
            "--name": name is not None,
            "--seed": seed is not None,
            "--dry-run": dry_run,
        }
        _check_resume(resume, [flag for flag, is_given in given.items() if is_given])
    if quiet or not console.live():
        _silence_hub_bars()

    from smolsum.resolve import render_with_sources, resolve

    flags = {"train.seed": seed, "run.name": name, "run.dir": runs_dir}
    resolved = resolve(
        model=model,
        strategy=strategy,
        reward=reward,
        presets=preset or [],
        config_file=config,
        sets=sets or [],
        flags=flags,
        environ=os.environ,
    )
    if dry_run:
        show_plan = None if quiet else _plan(resolved.config)  # first what may fail
        console.data(render_with_sources(resolved).rstrip())
        if show_plan:
            show_plan()
        return

    from smolsum.progress import Progress

    with Progress(quiet=quiet) as progress:
        progress.phase("starting")  # the imports below take seconds on a cold disk
        from smolsum.train import train as run_training

        settings = _settings_of(resume, resolved.config.run.dir) if resume else resolved.config
        run_dir = run_training(settings, resume=resume, progress=progress)
    console.data(str(run_dir))


@app.command(epilog=_EXIT_CODES)
def stats(
    context: typer.Context,
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="SCORES",
            help="A run, an evaluation's folder or JSON Lines with an id and numbers. NAME=A,B,C counts as one "
            "side: seeds of a configuration, runs of a strategy.",
            show_default=False,
        ),
    ],
    paired: Annotated[bool, typer.Option("--paired", help="Compare A with B, the default for two: B - A.")] = False,
    vs_baseline: Annotated[
        str | None,
        typer.Option(metavar="A", help="Compare every SCORES with A; runs that differ only in their seed become one."),
    ] = None,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Pearson correlation of metrics, all SCORES pooled.")
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeatable.  [default: all]")
    ] = None,
    alternative: Annotated[
        Literal["two-sided", "greater", "less"],
        typer.Option(help="What is asked of B: that it differs, is greater, is less."),
    ] = "two-sided",
    matched: Annotated[
        bool, typer.Option("--matched", help="The runs of both sides belong together in the order given.")
    ] = False,
    form: Annotated[
        Literal["table", "md", "csv", "json"], typer.Option("--format", help="How results are written.")
    ] = "table",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of resampling.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="No colour.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare evaluations example by example, and say how sure the difference is.

    \b
    Did training help?
      smolsum stats --paired runs/mine/eval/start-test runs/mine
    Which of many runs did?
      smolsum stats --vs-baseline runs/length runs/meteor runs/rouge
    One strategy against another, run by run:
      smolsum stats --matched joint=runs/j1,runs/j2 staged=runs/s1,runs/s2

    The exit code is 0 whatever the significance.
    """
    context.obj["debug"] = debug
    console.set_plain(plain)
    kinds = [
        flag
        for flag, given in {"--paired": paired, "--vs-baseline": vs_baseline, "--correlation": correlation}.items()
        if given
    ]
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} are different questions", hint="ask them one at a time")
    if correlation and (matched or alternative != "two-sided"):
        raise UsageError(
            "--correlation has no sides, so it takes no --matched and no --alternative", hint="leave them out"
        )
    if (not kinds or paired) and len(scores) != 2:
        raise UsageError(
            f"--paired compares two scores, not {len(scores)}",
            hint="name A and B, or --vs-baseline A for many, or join the runs of one side with ','",
        )

    from smolsum.stats.compare import Options, against_baseline, correlations
    from smolsum.stats.compare import paired as compare_two
    from smolsum.stats.render import show
    from smolsum.stats.sides import combine_seeds, distinct, load_side

    options = Options(tuple(metric or ()), alternative, matched, seed)
    sides = [load_side(argument) for argument in scores]
    if vs_baseline is not None:
        baseline = load_side(vs_baseline)
        report = against_baseline(baseline, combine_seeds(distinct(sides, but=baseline)), options)
    elif correlation:
        report = correlations(distinct(sides), options)
    else:
        a, b = sides
        report = compare_two(a, b, options)
    show(report, form)


def _plan(config: Config) -> Callable[[], None]:
    """What shows the stages with their optimizer steps, and the memory that they take, as tables."""
    from smolsum.data import load_split
    from smolsum.materials import forecast
    from smolsum.plan import needs_data, planned_steps

    prompts = len(load_split(config.data, "train").examples) if needs_data(config) else 0
    steps = planned_steps(config, prompts)
    memory = forecast(config)

    def show() -> None:
        console.table(["stage", "steps"], [[stage, str(count)] for stage, count in steps.items()])
        if memory is None:
            where = f"is on this machine (hf download {config.model.path})"
            console.narrate(f"memory: known once {config.model.path} {where}")
        else:
            console.table(["memory", "GB"], [[name, f"{size:.2f}"] for name, size in memory.items()])

    return show


def _settings_of(run: str, runs_dir: str) -> Config:
    """The settings that a run began with; it is found by its name in `runs_dir`, or by its path."""
    from smolsum.resolve import resolve
    from smolsum.runs import open_run

    paths = open_run(run, Path(runs_dir))
    return resolve(
        model=None,
        strategy=None,
        reward=None,
        presets=[],
        config_file=paths.config,
        sets=[],
        flags={"run.dir": str(paths.root.parent)},
        environ={},
    ).config


def _check_resume(run: str, flags: Sequence[str]) -> None:
    """UsageError where flags ask a resumed run to be another one."""
    if flags:
        raise UsageError(
            f"--resume goes on with the run's own settings, so it takes no {', '.join(flags)}",
            hint=f"smolsum train --resume {shlex.quote(run)}, or a new run from its settings with --config",
        )


def _silence_hub_bars() -> None:
    """Switches off the progress bars of the Hugging Face libraries, unless the user has set them.

    Both libraries read these variables when imported.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
