"""`smolsum train`.

What is known to be wrong with settings before anything is loaded.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.options import TaskFlag, silence_hub_bars
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.config.sections import Config


def foresee(configs: Sequence[Config], *, warn: bool) -> None:
    """UsageError for a mirror that none can be; nobody is asked. With `warn` also the tasks' warnings, each once, which
    a run gives itself."""
    for url in {config.run.mirror for config in configs if config.run.mirror}:
        from smolsum.runs.mirror.store import check_mirror

        check_mirror(url)
    if warn:
        from smolsum.tasks import TASKS

        for warning in dict.fromkeys(said for config in configs for said in TASKS[config.task.name].check(config)):
            console.warn(warning)


OF_THE_VIEW = ("--watch", "--ascii", "--readonly")


def train(
    context: typer.Context,
    task: TaskFlag = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Preset (tiny, tiny-lfm, qwen, lfm), local directory or hub id; repeatable; all: the study's qwen and "
            "lfm.  [default: the task's, tiny]",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRATEGY",
            help="finetuned: length first, then quality; included: both at once; other tasks have their own; "
            "repeatable; all: each.  [default: the task's, finetuned]",
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIGNALS",
            help="Quality signals: rouge, meteor, bleu or several joined by '-', overlong among them to punish coming "
            "near the token limit; length: no quality signal; repeatable; all: the study's six.  [default: the task's, "
            "meteor]",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Shipped settings: study: as the study ran, flaws included; kalomaze: constant rate after a warm-up, "
            "tight clipping; a task's own (README.md); repeatable.",
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
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Let this `smolsum serve-worker` sample; repeatable.  [default: $SMOLSUM_WORKERS, by comma]",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep the run there too while it trains (s3://BUCKET/FOLDER, or any fsspec URL); none: nowhere.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a stopped run, exactly where it was; a mirrored one by its URL."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Train in a process of its own, and open the live view on it.")
    ] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="With --watch: draw with ASCII characters only.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="With --watch: without pause and stop.")] = False,
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
    The whole study; what is done is not trained again:
      smolsum train --model all --strategy all --reward all --dry-run
    """
    context.obj["debug"] = debug
    console.set_plain(plain)
    if resume is not None:
        given = {
            "--task": task is not None,
            "--model": bool(model),
            "--strategy": bool(strategy),
            "--reward": bool(reward),
            "--preset": bool(preset),
            "--config": config is not None,
            "--set": bool(sets),
            "--name": name is not None,
            "--seed": seed is not None,
            "--dry-run": dry_run,
        }
        _check_resume(resume, [flag for flag, is_given in given.items() if is_given])
    if (ascii or readonly) and not watch:
        raise UsageError("--ascii and --readonly are for the view that --watch opens", hint="add --watch")
    if quiet or not console.live():
        silence_hub_bars()

    from smolsum.cli.grid import select
    from smolsum.config.resolve import render_with_sources, resolve

    workers = ",".join(worker) if worker else None
    kept = {"workers.urls": workers, "run.mirror": "" if mirror == "none" else mirror}
    flags = {"task.name": task, "train.seed": seed, "run.name": name, "run.dir": runs_dir, **kept}
    chosen = select(model, strategy, reward, task)
    if chosen.is_grid:
        from smolsum.cli.grid import plan, refuse_single, show_plan

        refuse_single([flag for flag, given in (("--name", name is not None), ("--watch", watch)) if given])
        planned = plan(
            chosen, presets=preset or [], config_file=config, sets=sets or [], flags=flags, environ=os.environ
        )
        foresee([one.config for one in planned], warn=dry_run)
        if dry_run:
            show_plan(planned)
            return
        from smolsum.cli.grid_train import train_grid

        train_grid(planned, quiet=quiet, remedy=shlex.join(["smolsum", *context.obj["arguments"]]))
        return
    from smolsum.tasks import TASKS

    resolved = resolve(
        TASKS,
        model=chosen.models[0],
        strategy=chosen.strategies[0],
        reward=chosen.rewards[0],
        presets=preset or [],
        config_file=config,
        sets=sets or [],
        flags=flags,
        environ=os.environ,
    )
    foresee([resolved.config], warn=dry_run)
    if watch and not dry_run:
        folder = Path(_folder_of(resume, resolved.config.run.dir))
        if code := _train_and_watch(context.obj["arguments"], folder, ascii=ascii, readonly=readonly):
            context.obj["said"] = True  # by the training, or by the view on it
            raise typer.Exit(max(1, code))  # killed by a signal: a negative number
        return
    if dry_run:
        print_plan = None if quiet else _plan(resolved.config)  # first what may fail
        console.data(render_with_sources(resolved).rstrip())
        if print_plan:
            print_plan()
        return

    from smolsum.train.progress import Progress

    made: list[Path] = []
    try:
        with Progress(quiet=quiet) as progress:
            progress.phase("starting")  # the imports below take seconds on a cold disk
            from smolsum.train.loop import train as run_training

            if resume and "://" in resume:
                run_dir, mirrored = resolved.config.run.dir, kept["run.mirror"]
                resume, kept["run.mirror"] = _fetched(resume, run_dir, mirrored, progress.note)
            settings = _settings_of(resume, resolved.config.run.dir, kept) if resume else resolved.config
            run_training(settings, resume=resume, progress=progress, begun=made.append)
    finally:  # however it ends: what goes on with the run needs its name
        for run in made:
            console.data(str(run))


