"""A copy of a run at any fsspec URL: uploaded while the run trains, by a thread that training never waits for, and
fetched to resume the run elsewhere.

    URL/<run>/…   the run directory without its lock, `control/` and links

A checkpoint is complete once its meta.json is there, which goes last, after everything that leads to it (metrics,
completions); when a checkpoint is replaced or removed, its meta.json goes first. So the copy can be resumed from at
any moment. fsspec's `rsync` keeps no such order, and compares sizes only.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from smolsum.errors import SmolsumError, UsageError, nearest
from smolsum.files import point, writing
from smolsum.runs.checkpoints import META, Checkpoint, list_checkpoints, verify
from smolsum.runs.mirror_store import Store
from smolsum.runs.paths import LATEST, RunPaths

ROUND_S = 10.0
"""Between two checks of the run directory."""
MAX_WAIT_S = 60.0
"""The longest wait between attempts while the store fails: they begin at `ROUND_S` and double."""
SETTLE_S = 30.0
"""How long the end of a run waits for a store that keeps failing."""
SMALL, GROWN = 256 * 1024, 1.05
"""A file of more than SMALL bytes is copied again once it has grown by the factor GROWN, and with every checkpoint: a
step adds only a line to megabytes of metrics."""
CHECKPOINTS = RunPaths(Path()).checkpoints.name
ONCE = "completions"
"""Folder whose files never change."""

Signature = tuple[int, int]


class Mirror:
    """The mirror of a trainer's runs; does nothing without a URL. Only the trainer's thread may call it.

    `pass_on` reports what happened, for the events; failed copies are tried again while the run lasts.
    """

    def __init__(self, url: str, *, round_s: float = ROUND_S, settle_s: float = SETTLE_S) -> None:
        """Raise SmolsumError unless the store writes, reads and removes a file."""
        self._folder: Store | None = None
        self._round_s, self._settle_s = round_s, settle_s
        self._events: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._wakened, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._there: dict[str, Signature] = {}
        """the files that the store has, apart from checkpoints"""
        self._complete: dict[str, Signature | None] = {}
        """the checkpoints that the store has, by folder, with the signature of meta.json here; None if it differs"""
        self._trouble = False
        self.busy: set[int] = set()
        """the step of the checkpoint that is being copied and must stay meanwhile"""
        if url:
            self._folder = Store(url)
            self._folder.prove()

    def expect_none(self, name: str) -> None:
        """Raise UsageError if a run of this name is mirrored already."""
        if self._folder is not None and (store := self._folder.child(name)).sizes():
            raise UsageError(
                f"there is a run at {store.url} already",
                hint=f"--name OTHER, or resume it: smolsum train --resume {store.url}",
            )

    def begin(self, paths: RunPaths) -> None:
        """Start copying. Raises UsageError if the store holds another run of this name, or more of this run than the
        directory, which would be lost."""
        if self._folder is None:
            return
        self._paths, self._store = paths, self._folder.child(paths.name)
        self._take_stock()
        self._events.put(("mirror", f"mirrored to {self._store.url}"))
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Copy what is new now, instead of at the next check."""
        self._wakened.set()

    def pass_on(self, report: Callable[[str, str], None]) -> None:
        """Report the events since the last call, by kind and sentence."""
        with suppress(Empty):
            while True:
                report(*self._events.get_nowait())

    def settle(self, report: Callable[[str, str], None], say: Callable[[str], None]) -> None:
        """Wait until everything is copied, or the store has failed for `settle_s`, and report what is missing; `say`
        gets a note if this takes a while."""
        if self._thread is None:
            return
        if self._trouble or any(map(self._is_new, list_checkpoints(self._paths))):
            say("waiting for the mirror; Ctrl-C leaves it behind")
        self._until = time.monotonic() + self._settle_s
        self._closing.set()
        self.wake()
        self._thread.join()
        self._thread = None
        self.pass_on(report)

    def _take_stock(self) -> None:
        """Find out what the store has of this run."""
        sizes, info = self._store.sizes(), self._paths.info.name
        if info in sizes and _identity(self._store.read(info)) != _identity(self._paths.info.read_bytes()):
            raise UsageError(
                f"{self._store.url} is the mirror of another run called {self._paths.name}", hint="--mirror another URL"
            )
        here = {self._name(one.path): one for one in list_checkpoints(self._paths)}
        newest = max((one.step for one in here.values()), default=0)
        for place in sorted(_complete_checkpoints(sizes), reverse=True):
            if int(place.rpartition("step-")[2]) > newest:
                raise UsageError(
                    f"{self._store.url} has {Path(place).name} of this run, and {self._paths.root} only step {newest}",
                    hint=f"smolsum train --resume {self._store.url} --runs-dir ANOTHER, or --mirror none",
                )
            meta = here[place].path / META if place in here else None
            same = meta and self._store.read(f"{place}/{META}") == meta.read_bytes()
            self._complete[place] = _signature(meta) if meta and same else None
        for path in _files(self._paths):
            name = self._name(path)
            if name.startswith(f"{ONCE}/") and sizes.get(name) == path.stat().st_size:
                self._there[name] = _signature(path)

    def _work(self) -> None:
        wait = self._round_s
        while True:
            # while the store fails, a checkpoint does not shorten the wait
            waking = self._closing if self._trouble and not self._closing.is_set() else self._wakened
            waking.wait(wait)
            self._wakened.clear()
            closing = self._closing.is_set()
            try:
                self._round()
            except Exception as error:  # training continues after any error here
                if not self._trouble:
                    self._events.put(("mirror_failed", f"the mirror is behind: {error}; it is tried again"))
                self._trouble, wait = True, min(2 * wait, self._round_s if closing else MAX_WAIT_S)
                if closing and time.monotonic() + wait > self._until:
                    lacking = f"{self._store.url} lacks the end of the run ({error})"
                    self._events.put(("mirror_behind", f"{lacking}; {self._paths.resume_command} copies it"))
                    return
            else:
                if self._trouble:
                    self._events.put(("mirror_back", f"{self._store.url} takes files again, and has all"))
                self._trouble, wait = False, self._round_s
                if closing:
                    return

    def _round(self) -> None:
        """Copy what is new or has changed. The metrics of a listed checkpoint are in the files copied first."""
        checkpoints = list_checkpoints(self._paths)
        every = self._closing.is_set() or any(map(self._is_new, checkpoints))
        for path in _files(self._paths):
            with suppress(FileNotFoundError):
                self._copy(path, every)
        for checkpoint in reversed(checkpoints):  # the newest first: a resume begins from it
            self.busy = {checkpoint.step}
            try:
                with suppress(FileNotFoundError):  # removed before it was copied
                    if self._is_new(checkpoint):
                        self._copy_checkpoint(checkpoint)
            finally:
                self.busy = set()
        for place in sorted(self._complete.keys() - {self._name(one.path) for one in checkpoints}):
            self._store.remove_folder(place, META)
            del self._complete[place]

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        """Whether the store lacks this checkpoint, or has a different one of its step."""
        with suppress(FileNotFoundError):
            return self._complete.get(self._name(checkpoint.path)) != _signature(checkpoint.path / META)
        return False

    def _copy(self, path: Path, every: bool) -> None:
        name, signature = self._name(path), _signature(path)
        before = self._there.get(name)
        hardly_grown = before is not None and max(SMALL, before[0]) <= signature[0] < GROWN * before[0]
        if before == signature or (hardly_grown and not every):
            return
        self._store.write(name, path.read_bytes())
        self._there[name] = signature

    def _copy_checkpoint(self, checkpoint: Checkpoint) -> None:
        folder, place = checkpoint.path, self._name(checkpoint.path)
        signature = _signature(folder / META)
        if place in self._complete:
            self._store.remove(f"{place}/{META}")
            del self._complete[place]
        for file in (*checkpoint.meta.files, META):
            self._store.write(f"{place}/{file}", folder / file)
        self._complete[place] = signature

    def _name(self, path: Path) -> str:
        return path.relative_to(self._paths.root).as_posix()


