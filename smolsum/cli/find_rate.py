"""`smolsum train --find-lr`: the sweep over learning rates as a table, a chart, a record and one number."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import replace

if TYPE_CHECKING:
    from smolsum.config.resolve import Resolved
    from smolsum.config.sections import Config
    from smolsum.grpo.setup.rate_sweep import Sweep, Trial

SWEEP_FLAGS = ("--rates", "--trial-steps", "--json")
"""Flags that only a sweep takes."""
RUN_FLAGS = ("--name", "--watch", "--ascii", "--readonly", "--mirror", "--track", "--dry-run", "--resume")
"""Flags that only a run takes."""
LENGTH = "completions/mean_length"
HEADLINES = 2
"""The task's own measures in the table, besides length and repetition."""
CHART_HEIGHT, COLUMN = 9, 9
"""Lines of the chart, and its characters for each rate."""


@dataclass(frozen=True)
class SweepFlags:
    find_lr: Annotated[
        bool,
        typer.Option(
            "--find-lr", help="Train nothing: try learning rates for a few steps each, and print the one to take."
        ),
    ] = False
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="With --find-lr: rates, separated by commas.  [default: five around the run's own]"
        ),
    ] = None
    trial_steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --find-lr: optimizer steps with each rate.")
    ] = 40
    as_json: Annotated[bool, typer.Option("--json", help="With --find-lr: print all that was measured as JSON.")] = (
        False
    )

    def check(self, flags: Sequence[str]) -> None:
        """Raise UsageError where one of the flags that were given is for a run and not for a sweep, or the other way
        round, or the rates are not numbers."""
        if wrong := [flag for flag in flags if flag in (RUN_FLAGS if self.find_lr else SWEEP_FLAGS)]:
            reason = "--find-lr makes no run, so it takes no" if self.find_lr else "without --find-lr, train takes no"
            raise UsageError(f"{reason} {', '.join(wrong)}", hint="leave them out" if self.find_lr else "add --find-lr")
        parse_rates(self.rates)


def parse_rates(text: str | None) -> tuple[float, ...]:
    """Return the rates of `--rates`, numbers above 0 separated by commas. Raises UsageError for anything else."""
    if text is None:
        return ()
    try:
        rates = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise UsageError(f"--rates {text}: not numbers above 0, separated by commas", hint="--rates 1e-4,3e-4,1e-3")
    return rates


def find_rate(resolved: Resolved, flags: SweepFlags, command: Sequence[str], *, quiet: bool) -> None:
    """Sweep the rates and print the recommended one on stdout, or the whole record with `--json`.

    `command` is the command as it was typed. The record is kept in the directory of all runs. Raises SmolsumError where
    no rate can be recommended, and InterruptedRun after Ctrl-C; both after the finished trials are shown and kept.
    """
    from smolsum.grpo.progress import Progress

    config, begun = resolved.config, list["Sweep"]()
    try:
        with Progress(quiet=quiet) as progress:
            progress.phase("starting")
            from smolsum.grpo.setup.rate_sweep import sweep_rates

            if config.workers.urls:
                progress.warn("a sweep samples here: workers would get weights that are thrown away")
            sweep_rates(config, parse_rates(flags.rates), flags.trial_steps, progress, begun.append)
    finally:
        if begun and begun[0].trials:
            _report(begun[0], resolved, command, quiet=quiet, as_json=flags.as_json)
    if begun[0].recommended() is None:
        raise SmolsumError(
            f"no rate raised the reward in {flags.trial_steps} steps, sampled and greedy, and kept the language",
            hint=f"--trial-steps {2 * flags.trial_steps}, or --rates with others",
        )


def _report(sweep: Sweep, resolved: Resolved, command: Sequence[str], *, quiet: bool, as_json: bool) -> None:
    """Show the sweep, print the recommended rate or the record, and write the record, which is where it may fail."""
    from smolsum.runs.paths import free_name, planned_name
    from smolsum.tasks import TASKS

    config, best = resolved.config, sweep.recommended()
    own = f"stages.{sweep.stage}.learning_rate"  # given as a flag, it goes before the run's rate
    key = own if resolved.sources[own] == "--set" else "optimizer.learning_rate"
    use = _train_command(command, f"{key}={best.rate:g}") if best else None
    record = json.dumps(sweep.record(config, use), indent=2, allow_nan=False)
    if not quiet:
        _show(sweep, config)
        if best:
            _say(sweep, best)
            console.narrate(f"use it: {use}")
    if as_json:
        console.data(record)
    elif best:
        console.data(f"{best.rate:g}")
    folder = Path(config.run.dir)
    planned = planned_name(config, TASKS[config.task.name].presets.strategies, folder)
    name = free_name(f"find-lr-{planned}", lambda name: (folder / f"{name}.json").exists())
    path = folder / f"{name}.json"
    replace(path, record.encode() + b"\n", f"--runs-dir with room for {path.name}")
    if not quiet:
        console.narrate(f"record: {path}")


