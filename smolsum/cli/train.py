"""`smolsum train`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smolsum import console
from smolsum.cli.find_rate import SweepFlags, find_rate
from smolsum.cli.options import (
    Invocation,
    OutputFlags,
    PluginFlag,
    PresetFlag,
    RunsFlag,
    TaskFlag,
    WorkerFlag,
    set_option,
    worker_list,
)
from smolsum.config.fields import TRACKERS
from smolsum.config.hub import download_command
from smolsum.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from smolsum.config.presets import ConfigurableTask
    from smolsum.config.resolve import Resolved
    from smolsum.config.sections import Config
    from smolsum.grpo.grid import Planned, Previews
    from smolsum.grpo.setup.memory_plan import MemoryPlan

VIEW_FLAGS = ("--watch", "--ascii", "--readonly")
RESUME_FLAGS = (
    *VIEW_FLAGS, "--resume", "--plugin", "--runs-dir", "--worker", "--mirror", "--track", "--max-cost",
    "--plain", "--quiet", "--debug",
)  # fmt: skip
"""Flags that leave a resumed run the same run."""
SINGLE_FLAGS = ("--name", "--find-lr")
"""Flags that make sense for one run only."""


def train(
    invocation: Invocation,
    output: OutputFlags,
    sweep: SweepFlags,
    task: TaskFlag = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Preset (tiny, tiny-lfm, qwen, lfm; with adapters: gemma-3-270m, gemma-3-1b, gemma-3-4b, lfm2-700m, "
            "lfm2-1.2b, lfm2-2.6b, llama-3.2-1b, llama-3.2-3b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, qwen3-0.6b, "
            "qwen3-1.7b, qwen3-4b, qwen3-8b, smollm2-360m, smollm2-1.7b, smollm3-3b; all weights: smollm2-135m), local "
            "directory, GGUF file or hub id; repeatable; all: the study's qwen and lfm.  [default: the task's, tiny]",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STRATEGY",
            help="constrained: quality as high as the length allows; finetuned: length first, then quality; included: "
            "both at once; sft-constrained: as constrained, after some supervised steps; sft-included: as included, "
            "after such; short-sentences: for real models, in five stages; any-length: each prompt asks for its own "
            "length; others in other tasks; repeatable; all: the study's finetuned and included, or each of another "
            "task.  [default: the task's, constrained]",
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIGNALS",
            help="Quality signals: rouge, meteor, bleu or several joined by '-', grounded among them for names and "
            "numbers that the source has, overlong to punish coming near the token limit, short_sentences for ends of "
            "sentences close to any length, judge or preference to ask judge.model; length: no quality signal, with "
            "finetuned where no strategy is named; repeatable; all: the study's six.  [default: the task's, meteor]",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="What rollouts have to obey while the reward is maximised, such as 'length in 59..69: 0.99' (a share "
            "of them), 'meteor >= 0.3' (their mean) or 'meteor >= 0.95 start' (against the stage's first steps); "
            "repeatable; none: no constraint.  [default: the strategy's]",
        ),
    ] = None,
    guard: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Where a reward is paid for with what it does not see, such as wrong facts: warn, stop, rollback to "
            "before that, or off.  [default: warn]",
        ),
    ] = None,
    plugin: PluginFlag = None,
    preset: PresetFlag = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in TOML; a run's config.toml repeats that run.")
    ] = None,
    sets: Annotated[list[str] | None, set_option("grpo.beta=0.1 or stages.constrained.steps=50")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run.  [default: model, strategy, rewards and time]")
    ] = None,
    runs_dir: RunsFlag = None,
    worker: WorkerFlag = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Keep the run there too while it trains (s3://BUCKET/FOLDER, or any fsspec URL); none: no copy.",
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Show the run in this experiment tracker too ({', '.join(TRACKERS)}); repeatable; none: no tracker.",
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS",
            min=0.0,
            help="Stop, saved, once the judge that rewards has cost this much in this command.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train once with each of N seeds, counting up from --seed.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue a stopped run exactly where it was; a mirrored one by its URL."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Train in a separate process, and open the live view on it.")
    ] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="With --watch: draw with ASCII characters only.")] = False,
    readonly: Annotated[bool, typer.Option("--readonly", help="With --watch: disable pause and stop.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print all settings with their sources and the steps; stop.")
    ] = False,
) -> None:
    """Train a model with GRPO and print the directory of the run.

    \b
    Minutes on two CPU cores:
      smolsum train --model tiny --reward meteor
    The learning rate for a model of your own:
      smolsum train --model ./my-model --find-lr
    The whole study; finished runs are not trained again:
      smolsum train --model all --strategy all --reward all --dry-run
    """
    output.apply()
    sweep.check(invocation.flags)
    if resume is not None and not resume.strip():
        raise UsageError("--resume is empty", hint="smolsum runs lists the runs")
    if resume is not None and (other := [flag for flag in invocation.flags if flag not in RESUME_FLAGS]):
        raise UsageError(
            f"--resume continues with the run's own settings, so it takes no {', '.join(other)}",
            hint=f"smolsum train --resume {shlex.quote(resume)}, or a new run from its settings with --config",
        )
    if (ascii or readonly) and not watch:
        raise UsageError("--ascii and --readonly are for the view that --watch opens", hint="add --watch")

    from smolsum.config.resolve import render_with_sources, resolve
    from smolsum.grpo.grid import Previews, plan, select, variants
    from smolsum.tasks import TASKS
    from smolsum.tasks.plugins import use_named_plugins

    named = use_named_plugins(plugin or [], task, config)
    task = named.task
    place = {
        "workers.urls": worker_list(worker),
        "run.mirror": "" if mirror == "none" else mirror,
        "run.track": _tracker_list(track),
    }
    flags = {
        "task.name": task,
        "run.plugins": named.files,
        "grpo.constraints": None if constraint is None else "; ".join(one for one in constraint if one != "none"),
        "train.guard": guard,
        "train.seed": seed,
        "run.name": name,
        "run.dir": runs_dir,
        "judge.max_cost": None if resume else max_cost,
        **place,
    }
    layers: dict[str, Any] = {"presets": preset or [], "config_file": config, "flags": flags, "environ": os.environ}
    if config is not None and (strategy or reward):
        _warn_of_replaced_stages(config, "--strategy" if strategy else "--reward")
    chosen, view = select(model, strategy, reward, task), {"ascii": ascii, "readonly": readonly}
    sweep_of = variants(seeds, sets=sets or [], **layers)
    if chosen.is_grid or len(sweep_of) > 1:
        if single := [flag for flag in SINGLE_FLAGS if flag in invocation.flags]:
            raise UsageError(
                f"{', '.join(single)} {'is' if len(single) == 1 else 'are'} for one run, and several are selected",
                hint="give one --model, --strategy, --reward and seed, and one value for each setting",
            )
        planned = plan(chosen, sweep_of, **layers)
        _check_ahead([one.config for one in planned], warn=dry_run)
        if dry_run:
            previews = Previews()
            if not output.quiet and any(one.state != "done" for one in planned):
                from smolsum.grpo.grid_train import check_plan

                check_plan(planned, previews)
            _show_plan(planned, previews)
            return
        if watch and any(one.state != "done" for one in planned):
            _leave(invocation, _train_and_watch(invocation.arguments, planned[0].root.parent, planned, **view))
            return
        from smolsum.grpo.grid_train import train_grid

        train_grid(planned, quiet=output.quiet, retry=invocation.command_line)
        return
    layers |= {"model": chosen.models[0], "strategy": chosen.strategies[0], "reward": chosen.rewards[0]}
    resolved = resolve(TASKS, sets=sets or [], **layers)
    if chosen.models[0] is not None:
        _warn_of_lost_preset(chosen.models[0], preset or [], TASKS[resolved.config.task.name])
    _check_ahead([resolved.config], warn=dry_run)
    if sweep.find_lr:
        find_rate(resolved, sweep, invocation.arguments, quiet=output.quiet)
        return
    runs = resolved.config.run.dir
    if dry_run:
        resolved, small = _with_rates(resolved, advise=not output.quiet)
        forecast = None if output.quiet else _forecast(resolved.config)  # before any output, as it may fail
        console.data(render_with_sources(resolved).rstrip())
        if resolved.strategy and not output.quiet:
            console.narrate(f"strategy {resolved.strategy.name}: {resolved.strategy.reason}")
        if forecast:
            _show_forecast(resolved.config, *forecast)
            if small:
                console.narrate(small)
    elif watch:
        _leave(invocation, _train_and_watch(invocation.arguments, _folder_of(resume, runs), (), **view))
    else:
        _train(resolved.config, resume, {**place, "judge.max_cost": max_cost}, quiet=output.quiet)


def _warn_of_replaced_stages(config: Path, flag: str) -> None:
    """Say which stages of a configuration file the strategy of a flag replaces."""
    from smolsum.config.presets import read_file

    keys = [entry.key.split(".") for entry in read_file(config)]
    if stages := dict.fromkeys(key[1] for key in keys if key[0] == "stages" and len(key) > 1):
        kept = f"leave out {flag} to train them, or change those of the strategy with --set stages.NAME.KEY=VALUE"
        console.warn(f"{flag} replaces the stages of {config} ({', '.join(stages)}): {kept}")


def _warn_of_lost_preset(model: str, presets: Sequence[str], task: ConfigurableTask) -> None:
    """Say which preset the model of a run has whose checkpoint is the model now: a directory has none."""
    from smolsum.config.presets import names_for, read_file, read_for
    from smolsum.runs.checkpoints import run_and_step

    paths, names = [model], names_for(task, "models")
    while (named := run_and_step(Path(paths[-1]))) and named[0].config.is_file():  # a run may begin from another's
        begun = [str(entry.value) for entry in read_file(named[0].config) if entry.key == "model.path"]
        if not begun or begun[0] in paths:
            return
        paths.append(begun[0])
    of = {
        name: [entry.value for entry in read_for(task, "models", name) if entry.key == "model.path"] for name in names
    }
    preset = next((name for name in names if paths[-1] in of[name]), None)
    if len(paths) > 1 and preset and not {*presets} & {*names}:
        console.warn(f"{model} comes without the settings of preset {preset}: --preset {preset} takes them over")


def _tracker_list(flag: list[str] | None) -> str | None:
    """Return the value of `run.track` for --track; None without the flag. Raises UsageError for `none` among others."""
    if flag and "none" in flag:
        if len(flag) > 1:
            raise UsageError("--track none goes with no other --track", hint="leave one out")
        return ""
    return ",".join(dict.fromkeys(flag)) if flag else None


def _train(config: Config, resume: str | None, place: Mapping[str, Any], *, quiet: bool) -> None:
    """Train one run, or continue `resume` with its own settings except those of `place`, and print its directory."""
    from smolsum.grpo.progress import Progress

    made: list[Path] = []
    try:
        with Progress(quiet=quiet) as progress:
            progress.phase("starting")  # the imports below take seconds on a cold disk
            from smolsum.grpo.loop import train as run_training
            from smolsum.grpo.resume import fetched, first_folder, settings_of

            if resume and "://" in resume:
                resume, mirror = fetched(resume, config.run.dir, place["run.mirror"], progress.note)
                place = {**place, "run.mirror": mirror}
            settings = settings_of(resume, config.run.dir, place) if resume else config
            run_training(settings, resume=resume, progress=progress, started=made.append)
    except UsageError as error:
        if not (resume and "--set " in (error.hint or "")):
            raise
        hint = "put back what the run began with, as a resumed run keeps its settings, or start a new run with --config"
        raise UsageError(error.message, hint=first_folder(resume, config.run.dir) or hint) from error
    finally:  # also after a failure: the user needs the name to resume the run
        for run in made:
            console.data(str(run))


def _check_ahead(configs: Sequence[Config], *, warn: bool) -> None:
    """Raise UsageError for a mirror's URL or a tracker that cannot work, without connecting. With `warn`, also print
    the tasks' warnings, each once; a run prints them itself."""
    for url in {config.run.mirror for config in configs if config.run.mirror}:
        from smolsum.runs.mirror_store import check_url

        check_url(url)
    for names in {config.run.track for config in configs if config.run.track}:
        from smolsum.runs.trackers import Trackers

        Trackers(names)
    if warn:
        from smolsum.tasks import TASKS

        for warning in dict.fromkeys(text for config in configs for text in TASKS[config.task.name].warnings(config)):
            console.warn(warning)
        notes = (TASKS[config.task.name].prompts.preview_note(config) for config in configs)
        for note in dict.fromkeys(filter(None, notes)):
            console.narrate(note)