def fetch_run(url: str, runs_dir: Path, report: Callable[[str], None]) -> RunPaths:
    """Copy the run at `url` into `runs_dir`, whole or not at all, without incomplete checkpoints; `report` gets notes
    for the user. Raises UsageError if there is no run at `url`, or one with its name in `runs_dir`."""
    store = Store(url, writes=False)
    name = store.url.rpartition("/")[2]
    paths, fetched = RunPaths(runs_dir / name), RunPaths(runs_dir / f".{name}.fetching")
    if not {paths.config.name, paths.info.name} <= set(store.names("file")):
        raise _no_run(store)
    if paths.root.exists():
        raise UsageError(
            f"run {name!r} exists already in {runs_dir}",
            hint=f"{paths.resume_command} continues that one; for the mirrored one --runs-dir ANOTHER",
        )
    sizes = store.sizes()
    complete = _complete_checkpoints(sizes)
    wanted = [
        file for file in sorted(sizes)
        if (not file.startswith(f"{CHECKPOINTS}/") or file.rpartition("/")[0] in complete)
        and not file.rpartition("/")[2].startswith(".")
    ]  # fmt: skip
    report(f"fetching {len(wanted)} files, {sum(sizes[file] for file in wanted) / 1e6:.1f} MB, from {store.url}")
    with writing(paths.root, f"smolsum train --resume {url}"):
        shutil.rmtree(fetched.root, ignore_errors=True)
        try:
            store.fetch({file: fetched.root / file for file in wanted})
            for folder in (fetched.checkpoints, fetched.control, fetched.evaluations):
                folder.mkdir(exist_ok=True)
            for checkpoint in list_checkpoints(fetched):
                if problems := verify(checkpoint.path):
                    report(f"checkpoint {checkpoint.path.name} of {store.url} is left out: {'; '.join(problems)}")
                    shutil.rmtree(checkpoint.path)
            if whole := list_checkpoints(fetched):
                point(fetched.checkpoints / LATEST, whole[-1].path.name)
            fetched.root.rename(paths.root)
            point(runs_dir / LATEST, name)
        except BaseException:
            shutil.rmtree(fetched.root, ignore_errors=True)
            raise
    return paths


