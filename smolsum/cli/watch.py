"""`smolsum watch`."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import UsageError

if TYPE_CHECKING:
    from smolsum.runs.paths import RunPaths

VERBS = {"paused": "stays paused", "pausing": "pauses after its step", "stopping": "stops after its step"}
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
    other: Annotated[
        str | None, typer.Argument(metavar="RUN2", help="A second run, drawn next to the first.", show_default=False)
    ] = None,
    runs_dir: RunsFlag = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="Without pause and stop.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the page as plain text and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print state, metrics and alerts as JSON and exit.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")] = False,
) -> None:
    """Look at a run while it trains, or afterwards.

    The view only reads: q and Ctrl-C leave it and the run goes on. Space pauses the run after its step and S stops it,
    both with a checkpoint; ? shows all keys.
    """
    if once and as_json:
        raise UsageError("--once and --json cannot be combined", hint="leave one out")

    from smolsum.runs.paths import open_run
    from smolsum.runs.reader import read_run
    from smolsum.watch.snapshot import as_document

    folder = runs_folder(runs_dir)
    interactive = not (once or as_json) and sys.stdout.isatty() and able_to_draw()
    paths = open_run(run, folder) if run else _newest(folder, ask=interactive)
    if paths is None:
        return
    second = open_run(other, folder) if other else None
    if as_json:
        documents = [as_document(read_run(each)) for each in (paths, second) if each]
        answer = documents[0] if second is None else {"schema_version": 1, "runs": documents}
        console.data(json.dumps(answer, indent=2, allow_nan=False))
        return
    if not interactive:
        if not once:
            console.narrate("not a terminal that can be redrawn: printing one page, as with --once")
        print_page(paths, second, ascii=ascii)
        return
    show(paths, second, ascii=ascii, readonly=readonly)


def able_to_draw() -> bool:
    """Return whether the view can be opened: stdin and stderr are a terminal that can move its cursor."""
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


def print_page(paths: RunPaths, second: RunPaths | None, *, ascii: bool) -> None:
    """Print the page to stdout, in the size of the terminal or of $COLUMNS and $LINES."""
    from smolsum.runs.reader import read_run
    from smolsum.watch.layout import plain_page
    from smolsum.watch.snapshot import ViewOptions

    size = shutil.get_terminal_size(PAGE_SIZE)
    encoding = sys.stdout.encoding or "ascii"
    options = ViewOptions(ascii=ascii or not encoding.lower().startswith("utf"))
    other = read_run(second) if second else None
    for line in plain_page(read_run(paths), other, options, size.columns, size.lines):
        console.data(line.encode(encoding, "replace").decode(encoding))  # a completion may contain any character


def show(paths: RunPaths, second: RunPaths | None, *, ascii: bool, readonly: bool) -> None:
    """Open the view until the user leaves it, then print the run's state; exit with 1 if the view failed."""
    gc.disable()  # speeds up the first page, whose loading makes no garbage
    from datetime import UTC, datetime

    from smolsum.runs.reader import Run
    from smolsum.runs.run_state import process_lives, run_state
    from smolsum.watch.app import WatchApp
    from smolsum.watch.snapshot import ViewOptions

    other = Run(second) if second else None
    _ask_the_terminal_for_its_size()
    app = WatchApp(Run(paths), other, options=ViewOptions(ascii=ascii), readonly=readonly)
    with suppress(termios.error):  # a space that was pressed before the view appeared would pause the run
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    app.run()
    after = Run(paths)
    after.poll_status()
    lives = process_lives(after.status.pid)
    after.poll()  # a process that had ended before has written everything
    stands = run_state(after, datetime.now(UTC), lambda _: lives, gone_s=0.0)
    if stands.alive:
        console.narrate(f"run {VERBS.get(stands.state, 'continues')}: smolsum watch {paths.reference}")
    elif stands.detail:
        console.narrate(f"run {stands.state}: {stands.detail}")
        if stands.hint:
            console.narrate(f"hint: {stands.hint}")
    if app.return_code:
        raise typer.Exit(1)


def _ask_the_terminal_for_its_size() -> None:
    """Remove variables that Textual would trust over the real size of the terminal."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


def _newest(folder: Path, *, ask: bool) -> RunPaths | None:
    """Return the newest run. With `ask`, a run being trained comes first; the user picks one of several or none."""
    from smolsum.runs.paths import list_runs

    found = list_runs(folder)
    if not found:
        hint = "smolsum train --model tiny makes one; if runs are elsewhere, --runs-dir DIR"
        raise UsageError(f"no runs in {folder}", hint=hint)
    if ask:
        from smolsum.runs.listing import at_work

        working = at_work(found)
        if len(working) > 1:
            from smolsum.watch.app import Picker

            _ask_the_terminal_for_its_size()
            return Picker(working).run()
        if working:
            return working[0]
    return found[-1]
