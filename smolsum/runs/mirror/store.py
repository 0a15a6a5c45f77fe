"""A folder at an fsspec URL (`s3://bucket/runs`, `sftp://…`, a mounted disk) that mirrors runs: its checks, its files,
and fetching a run from it. Whatever library is used, errors are SmolsumErrors.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from smolsum.errors import SmolsumError, UnreachableError, UsageError, nearest
from smolsum.files import FULL, point, writing
from smolsum.runs.checkpoints import META, list_checkpoints, verify
from smolsum.runs.paths import LATEST, RunPaths

SEPARATOR = "://"
LOCAL = ("file", "local")
READ_ONLY = ("http", "https", "github", "gist", "git", "data", "zip", "tar", "libarchive", "reference")
"""Protocols that fsspec can only read."""
MIRROR = "--mirror s3://BUCKET/FOLDER, or file:///FOLDER for a disk"


def protocol_of(url: str) -> str:
    """Return the protocol of a folder's URL. Raises UsageError for text that is not such a URL, a URL with a password,
    and a protocol without an installed library."""
    protocol, found, place = url.rstrip("/").partition(SEPARATOR)
    if not found or not place or (protocol in LOCAL and not place.startswith("/")):
        raise UsageError(f"not a URL of a folder: {url!r}", hint=MIRROR)
    if urlsplit(url).password:
        raise UsageError(
            "--mirror holds a password, which would be written into the run's settings",
            hint="give credentials by the environment (AWS_… for s3) or the store's own configuration file",
        )
    from fsspec import get_filesystem_class

    for name in _protocols(url):
        try:
            get_filesystem_class(name)
        except ImportError as error:
            extra = "uv sync --extra s3, or pip install s3fs" if name in ("s3", "s3a") else f"pip install: {error}"
            raise UsageError(f"nothing installed can reach {url}", hint=extra) from error
        except ValueError as error:
            raise UsageError(f"cannot mirror to {url}: {error}", hint=MIRROR) from error
    return protocol


def check_mirror(url: str) -> None:
    """Raise UsageError for a URL that cannot keep files, before anything is loaded."""
    protocol_of(url)
    for name in _protocols(url):
        if name == "memory":
            raise UsageError(f"{url} is gone when this process ends, so no run could be resumed from it", hint=MIRROR)
        if name in READ_ONLY:
            raise UsageError(f"{url} cannot be written to: fsspec only reads {name}", hint=MIRROR)


def _protocols(url: str) -> list[str]:
    """The protocols of a chained URL: `simplecache::s3://BUCKET` has two."""
    return [part.partition(SEPARATOR)[0] for part in url.split("::")]


RENAMING = ("file", "local", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs")
"""Protocols that show files while they are written, and can rename; object stores show only whole objects."""
SHOWN = 200
"""Characters quoted from the error of a library."""


class Store:
    """Files below a URL, by relative name. Every call raises SmolsumError, whichever library does the work."""

    def __init__(self, url: str) -> None:
        """Raise UsageError as `protocol_of` does; the store is not contacted yet."""
        self.url = url.rstrip("/")
        self._protocol = protocol_of(url)
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as error:
            raise UsageError(f"cannot mirror to {url}: {error}", hint=MIRROR) from error
        except OSError as error:  # some connect at once
            raise UnreachableError(f"cannot reach {url}: {error}", hint="check the network and the URL") from error
        # the mirror reports retries itself
        logging.getLogger("s3fs").setLevel(logging.CRITICAL)
        self._renames = self._protocol in RENAMING

    def child(self, name: str) -> Store:
        """Return the folder `name` below this one, reached by the same connection."""
        below = copy(self)
        below.url, below._root = f"{self.url}/{name}", self._path(name)
        return below

    def prove(self) -> None:
        """Write a file, read it back and remove it, so that what keeps a run from being mirrored is an error early."""
        name, content = f".smolsum-{secrets.token_hex(8)}", secrets.token_bytes(16)
        self.write(name, content)
        if self.read(name) != content:
            raise SmolsumError(f"{self.url} returns a different file than was written", hint="--mirror another URL")
        self.remove(name)

    def sizes(self) -> dict[str, int]:
        """Return the size of every file below, in bytes."""
        with self._asking("list"):
            self._fs.invalidate_cache()
            found: dict[str, Any] = self._fs.find(self._root, detail=True)
            prefix = self._root.rstrip("/") + "/"
            return {path.removeprefix(prefix): int(info["size"]) for path, info in found.items()}

    def folders(self) -> list[str]:
        """Return the names of the folders directly below."""
        with self._asking("list"), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return sorted(posixpath.basename(f["name"].rstrip("/")) for f in found if f["type"] == "directory")
        return []

    def has(self, name: str) -> bool:
        """Whether the file exists."""
        with self._asking("read"):
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._path(name)))

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._asking("read"):
            return bytes(self._fs.cat_file(self._path(name)))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this machine; OSError if the disk here refuses it."""
        try:
            with self._asking("read"):
                self._fs.get_file(self._path(name), str(target))
        except SmolsumError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and (cause.errno in FULL or cause.filename == str(target)):
                raise cause from None
            raise

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: readers see the old or the new content, never a part."""
        with self._asking("write"), self._target(name) as path:
            self._fs.pipe_file(path, content)

    def put(self, source: Path, name: str) -> None:
        """Like `write`, from a file that does not change meanwhile; FileNotFoundError if it is gone."""
        try:
            with self._asking("write"), self._target(name) as path:
                self._fs.put_file(str(source), path)
        except SmolsumError:
            source.stat()
            raise

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._asking("remove files"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder; object stores have no folders."""
        if self._renames:
            with suppress(Exception):  # not empty, or gone: harmless
                self._fs.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    @contextmanager
    def _target(self, name: str) -> Iterator[str]:
        """Yield the path to write to, so that the file appears whole."""
        path = self._path(name)
        if not self._renames:
            yield path
            return
        folder, last = posixpath.split(path)
        temporary = posixpath.join(folder, f".{last}.{os.getpid()}.tmp")
        self._fs.makedirs(folder, exist_ok=True)
        try:
            yield temporary
            self._fs.mv(temporary, path)
        except BaseException:
            with suppress(Exception):  # half a file on a full disk would block the next attempt
                self._fs.rm_file(temporary)
            raise

    @contextmanager
    def _asking(self, deed: str) -> Iterator[None]:
        """Turn any error of the library into a SmolsumError; `deed` says what was tried."""
        try:
            yield
        except Exception as error:
            if self._protocol in LOCAL and isinstance(error, OSError) and error.errno is not None:
                raise _refusal(error, self.url, deed) from error
            raise _failure(error, self.url, deed) from error