def _show_plan(planned: Sequence[Planned], previews: Previews) -> None:
    """Print a line for each run of a grid with its state and steps, and their total."""
    from smolsum.grpo.grid import labels, steps_of

    rows, left, unknown = [], 0, False
    for one, (steps, shared) in zip(planned, steps_of(planned, previews), strict=True):
        parts = []
        for name, stage in one.config.stages.items():
            epochs = f"{stage.epochs:g} {'epoch' if stage.epochs == 1 else 'epochs'}"
            count = steps[name] if steps else 0
            parts.append(f"{name} {count or epochs}{' (shared)' if name == shared else ''}")
            left += 0 if name == shared or one.state == "done" else count
        unknown = unknown or steps is None
        state = f"continues at step {one.step}" if one.state == "goes on" and one.step else one.state
        rows.append([one.name, state, " > ".join(parts), *labels(one.config), one.config.model.path])
    console.data_table(["name", "state", "steps", "strategy", "reward", "model"], rows)
    states = [one.state for one in planned]
    words = {"done": "done", "goes on": "to continue", "to train": "to train"}
    counts = ", ".join(f"{states.count(state)} {text}" for state, text in words.items() if state in states)
    total = "steps known once the data are here" if unknown else f"{left} steps at most"
    console.narrate(f"{len(planned)} runs: {counts}; {total}")
    for one in planned:
        if one.reason:
            console.narrate(f"{one.name} is to train: {one.reason}")