def _train_and_watch(arguments: Sequence[str], runs_dir: Path, *, ascii: bool, readonly: bool) -> int:
    """Starts the training beside this process and shows it; prints the run's directory when the view is left. Returns
    the training's exit code, 0 while it goes on."""
    from smolsum.cli.watch import able_to_draw, show
    from smolsum.watch.launch import launch

    if not able_to_draw():
        raise UsageError("--watch needs a terminal that can be redrawn", hint="leave --watch out")
    launched, paths = launch(
        [*(argument for argument in arguments if argument not in OF_THE_VIEW), "--plain"], runs_dir
    )
    if paths is None:
        return launched.process.returncode  # it has said why
    try:
        show(paths, None, ascii=ascii, readonly=readonly)
    except KeyboardInterrupt:  # before there is a view that takes it as a key
        console.narrate(f"run continues: {paths.watch_command}")
    console.data(str(paths.root))
    return launched.process.poll() or 0


def _folder_of(resume: str | None, runs_dir: str) -> str:
    """The directory of all runs, of which the run to resume is one."""
    from smolsum.runs.paths import open_run

    known = resume and "://" not in resume
    return str(open_run(resume, Path(runs_dir)).root.parent) if resume and known else runs_dir


def _plan(config: Config) -> Callable[[], None]:
    """What shows the stages with their optimizer steps, and the memory that they take, as tables."""
    from smolsum.config.schedule import needs_data, planned_steps
    from smolsum.tasks import TASKS
    from smolsum.train.setup import forecast

    task = TASKS[config.task.name]
    steps = planned_steps(config, task.kinds(task.load(config, "train").examples) if needs_data(config) else ())
    memory = forecast(config)

    def show() -> None:
        taken = {name: "" if stage.steps else f" (epochs = {stage.epochs:g})" for name, stage in config.stages.items()}
        console.table(["stage", "steps"], [[stage, f"{count}{taken[stage]}"] for stage, count in steps.items()])
        if memory is None:
            where = f"is on this machine (hf download {config.model.path})"
            console.narrate(f"memory: known once {config.model.path} {where}")
        else:
            console.table(["memory", "GB"], [[name, f"{size:.2f}"] for name, size in memory.items()])

    return show


def _fetched(url: str, runs_dir: str, mirror: str | None, tell: Callable[[str], None]) -> tuple[str, str]:
    """The path of a run that was brought here from its mirror, and where it is mirrored from now on: there, unless
    `mirror` says otherwise."""
    from smolsum.runs.mirror.store import fetch_run

    if "MLX_RANK" in os.environ:
        raise UsageError(
            "several processes cannot fetch one run", hint=f"copy it here first, then --resume {Path(runs_dir)}/NAME"
        )
    paths = fetch_run(url, Path(runs_dir), tell)
    return str(paths.root), url.rstrip("/").rsplit("/", 1)[0] if mirror is None else mirror


def _settings_of(run: str, runs_dir: str, flags: Mapping[str, str | None]) -> Config:
    """The settings that a run began with, but for those of `flags` that are given; it is found by its name in
    `runs_dir`, or by its path."""
    from smolsum.config.resolve import resolve
    from smolsum.runs.paths import open_run
    from smolsum.tasks import TASKS

    paths = open_run(run, Path(runs_dir))
    return resolve(
        TASKS,
        config_file=paths.config,
        flags={"run.dir": str(paths.root.parent), **flags},
    ).config


def _check_resume(run: str, flags: Sequence[str]) -> None:
    """UsageError where flags ask a resumed run to be another one."""
    if flags:
        raise UsageError(
            f"--resume goes on with the run's own settings, so it takes no {', '.join(flags)}",
            hint=f"smolsum train --resume {shlex.quote(run)}, or a new run from its settings with --config",
        )