def _no_run(store: Store) -> SmolsumError:
    """The error for a URL without a run, with the runs below it or next to it."""
    parent, _, name = store.url.rpartition("/")
    if below := [each for each in store.names("directory") if "run.json" in store.child(each).names("file")]:
        hint = f"it holds {', '.join(below[-8:])}: --resume {store.url}/{below[-1]}"
    elif not parent.endswith("/") and (known := Store(parent, writes=False).names("directory")):
        hint = nearest(name, known)
    else:
        hint = "--resume URL/NAME, as the run said when it began"
    return UsageError(f"no run at {store.url}", hint=hint)


def _complete_checkpoints(names: Collection[str]) -> set[str]:
    """The folders of complete checkpoints among the files of a store."""
    return {n.rpartition("/")[0] for n in names if n.startswith(f"{CHECKPOINTS}/") and n.endswith(f"/{META}")}


def _files(paths: RunPaths) -> Iterator[Path]:
    """The files of a run directory without checkpoints, lock and requests; those that identify the run come first."""
    yield from (path for path in (paths.config, paths.info) if path.exists())
    for folder, folders, names in os.walk(paths.root):
        here = Path(folder)
        apart = (paths.control, paths.checkpoints)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and here / name not in apart)
        for name in sorted(names):
            path = here / name
            if not (name.startswith(".") or path.is_symlink() or path in (paths.lock, paths.config, paths.info)):
                yield path


def _identity(info: bytes) -> object:
    """Identify the run of a run.json by the time it was made; other fields may change."""
    with suppress(ValueError, TypeError, KeyError):
        return json.loads(info)["created"]
    return info


def _signature(path: Path) -> Signature:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns
