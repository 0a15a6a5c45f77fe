"""`smolsum watch`."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.runs.grid_follower import GridView
    from smolsum.runs.paths import RunPaths

VERBS = {"paused": "stays paused", "pausing": "pauses after its step", "stopping": "stops after its step"}
MOST_OTHERS = 9
"""Runs that a view can draw next to the first."""
PAGE_SIZE = (120, 40)
"""Columns and lines of a page that is printed without a terminal."""


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Name or directory of a run, also of a finished or copied one.  [default: the newest]",
            show_default=False,
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN2 ...", help="Further runs, drawn next to the first.", show_default=False),
    ] = None,
    runs_dir: RunsFlag = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="Disable pause and stop.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the page as plain text and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print state, metrics and alerts as JSON and exit.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")] = False,
    theme: Annotated[
        Literal["auto", "dark", "light"],
        typer.Option("--theme", help="Colours for a dark or a light terminal; auto: as the terminal reports."),
    ] = "auto",
) -> None:
    """Look at a run while it trains, or afterwards.

    The view only reads: q or Ctrl-C closes it, and the run continues. Space pauses the run after its step and S stops
    it, both with a checkpoint; ? shows all keys.
    """
    if once and as_json:
        raise UsageError("--once and --json cannot be combined", hint="leave one out")

    from smolsum.runs.document import as_document
    from smolsum.runs.paths import open_run
    from smolsum.runs.reader import read_run

    folder = runs_folder(runs_dir)
    interactive = not (once or as_json) and sys.stdout.isatty() and able_to_draw()
    paths, choosing = (open_run(run, folder), False) if run else _newest(folder, at_work_first=interactive)
    further = [open_run(other, folder) for other in others or ()]
    if len(further) > MOST_OTHERS:
        raise UsageError(f"{1 + len(further)} runs are too many for one view", hint=f"at most {1 + MOST_OTHERS}")
    if as_json:
        documents = [as_document(read_run(each)) for each in (paths, *further)]
        answer = {"schema_version": 1, "runs": documents} if further else documents[0]
        console.data(json.dumps(answer, indent=2, allow_nan=False))
        return
    if not interactive:
        if not once:
            console.narrate("not a terminal that can be redrawn: printing one page, as with --once")
        print_page(paths, further, ascii=ascii)
        return
    show(paths, further, ascii=ascii, readonly=readonly, choosing=choosing, following=not run, theme=theme)


def able_to_draw() -> bool:
    """Return whether the view can be opened: stdin and stderr are a terminal that can move its cursor."""
    return console.can_ask() and os.environ.get("TERM", "dumb") not in ("dumb", "")


def print_page(paths: RunPaths, others: Sequence[RunPaths], *, ascii: bool) -> None:
    """Print the page to stdout, in the size of the terminal or of $COLUMNS and $LINES."""
    from smolsum.runs.reader import read_run
    from smolsum.watch.app import plain_page
    from smolsum.watch.model import ViewOptions

    size = shutil.get_terminal_size(PAGE_SIZE)
    encoding = sys.stdout.encoding or "ascii"
    options = ViewOptions(ascii=ascii or not encoding.lower().startswith("utf"))
    further = [read_run(other) for other in others]
    for line in plain_page(read_run(paths), further, options, (size.columns, size.lines)):
        console.data(line.encode(encoding, "replace").decode(encoding))  # a completion may contain any character


def show(
    paths: RunPaths,
    others: Sequence[RunPaths],
    *,
    ascii: bool,
    readonly: bool,
    choosing: bool = False,
    following: bool = False,
    theme: Literal["auto", "dark", "light"] = "auto",
) -> None:
    """Open the view until the user leaves it, then print the state of the run that it showed, and of its grid; exit
    with 1 if the view failed. With `choosing`, the view opens with the list of runs over it; with `following`, it goes
    from run to run of a grid."""
    gc.disable()  # speeds up the first page, whose loading makes no garbage
    from datetime import UTC, datetime

    from smolsum.runs.reader import Run
    from smolsum.runs.state import process_lives, run_state
    from smolsum.watch.app import WatchApp
    from smolsum.watch.model import ViewOptions
    from smolsum.watch.themes import ask_for_background, is_light

    further = [Run(other) for other in others]
    _ask_the_terminal_for_its_size()
    light = is_light(theme, os.environ, ask_for_background)
    app = WatchApp(
        Run(paths),
        further,
        options=ViewOptions(ascii=ascii),
        readonly=readonly,
        choosing=choosing,
        following=following,
        light=light,
    )
    with suppress(termios.error):  # a space that was pressed before the view appeared would pause the run
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    app.run()
    paths = app.watched.paths
    after = Run(paths)
    after.poll_status()
    lives = process_lives(after.status.pid)
    after.poll()  # a process that had ended before has written everything
    stands = run_state(after, datetime.now(UTC), lambda _: lives, gone_s=0.0)
    if grid := app.snapshot().grid:
        _say_how_it_stands(grid, paths)
    elif stands.alive:
        console.narrate(f"run {VERBS.get(stands.state, 'continues')}: smolsum watch {paths.reference}")
    elif stands.detail:
        console.narrate(f"run {stands.state}: {stands.detail}")
        if stands.hint:
            console.narrate(f"hint: {stands.hint}")
    if app.return_code:
        raise typer.Exit(1)


def _say_how_it_stands(grid: GridView, paths: RunPaths) -> None:
    """Print how far a grid is, which of its runs failed, and what continues it."""
    if grid.alive:
        console.narrate(f"grid continues: {grid.text} (smolsum watch {paths.reference})")
    else:
        console.narrate(grid.text)
    if grid.failed:
        console.narrate(f"failed: {', '.join(grid.failed)}")
    if not grid.alive and (grid.failed or not grid.complete):
        console.narrate(f"hint: {grid.command}")


def _ask_the_terminal_for_its_size() -> None:
    """Remove variables that Textual would trust over the real size of the terminal."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


def _newest(folder: Path, *, at_work_first: bool) -> tuple[RunPaths, bool]:
    """Return the newest run; with `at_work_first`, the newest that is being trained, if any. Also return whether there
    are several of these, so that the user should choose."""
    from smolsum.runs.paths import list_runs

    found = list_runs(folder)
    if not found:
        hint = "smolsum train --model tiny makes one; if runs are elsewhere, --runs-dir DIR"
        raise UsageError(f"no runs in {folder}", hint=hint)
    working = []
    if at_work_first:
        from smolsum.runs.listing import at_work

        working = at_work(found)
    return (working or found)[-1], len(working) > 1
