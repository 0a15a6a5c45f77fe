"""`smolsum track`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.config.fields import TRACKERS, names_in
from smolsum.errors import SmolsumError, UsageError

if TYPE_CHECKING:
    from smolsum.runs.paths import RunPaths


def track(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name or directory of a run, also of a finished or copied one.")
    ],
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="NAME",
            help=f"Tracker: {', '.join(TRACKERS)}; repeatable.  [default: those that have the run, or that its "
            "settings name]",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue until the run ends, trying again where the tracker fails.")
    ] = False,
    project: Annotated[
        str,
        typer.Option(
            "--project",
            metavar="NAME",
            help="Project of a run that the tracker does not have yet.  [default: the run's setting, the tracker's "
            "environment, or smolsum]",
            show_default=False,
        ),
    ] = "",
    runs_dir: RunsFlag = None,
) -> None:
    """Send a run to an experiment tracker, or what the tracker lacks of it.

    \b
    A run that is over, and later the evaluations that it got since:
      smolsum track runs/mine --to tensorboard
      smolsum track runs/mine
    """
    from smolsum.runs.paths import open_run
    from smolsum.runs.reader import Run
    from smolsum.runs.tracker_packages import check_tracker

    paths = open_run(run, runs_folder(runs_dir))
    seen = Run(paths, last_bytes=1)  # for its settings alone
    seen.poll()
    settings = seen.config.get("run", {})
    known = sorted(path.stem for path in paths.trackers.glob("*.json"))
    names = list(dict.fromkeys(to or known or names_in(str(settings.get("track", "")))))
    if not names:
        raise UsageError(
            f"no tracker has run {paths.name!r}", hint=f"smolsum track {paths.reference} --to {TRACKERS[0]}"
        )
    if follow and len(names) > 1:
        raise UsageError(
            f"--follow takes one tracker, and {', '.join(names)} are meant",
            hint=f"smolsum track {paths.reference} --to {names[0]} --follow, and one command for each other",
        )
    for name in names:
        check_tracker(name)
    for name in names:
        _send(paths, name, project or str(settings.get("track_project", "")), following=follow)


def _send(paths: RunPaths, name: str, project: str, *, following: bool) -> None:
    """Send the run to one tracker, and print where it can be seen there."""
    from smolsum.files import locked
    from smolsum.runs.trackers import Follower, follow, track_command

    again = track_command(paths, name)
    busy = f"run {paths.name!r} is being sent to {name}"
    while True:
        try:
            with locked(paths.trackers / f".{name}.lock", busy, again):
                follower = Follower(paths, name, project)
                if following:
                    follow(follower, console.warn)
                else:
                    follower.send()
                    follower.close()
                    follower.note("")
            break
        except UsageError as error:
            if not (following and error.message.startswith(busy)):
                raise
            time.sleep(1)  # the process of an earlier attempt sees that the run continues, or ends
        except SmolsumError as error:
            error.hint = error.hint or again
            raise
    console.data(f"{name}: {follower.record.url or 'has everything'}")