def _with_rates(resolved: Resolved, *, advise: bool) -> tuple[Resolved, str]:
    """Return the settings with the learning rates that the model decides, each with the reason as its source, and with
    `advise` the advice to take `--preset small` where a small model has settings for half a billion parameters."""
    from dataclasses import replace

    rates = {"optimizer": resolved.config.optimizer.learning_rate}
    rates |= {f"stages.{name}": stage.learning_rate for name, stage in resolved.config.stages.items()}
    if not advise and all(rates.values()):  # nothing asks for the model, which takes seconds to load
        return resolved, ""
    from smolsum.grpo.setup.prepare import SMALL, preview_rates

    config, parameters, reason = preview_rates(resolved.config)
    sources = dict(resolved.sources)
    for key in (f"{section}.learning_rate" for section, rate in rates.items() if not rate):
        if not sources[key].startswith("stage default"):
            sources[key] = reason if sources[key] == "default" else f"{sources[key]}; {reason}"
    for_large = sources["grpo.beta"] == "preset profiles/default"
    advice = (
        f"the model has {parameters / 1e6:.3g} M parameters, and these settings were made for 500 M: "
        "--preset small has settings that suit it better"
    )
    return replace(resolved, config=config, sources=sources), advice if 0 < parameters < SMALL and for_large else ""


