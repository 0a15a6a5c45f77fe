"""Copies a run directory to a store while the run trains, in a thread that training never waits for.

    URL/<run>/…   the run directory without its lock, `control/` and links

A checkpoint is complete once its meta.json is there, which goes last, after everything that leads to it (metrics,
completions); when a checkpoint is replaced or removed, its meta.json goes first. So the store can be resumed from at
any moment.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from smolsum.errors import UsageError
from smolsum.runs.checkpoints import META, Checkpoint, list_checkpoints
from smolsum.runs.mirror.store import Store, check_mirror
from smolsum.runs.paths import RunPaths

ROUND_S = 10.0
"""Between two checks of the run directory."""
MAX_WAIT_S = 60.0
"""The longest wait between attempts while the store fails: they begin at `ROUND_S` and double."""
SETTLE_S = 30.0
"""How long the end of a run waits for a store that keeps failing."""
SMALL, GROWN = 256 * 1024, 1.05
"""A file of more than SMALL bytes is copied again once it has grown by the factor GROWN, and with every checkpoint: a
step adds only a line to megabytes of metrics."""
ONCE = "completions"
"""Folder whose files never change."""

Signature = tuple[int, int]


class Mirror:
    """The mirror of a trainer's runs; does nothing without a URL. Only the trainer's thread may call it.

    `pass_on` reports what happened, for the events; failed copies are tried again while the run lasts.
    """

    def __init__(self, url: str, *, round_s: float = ROUND_S, settle_s: float = SETTLE_S) -> None:
        """Raise SmolsumError unless the store writes, reads and removes a file."""
        if url:
            check_mirror(url)
        self._folder = Store(url) if url else None
        self._round_s, self._settle_s = round_s, settle_s
        self._events: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._wakened, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._there: dict[str, Signature] = {}
        self._complete: set[str] = set()
        self._until = 0.0
        self._trouble = False
        self.busy: set[int] = set()
        """the step of the checkpoint that is being copied and must stay meanwhile"""
        if self._folder is not None:
            self._folder.prove()

    def expect_none(self, name: str) -> None:
        """Raise UsageError if a run of this name is mirrored already."""
        if self._folder is not None and (store := self._folder.child(name)).sizes():
            raise UsageError(
                f"there is a run at {store.url} already",
                hint=f"--name OTHER, or go on with it: smolsum train --resume {store.url}",
            )

    def begin(self, paths: RunPaths) -> None:
        """Start copying. Raises UsageError if the store holds another run of this name, or more of this run than the
        directory, which would be lost."""
        if self._folder is None:
            return
        self._paths, self._store = paths, self._folder.child(paths.name)
        self._take_stock(self._store.sizes())
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

    def _take_stock(self, sizes: dict[str, int]) -> None:
        """Find out what the store has of this run."""
        info = self._paths.info.name
        if info in sizes and _identity(self._store.read(info)) != _identity(self._paths.info.read_bytes()):
            raise UsageError(
                f"{self._store.url} is the mirror of another run called {self._paths.name}", hint="--mirror another URL"
            )
        whole = {c.path.name: c for c in list_checkpoints(self._paths)}
        prefix = f"{self._paths.checkpoints.name}/"
        held = {name.split("/")[1] for name in sizes if name.startswith(prefix) and name.endswith(f"/{META}")}
        newest = max((c.step for c in whole.values()), default=0)
        if ahead := [name for name in held if int(name.removeprefix("step-")) > newest]:
            raise UsageError(
                f"{self._store.url} has {max(ahead)} of this run, and {self._paths.root} only step {newest}",
                hint=f"smolsum train --resume {self._store.url} --runs-dir ANOTHER, or --mirror none",
            )
        for name in held & whole.keys():
            if self._store.read(f"{prefix}{name}/{META}") == (whole[name].path / META).read_bytes():
                self._there[f"{prefix}{name}"] = _signature(whole[name].path / META)
        self._complete = held
        for path in _files(self._paths):
            name = self._name(path)
            if name.startswith(f"{ONCE}/") and sizes.get(name) == path.stat().st_size:
                self._there[name] = _signature(path)

    def _work(self) -> None:
        wait = self._round_s
        while True:
            self._wakened.wait(wait)
            self._wakened.clear()
            closing = self._closing.is_set()
            try:
                self._round()
            except Exception as error:  # training goes on after any error here
                if not self._trouble:
                    self._events.put(("mirror_failed", f"the mirror is behind: {error}; it is tried again"))
                self._trouble, wait = True, min(2 * wait, MAX_WAIT_S)
                if closing:
                    wait = min(wait, self._round_s)
                    if time.monotonic() + wait > self._until:
                        self._give_up(error)
                        return
                else:
                    self._closing.wait(wait)  # a checkpoint in between does not shorten the wait
            else:
                if self._trouble:
                    self._events.put(("mirror_back", f"{self._store.url} takes files again, and has all"))
                self._trouble, wait = False, self._round_s
                if closing:
                    return

    def _give_up(self, error: Exception) -> None:
        again = self._paths.resume_command
        self._events.put(("mirror_behind", f"{self._store.url} lacks the end of the run ({error}); {again} copies it"))

    def _round(self) -> None:
        """Copy what is new or has changed. The metrics of a listed checkpoint are in the files copied first."""
        checkpoints = {c.path.name: c for c in list_checkpoints(self._paths)}
        every = self._closing.is_set() or any(self._is_new(c) for c in checkpoints.values())
        for path in _files(self._paths):
            with suppress(FileNotFoundError):
                self._copy(path, every)
        for name, checkpoint in sorted(checkpoints.items(), key=lambda item: -item[1].step):
            self.busy = {checkpoint.step}
            try:
                with suppress(FileNotFoundError):  # removed before it was copied
                    if self._is_new(checkpoint):
                        self._copy_checkpoint(name, checkpoint)
            finally:
                self.busy = set()
        for name in sorted(self._complete - checkpoints.keys()):
            self._remove_checkpoint(name)

    def _is_new(self, checkpoint: Checkpoint) -> bool:
        """Whether the store lacks this checkpoint, or has a different one of its step."""
        with suppress(FileNotFoundError):
            return self._there.get(self._name(checkpoint.path)) != _signature(checkpoint.path / META)
        return False

    def _copy(self, path: Path, every: bool) -> None:
        name, signature = self._name(path), _signature(path)
        before = self._there.get(name)
        hardly_grown = before is not None and max(SMALL, before[0]) <= signature[0] < GROWN * before[0]
        if before == signature or (hardly_grown and not every):
            return
        self._store.write(name, path.read_bytes())
        self._there[name] = signature

    def _copy_checkpoint(self, name: str, checkpoint: Checkpoint) -> None:
        folder, place = checkpoint.path, self._name(checkpoint.path)
        seal = _signature(folder / META)
        if name in self._complete:
            self._store.remove(f"{place}/{META}")
            self._complete.discard(name)
        for file in checkpoint.meta.files:
            self._store.put(folder / file, f"{place}/{file}")
        self._store.write(f"{place}/{META}", (folder / META).read_bytes())
        self._complete.add(name)
        self._there[place] = seal

    def _remove_checkpoint(self, name: str) -> None:
        place = f"{self._paths.checkpoints.name}/{name}/"
        found = [file for file in self._store.sizes() if file.startswith(place)]
        for file in sorted(found, key=lambda file: not file.endswith(f"/{META}")):
            self._store.remove(file)
        self._store.remove_folder(place.rstrip("/"))
        self._complete.discard(name)
        self._there.pop(place.rstrip("/"), None)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._paths.root).as_posix()


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
