"""A run brought back from where it is mirrored, to go on with it here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from smolsum.checkpoints import META, list_checkpoints, verify
from smolsum.disk import point, writing
from smolsum.errors import SmolsumError, UsageError
from smolsum.mirror.store import Store
from smolsum.runs import LATEST, RunPaths
from smolsum.values import nearest


def fetch_run(url: str, runs_dir: Path, tell: Callable[[str], None]) -> RunPaths:
    """Copies the run at `url` into `runs_dir`, as a whole or not at all; checkpoints that are not complete stay behind.

    `tell` gets what a person should know. UsageError where there is no run, or one of its name is here already.
    """
    store = Store(url)
    name = store.url.rsplit("/", 1)[-1]
    paths = RunPaths(runs_dir / name)
    if not (store.has(paths.config.name) and store.has(paths.info.name)):
        raise _no_run(store)
    if paths.root.exists():
        raise UsageError(
            f"run {name!r} exists already in {runs_dir}",
            hint=f"{paths.resume_command} goes on with that one; for the mirrored one --runs-dir ANOTHER",
        )
    temporary = runs_dir / f".{name}.fetching"
    sizes = store.sizes()
    wanted = _complete(list(sizes), paths.checkpoints.name)
    tell(f"fetching {len(wanted)} files, {sum(sizes[file] for file in wanted) / 1e6:.1f} MB, from {store.url}")
    with writing(paths.root, f"smolsum train --resume {url}"):
        shutil.rmtree(temporary, ignore_errors=True)
        fetched = RunPaths(temporary)
        try:
            for file in wanted:
                target = temporary / file
                target.parent.mkdir(parents=True, exist_ok=True)
                store.fetch(file, target)
            for folder in (fetched.checkpoints, fetched.control, fetched.evaluations):
                folder.mkdir(exist_ok=True)
            for checkpoint in list_checkpoints(fetched):
                if problems := verify(checkpoint.path):
                    tell(f"checkpoint {checkpoint.path.name} of {store.url} is left out: {'; '.join(problems)}")
                    shutil.rmtree(checkpoint.path)
            if whole := list_checkpoints(fetched):
                point(fetched.checkpoints / LATEST, whole[-1].path.name)
            temporary.rename(paths.root)
            point(runs_dir / LATEST, name)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return paths


def _complete(files: list[str], checkpoints: str) -> list[str]:
    """The files of a run but for those of checkpoints that have no meta.json yet, or no more."""
    folders = {file.rsplit("/", 1)[0] for file in files if file.endswith(f"/{META}")}

    def belongs(file: str) -> bool:
        parts = file.split("/")
        return parts[0] != checkpoints or "/".join(parts[:2]) in folders

    return sorted(file for file in files if belongs(file) and not file.split("/")[-1].startswith("."))


def _no_run(store: Store) -> SmolsumError:
    """The error for a URL without a run, with the runs that are below or beside it."""
    parent, name = store.url.rsplit("/", 1)
    if below := [folder for folder in store.folders() if store.has(f"{folder}/run.json")]:
        hint = f"it holds {', '.join(below[-8:])}: --resume {store.url}/{below[-1]}"
    elif not parent.endswith("/") and (known := Store(parent).folders()):
        hint = nearest(name, known)
    else:
        hint = "--resume URL/NAME, as the run said when it began"
    return UsageError(f"no run at {store.url}", hint=hint)