def _refusal(error: OSError, url: str, deed: str) -> SmolsumError:
    """The error for a disk of this machine."""
    said = f"{error.strerror} ({error.filename})" if error.filename else error.strerror or str(error)
    if error.errno in FULL:
        return SmolsumError(f"the disk is full at {url}", hint="free space there, or choose another URL")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return UsageError(
            f"{url} cannot be a folder, as there is a file: {said}", hint="move that file away, or choose another URL"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UsageError(
            f"{url} does not let us {deed}: {said}",
            hint="make it a folder that you may write to, or choose another URL",
        )
    if error.errno == errno.ENOENT:
        return UsageError(f"{url} is not there: {said}", hint="make the folder, mount its disk, or correct the URL")
    return SmolsumError(f"{url} cannot {deed}: {said}", hint="check that disk, or choose another URL")


def _failure(error: Exception, url: str, deed: str) -> SmolsumError:
    """The error for a store on the network."""
    said = " ".join(str(error).split())[:SHOWN] or type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError"}:
        return UsageError(
            f"{url} does not let us {deed}: {said}",
            hint="give this machine credentials for it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3)",
        )
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{url} is not there: {said}", hint="make the bucket or folder, or correct the URL")
    if kinds & {"ConnectionError", "TimeoutError", "HTTPClientError", "BotoCoreError", "ClientError", "OSError"}:
        return UnreachableError(
            f"{url} does not answer: {type(error).__name__}: {said}",
            hint="check the network and the URL (AWS_ENDPOINT_URL_S3 for a server of your own), then try again",
        )
    return SmolsumError(f"{url} cannot {deed}: {type(error).__name__}: {said}", hint="--mirror another URL")


def fetch_run(url: str, runs_dir: Path, report: Callable[[str], None]) -> RunPaths:
    """Copy the run at `url` into `runs_dir`, whole or not at all, without incomplete checkpoints; `report` gets notes
    for the user. Raises UsageError if there is no run at `url`, or one with its name in `runs_dir`."""
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
    report(f"fetching {len(wanted)} files, {sum(sizes[file] for file in wanted) / 1e6:.1f} MB, from {store.url}")
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
                    report(f"checkpoint {checkpoint.path.name} of {store.url} is left out: {'; '.join(problems)}")
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
    """The files of a run, without checkpoints that have no meta.json."""
    folders = {file.rsplit("/", 1)[0] for file in files if file.endswith(f"/{META}")}

    def belongs(file: str) -> bool:
        parts = file.split("/")
        return parts[0] != checkpoints or "/".join(parts[:2]) in folders

    return sorted(file for file in files if belongs(file) and not file.split("/")[-1].startswith("."))


def _no_run(store: Store) -> SmolsumError:
    """The error for a URL without a run, with the runs below it or next to it."""
    parent, name = store.url.rsplit("/", 1)
    if below := [folder for folder in store.folders() if store.has(f"{folder}/run.json")]:
        hint = f"it holds {', '.join(below[-8:])}: --resume {store.url}/{below[-1]}"
    elif not parent.endswith("/") and (known := Store(parent).folders()):
        hint = nearest(name, known)
    else:
        hint = "--resume URL/NAME, as the run said when it began"
    return UsageError(f"no run at {store.url}", hint=hint)