def _forecast(config: Config) -> tuple[dict[str, int], MemoryPlan | None, str]:
    """Return the optimizer steps of each stage, the memory of the run, and advice on its length, as far as data and
    model are on this machine; where a hub does not answer, no steps and the reason. Raises what a training would
    raise."""
    from smolsum.config.stages import needs_data, planned_steps
    from smolsum.grpo.difficulty import planned_kinds
    from smolsum.grpo.setup.data_preview import preview_advice
    from smolsum.grpo.setup.prepare import forecast
    from smolsum.tasks import TASKS

    task, kinds = TASKS[config.task.name], tuple[str, ...]()
    try:
        if needs_data(config):
            kinds = planned_kinds(config, task, task.prompts.load_preview(config, "train").examples)
        return planned_steps(config, kinds), forecast(config), preview_advice(config)
    except UnreachableError as error:
        return {}, None, f"steps and memory: known once the data are here: {error.message}; {error.hint}"


def _show_forecast(config: Config, steps: dict[str, int], memory: MemoryPlan | None, advice: str) -> None:
    from smolsum.config.stages import described

    rows = []
    for name, count in steps.items():
        stage = config.stages[name]
        rows.append([name, f"{count}{'' if stage.steps else f' (epochs = {stage.epochs:g})'}"])
    if rows:
        console.table(["stage", "steps"], rows)
    for name in steps:
        if text := described(config.stages[name]):
            console.narrate(f"stage {name}, from the first step to the last: {text}")
    if memory is not None:
        sizes = {**memory.parts, "peak": memory.peak, "peak without chunks": memory.whole}
        sizes[f"limit: {memory.limit.source}"] = memory.limit.size
        console.table(["memory", "GB"], [[name, f"{size / 1e9:.2f}"] for name, size in sizes.items()])
        console.narrate(memory.line)
        for warning in memory.warnings:
            console.warn(warning)
    elif steps:
        path = config.model.path
        console.narrate(f"memory: known once {path} is on this machine ({download_command(path)})")
    if advice:
        console.narrate(advice)


