"""`smolsum runs`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import InterruptedRun, SmolsumError, UsageError, nearest

if TYPE_CHECKING:
    from smolsum.runs.listing import Listed

STOPPED = ("failed", "interrupted", "STALE", "damaged")
"""States whose hint is worth showing."""


def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these; 'tiny-*' for several.  [default: all]", show_default=False),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only those in this state (finished, failed, running, …); repeatable."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what changed since then (ISO 8601 with its zone, such as `now` of --json), and what is STALE.",
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Order by a column with numbers, the greatest last.")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings that differ, in place of the scores.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the runs and evaluations that NAME or --state select.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    runs_dir: RunsFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List runs with their state and newest scores, the newest last, then other evaluations.

    \b
    The best of a grid, what its runs differ in, and those that failed:
      smolsum runs 'tiny-*' --sort METEOR
      smolsum runs 'tiny-*' --settings
      smolsum runs --state failed --delete
    """
    from smolsum.runs.listing import inventory

    folder = runs_folder(runs_dir)
    now = datetime.now(UTC)  # before anything is read: what changes meanwhile is news for the next call
    everything = inventory(folder)
    found = _selected(everything, names, state)
    if since is not None:
        if delete:
            raise UsageError("--since and --delete cannot be combined", hint="leave one out")
        found = _news(found, since)
    if delete:
        if not (names or state):
            raise UsageError("--delete without a NAME or --state would delete everything", hint="smolsum runs 'NAME*'")
        _delete(found, agreed=yes)
        return
    if sort is not None:
        found = _sorted(found, sort)
    if as_json:
        stamp = now.isoformat(timespec="milliseconds")
        console.data(json.dumps({"schema_version": 1, "now": stamp, "runs": [asdict(one) for one in found]}, indent=2))
        return
    if not found:
        if since is not None and everything:
            console.narrate(f"nothing changed since {since}")
            return
        console.narrate(f"no runs in {folder}; smolsum train --model tiny makes one")
        return
    if settings:
        _show_settings([one for one in found if one.kind == "run"])
        return
    tasks = list(dict.fromkeys(one.task for one in found if one.task)) or [""]
    for task in tasks:
        _table([one for one in found if (one.task or tasks[0]) == task], "name" if len(tasks) == 1 else task)
    for one in found:
        if one.hint and one.state in STOPPED:
            console.narrate(f"{one.name}: {one.hint}")


def _selected(found: Sequence[Listed], names: Sequence[str] | None, states: Sequence[str] | None) -> Sequence[Listed]:
    """Return those of these names, or patterns where no run has the name, and states. Raises UsageError where a name
    or a state has none."""
    known, there = [one.name for one in found], sorted({one.state.lower() for one in found})
    chosen = found
    if names:
        meant = {text: {text} if text in known else {one for one in known if fnmatchcase(one, text)} for text in names}
        if (wrong := next((text for text, own in meant.items() if not own), None)) is not None:
            raise UsageError(f"no run {wrong!r}", hint=nearest(wrong, known) if known else "smolsum train makes one")
        chosen = [one for one in chosen if any(one.name in own for own in meant.values())]
    if states:
        if (wrong := next((text for text in states if text.lower() not in there), None)) is not None:
            raise UsageError(f"no run is in the state {wrong!r}", hint=nearest(wrong, there) if there else None)
        chosen = [one for one in chosen if one.state.lower() in map(str.lower, states)]
    return chosen


def _news(found: Sequence[Listed], since: str) -> list[Listed]:
    """Return what changed since a time, and what is STALE, as that changes no file. Raises UsageError for a text that
    is no time with its zone."""
    from smolsum.runs.state import read_stamp

    if (time := read_stamp(since)) is None:
        hint = f"--since {datetime.now(UTC).isoformat(timespec='seconds')}"
        raise UsageError(f"{since!r} is no time with its zone in ISO 8601", hint=hint)
    return [one for one in found if one.state == "STALE" or ((at := read_stamp(one.changed)) is not None and at > time)]


