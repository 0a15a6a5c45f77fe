"""`smolsum verify`."""

import dataclasses
import json
import re
import secrets
from typing import Annotated

import typer

from smolsum import console
from smolsum.cli.options import OutputFlags, PluginFlag, RunsFlag, runs_folder
from smolsum.errors import SmolsumError, UsageError

SHOWN = 20
"""differences that are printed"""


def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or directory of a run.", show_default=False)],
    output: OutputFlags,
    steps: Annotated[int, typer.Option(metavar="N", min=0, help="Steps that are drawn and derived again.")] = 10,
    posts: Annotated[int, typer.Option(metavar="N", min=0, help="Posts of each evaluation, likewise.")] = 10,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Draw the same again.  [default: another one every time]")
    ] = None,
    digest: Annotated[str | None, typer.Option(metavar="HEX", help="The run's digest as it was published.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that was found as JSON.")] = False,
    plugin: PluginFlag = None,
    runs_dir: RunsFlag = None,
) -> None:
    """Derive a run's results again, and compare them with what it wrote.

    \b
    smolsum verify runs/mine
    smolsum verify runs/mine --steps 100 --posts 50 --json

    Files are compared with the digests that were taken as they were written.
    Steps and posts are drawn at random. Each step is derived by the training
    loop from the checkpoint before it, with all steps in between: prompts,
    rollouts, rewards, advantages, update and metrics. Evaluations are measured
    again as a whole. Where the machine computes as the one that trained, all
    has to be equal bit for bit, elsewhere within rounding.
    """
    from smolsum.runs.paths import open_run, reading

    if digest and not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise UsageError(
            f"{digest!r} is no digest", hint="a digest is the 64 hex digits that smolsum verify prints last"
        )
    paths = open_run(run, runs_folder(runs_dir))
    drawn_with = secrets.randbits(32) if seed is None else seed
    with reading(paths):
        from smolsum.grpo.progress import Progress
        from smolsum.grpo.verify import VerifiedPart
        from smolsum.grpo.verify import verify as verify_run
        from smolsum.tasks.plugins import use_named_plugins

        use_named_plugins(plugin or [], None, None)
        with Progress(quiet=output.quiet or as_json) as progress:
            found = verify_run(paths, steps=steps, posts=posts, seed=drawn_with, progress=progress)
    if digest and digest.lower() != found.digest:
        unlike = f"the digest of the run is {found.digest or 'unknown'}, and not {digest}"
        found.parts.insert(0, VerifiedPart("digest", "as published", [unlike]))
    if as_json:
        console.data(json.dumps({"schema_version": 1, "run": paths.name, **dataclasses.asdict(found)}, indent=2))
    else:
        rows = [
            [part.name, part.verified, _count(len(part.differences), "difference") if part.differences else "same"]
            for part in found.parts
        ]
        console.data_table(["part", "verified", "result"], rows)
        for text in [*(f"not verified: {text}" for text in found.unverified), *found.differences[:SHOWN]]:
            console.narrate(text)
        if found.digest:
            console.narrate(f"digest of the run: {found.digest}")
    if found.differences:
        more = "; --json has them all" if len(found.differences) > SHOWN and not as_json else ""
        raise SmolsumError(
            f"{paths.name} is not what it says: {_count(len(found.differences), 'difference')}{more}",
            hint=f"--seed {found.seed} draws the same steps and posts again",
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