def _train_and_watch(
    arguments: Sequence[str], runs_dir: Path, grid: Sequence[Planned], *, ascii: bool, readonly: bool
) -> int:
    """Start the training in a separate process and open the view on it, which goes from run to run of a grid; after
    the view, print the run's directory, or those of the grid's runs that are complete. Returns the training's exit
    code, 0 while it continues."""
    from smolsum.cli.start_trainer import launch
    from smolsum.cli.watch import able_to_draw, show
    from smolsum.grpo.grid import is_finished
    from smolsum.runs.paths import RunPaths

    if not able_to_draw():
        raise UsageError("--watch needs a terminal that can be redrawn", hint="leave --watch out")
    # --plain, as its output goes to a file, from which `launch` prints it
    launched, paths = launch([*(one for one in arguments if one not in VIEW_FLAGS), "--plain"], runs_dir)
    if paths is not None:  # else the training has printed why
        try:
            show(paths, (), ascii=ascii, readonly=readonly, following=bool(grid))
        except KeyboardInterrupt:  # before the view takes Ctrl-C as a key
            console.narrate(f"run continues: smolsum watch {paths.reference}")
    complete = [one.root for one in grid if is_finished(RunPaths(one.root))]
    for root in complete if grid else [paths.root] if paths else []:
        console.data(str(root))
    return launched.process.poll() or 0


def _leave(invocation: Invocation, code: int) -> None:
    """Exit with the code of a training, which has printed the reason, or its view has."""
    if code:
        invocation.explained = True
        raise typer.Exit(max(1, code))  # killed by a signal: a negative number


def _folder_of(resume: str | None, runs_dir: str) -> Path:
    """Return the directory of all runs, which is the parent of the run to resume."""
    from smolsum.runs.paths import open_run

    local = resume and "://" not in resume
    return open_run(resume, Path(runs_dir)).root.parent if resume and local else Path(runs_dir)