def _train_command(command: Sequence[str], setting: str) -> str:
    """Return the command of the sweep as that of a run with this setting."""
    kept, skip = ["smolsum"], False
    for argument in command:
        name = argument.partition("=")[0]
        if not skip and name not in ("--find-lr", *SWEEP_FLAGS):
            kept.append(argument)
        skip = not skip and name in ("--rates", "--trial-steps") and "=" not in argument
    return shlex.join([*kept, "--set", setting])


def _show(sweep: Sweep, config: Config) -> None:
    from smolsum.grpo.setup.rate_sweep import REPETITION
    from smolsum.tasks import TASKS

    heads = [one for one in TASKS[config.task.name].evaluation.headlines if one.name not in (LENGTH, REPETITION)]
    heads = [one for one in heads if one.name in sweep.start.greedy][:HEADLINES]
    names = ["rate", "reward", "greedy", "KL", "tokens", "greedy tokens", *(one.title for one in heads), "repeated", ""]
    rows = []
    for trial in (sweep.start, *sweep.trials):
        greedy = trial.greedy
        measured = [(trial.reward, ".3f"), (greedy.get("reward"), ".3f"), (trial.kl, ".3g"), (trial.tokens, ".1f")]
        measured += [(greedy.get(LENGTH), ".1f"), *((greedy.get(one.name), one.form) for one in heads)]
        shown = ["-" if value is None else format(value, form) for value, form in measured]
        rate, verdict = (f"{trial.rate:g}", sweep.verdict(trial)) if trial.rate else ("start", "")
        rows.append([rate, *shown, f"{trial.repeated:.1%}", verdict])
    title = f"stage {sweep.stage}, {sweep.steps} steps with each rate; sampled: mean of the last quarter"
    console.table(names, rows, title=title)
    for line in _chart(sweep):
        console.narrate(line)


def _chart(sweep: Sweep) -> list[str]:
    """Return the lines of a chart of the rewards after each trial over the rates, sampled and greedy."""
    from smolsum.linechart.braille import IN_ASCII, PlotPoint, Trace
    from smolsum.linechart.plot import GUTTER, LinePlot, Part

    trials, last = (sweep.start, *sweep.trials), len(sweep.trials)
    values = {"s": [one.reward for one in trials], "g": [one.greedy.get("reward") for one in trials]}
    traces = []
    for letter, found in values.items():
        points = [PlotPoint(n, value, value, value) for n, value in enumerate(found) if value is not None]
        traces.append(Trace(tuple(points), "solid" if letter == "s" else "dotted", letter=letter))
    if not any(trace.points for trace in traces):
        return []
    part = Part(0, last, x=(0, last), column=GUTTER, columns=COLUMN * last + 1, traces=traces)
    drawn = [line.plain.rstrip() for line in LinePlot([part]).lines(CHART_HEIGHT, axis=False)]
    labels = "".join(f"{label:<{COLUMN}}" for label in ["start", *(f"{trial.rate:g}" for trial in sweep.trials)])
    if not (sys.stderr.encoding or "ascii").lower().startswith("utf"):
        drawn = [line.translate(IN_ASCII) for line in drawn]
    return ["reward after the trial (s sampled, g greedy)", *drawn, f"{'':{GUTTER}}{labels}".rstrip()]


def _say(sweep: Sweep, best: Trial) -> None:
    """Say which rate is recommended and why, and what to doubt."""
    from smolsum.grpo.setup.rate_sweep import ENOUGH, MAX_KL, MAX_REPEATED

    console.narrate(
        f"recommended: {best.rate:g}, the smallest rate with {ENOUGH:.0%} of the best gain, sampled and greedy, among "
        f"those that keep the language (KL up to {MAX_KL:g}, repetition up by at most {MAX_REPEATED:.0%})"
    )
    rates = [trial.rate for trial in sweep.trials]
    for where, edge, beyond in (("smallest", min(rates), (0.1, 0.3)), ("largest", max(rates), (3, 10))):
        if best.rate == edge:
            more = ",".join(f"{edge * factor:.1g}" for factor in beyond)
            console.warn(f"it is the {where} rate of the sweep: try {more} with --rates too")