def _sorted(found: Sequence[Listed], column: str) -> list[Listed]:
    """Return them in the order of a metric, by its key or title, or of the steps; those without a value come first."""
    keys = {title.lower(): key for one in found for key, title in one.titles.items()}
    keys |= {key.lower(): key for key in keys.values()} | {"step": "step"}
    if column.lower() not in keys:
        raise UsageError(f"no column {column!r} to sort by", hint=nearest(column, keys))
    key = keys[column.lower()]

    def value(one: Listed) -> float:
        number = one.step if key == "step" else one.metrics.get(key)
        return float("-inf") if number is None else number

    return sorted(found, key=value)


def _show_settings(found: Sequence[Listed]) -> None:
    """Print a row for each setting that differs between the runs, and a column for each run."""
    from smolsum.config.differences import differing
    from smolsum.config.presets import leaves
    from smolsum.runs.paths import RunPaths
    from smolsum.runs.records import PluginInfo, RunInfo
    from smolsum.runs.typed_json import read, read_object

    if len(found) < 2:
        raise UsageError("settings are compared between runs, and fewer than two are selected", hint="smolsum runs")
    columns = []
    for paths in (RunPaths(Path(one.path)) for one in found):
        plugins: list[PluginInfo] = []
        with suppress(SmolsumError):  # a run without run.json, or with a damaged one, has settings too
            plugins = read(paths.info, RunInfo).plugins
        code = {f"plugin of {name}": one.digest[:12] for one in plugins for name in (*one.rewards, *one.tasks)}
        columns.append({**leaves(read_object(paths.config)), **code})
    if rows := [[key, *texts] for key, texts in differing(columns).items()]:
        console.data_table(["setting", *(one.name for one in found)], rows)
    else:
        console.narrate(f"these {len(found)} runs have the same settings")


def _delete(found: Sequence[Listed], *, agreed: bool) -> None:
    """Delete folders, after a look at them. Nothing is deleted where a run is being trained or there is no terminal to
    ask on (UsageError), or where the user declines (InterruptedRun). SmolsumError for one that cannot be deleted."""
    from smolsum.runs.paths import RunPaths, acquire

    if links := [one.path for one in found if Path(one.path).is_symlink()]:
        raise UsageError(f"{links[0]} is a link, which is not deleted", hint="remove the link, or name the run itself")
    for one in found:
        steps = "" if one.step is None else f", step {one.step}"
        size = sum(path.stat().st_size for path in Path(one.path).rglob("*") if path.is_file())
        console.narrate(f"{one.path} ({one.kind}, {one.state}{steps}, {size / 1e6:,.1f} MB)")
    with ExitStack() as locks:  # held to the end, so that no run is resumed while it is deleted
        for paths in (RunPaths(Path(one.path)) for one in found if one.kind == "run"):
            if paths.lock.exists():
                locks.enter_context(acquire(paths))
        if not agreed:
            what = f"{len(found)} {'folder' if len(found) == 1 else 'folders'}"
            if not console.can_ask():
                raise UsageError(f"--delete asks before it deletes {what}", hint="--yes does not ask")
            if not console.agree(f"delete {what}?", careful=True):
                raise InterruptedRun("nothing was deleted", hint="smolsum runs lists them")
        for one in found:
            try:
                shutil.rmtree(one.path)
            except OSError as error:
                hint = "check that you may write there and that nothing uses it; smolsum runs lists what is left"
                raise SmolsumError(f"cannot delete all of {one.path}: {error.strerror}", hint=hint) from error
            console.data(one.path)


def _table(found: list[Listed], head: str) -> None:
    """Print the runs and evaluations of one task; `head` is the title of their names."""
    from smolsum.runs.listing import SHOWN

    titles = {key: title for one in found for key, title in one.titles.items()}
    shown = [*(key for key in SHOWN if key in titles), *(key for key in titles if key not in SHOWN)]
    rows = [
        [
            one.name,
            one.state,
            "-" if one.step is None else f"{one.step}/{one.steps}" if one.steps else str(one.step),
            *("-" if (value := one.metrics.get(key)) is None else f"{value:.3f}" for key in shown),
            one.rewards or "-",
            one.model or "-",
        ]
        for one in found
    ]
    console.data_table([head, "state", "step", *(titles[key] for key in shown), "rewards", "model"], rows)
