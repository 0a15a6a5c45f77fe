"""A folder at any fsspec URL (`s3://bucket/runs`, `sftp://…`, a mounted disk): its checks, whole files in and out, and
one SmolsumError for whatever a library raises."""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.files import FULL

LOCAL = ("file", "local")
READ_ONLY = ("http", "https", "github", "gist", "git", "data", "zip", "tar", "libarchive", "reference")
"""Protocols that fsspec can only read."""
RENAMING = (*LOCAL, "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs")
"""Protocols that show files while they are written, and can rename; object stores show only whole objects."""
MIRROR = "--mirror s3://BUCKET/FOLDER, or file:///FOLDER for a disk"
SHOWN = 200
"""Characters quoted from the error of a library."""


def check_url(url: str, *, writes: bool = True) -> None:
    """Raise UsageError for text that is not the URL of a folder, for a URL with a password, and for a protocol that no
    installed library has or, if it `writes`, that cannot keep files. Connects to nothing."""
    protocol, found, place = url.rstrip("/").partition("://")
    if not found or not place or (protocol in LOCAL and not place.startswith("/")):
        raise UsageError(f"not a URL of a folder: {url!r}", hint=MIRROR)
    if urlsplit(url).password:
        raise UsageError(
            "--mirror holds a password, which would be written into the run's settings",
            hint="give credentials by the environment (AWS_… for s3) or the store's own configuration file",
        )
    from fsspec import get_filesystem_class

    for name in (part.partition("://")[0] for part in url.split("::")):  # simplecache::s3://BUCKET has two
        try:
            get_filesystem_class(name)
        except ImportError as error:
            extra = "uv sync --extra s3, or pip install s3fs" if name in ("s3", "s3a") else f"pip install: {error}"
            raise UsageError(f"nothing installed can reach {url}", hint=extra) from error
        except ValueError as error:
            raise UsageError(f"cannot mirror to {url}: {error}", hint=MIRROR) from error
        if writes and name == "memory":
            raise UsageError(f"{url} is gone when this process ends, so no run could be resumed from it", hint=MIRROR)
        if writes and name in READ_ONLY:
            raise UsageError(f"{url} cannot be written to: fsspec only reads {name}", hint=MIRROR)


class Store:
    """Files below a URL, by relative name. Every call raises SmolsumError, whichever library does the work."""

    def __init__(self, url: str, *, writes: bool = True) -> None:
        """Raise UsageError as `check_url` does. Most stores are not contacted yet."""
        check_url(url, writes=writes)
        from fsspec.core import url_to_fs

        logging.getLogger("s3fs").setLevel(logging.CRITICAL)  # the mirror reports retries itself
        self.url, self._protocol = url.rstrip("/"), url.partition("://")[0]
        with self._asking("connect"):
            self._fs = _folder(*url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True))

    def child(self, name: str) -> Store:
        """Return the folder `name` below this one, reached by the same connection."""
        below = copy(self)
        below.url, below._fs = f"{self.url}/{name}", _folder(self._fs, name)
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
            return {name: int(info["size"]) for name, info in self._fs.find("", detail=True).items()}

    def names(self, kind: Literal["file", "directory"]) -> list[str]:
        """Return the names of the files or folders directly below."""
        with self._asking("list"), suppress(FileNotFoundError):
            found = self._fs.ls("", detail=True)
            return sorted(posixpath.basename(one["name"].rstrip("/")) for one in found if one["type"] == kind)
        return []

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._asking("read"):
            return bytes(self._fs.cat_file(name))

    def fetch(self, targets: Mapping[str, Path]) -> None:
        """Copy files to this machine, many at once where the library can; OSError if the disk here refuses one."""
        try:
            with self._asking("read"):
                self._fs.get(list(targets), [str(target) for target in targets.values()])
        except SmolsumError as error:
            cause = error.__cause__
            here = {str(target) for target in targets.values()}
            if isinstance(cause, OSError) and (cause.errno in FULL or cause.filename in here):
                raise cause from None
            raise

    def write(self, name: str, content: bytes | Path) -> None:
        """Replace a file: readers see the old or the new content, never a part. A Path is a file that does not change
        meanwhile; FileNotFoundError if it is gone."""
        try:
            with self._asking("write"), self._target(name) as target:
                if isinstance(content, Path):
                    self._fs.put_file(str(content), target)
                else:
                    self._fs.pipe_file(target, content)
        except SmolsumError:
            if isinstance(content, Path):
                content.stat()
            raise

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._asking("remove files"), suppress(FileNotFoundError):
            self._fs.rm_file(name)

    def remove_folder(self, name: str, first: str) -> None:
        """Remove a folder, and of it the file `first` before all others."""
        for file in (first, *self.child(name).sizes()):
            self.remove(f"{name}/{file}")
        if self._protocol in RENAMING:  # object stores have no folders
            with suppress(Exception):  # not empty, or gone: harmless
                self._fs.rmdir(name)

    @contextmanager
    def _target(self, name: str) -> Iterator[str]:
        """Yield the name to write to, so that the file appears whole. fsspec's own transactions would not do: they copy
        from another disk's temporary folder, and several stores lack them."""
        if self._protocol not in RENAMING:
            yield name
            return
        folder, last = posixpath.split(name)
        temporary = posixpath.join(folder, f".{last}.{os.getpid()}.tmp")
        self._fs.makedirs(folder, exist_ok=True)
        try:
            yield temporary
            self._fs.mv(temporary, name)
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
            raise _failure(error, self.url, deed, here=self._protocol in LOCAL) from error


def _folder(fs: Any, path: str) -> Any:
    """A folder of a file system as a file system, whose paths begin there."""
    from fsspec.implementations.dirfs import DirFileSystem

    return DirFileSystem(path, fs, skip_instance_cache=True)


def _failure(error: Exception, url: str, deed: str, *, here: bool) -> SmolsumError:
    """Return the error to show for one of a library; `here` for a disk of this machine."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    number = error.errno if isinstance(error, OSError) else None
    said = " ".join(str(error).split())[:SHOWN] or type(error).__name__
    if here and isinstance(error, OSError) and error.strerror:
        said = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    if number in FULL:
        return SmolsumError(f"the disk is full at {url}", hint="free space there, or choose another URL")
    if kinds & {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError"} or (
        number == errno.EROFS
    ):
        writable = "make it a folder that you may write to, or choose another URL"
        known = "give this machine credentials for it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3)"
        return UsageError(f"{url} does not let us {deed}: {said}", hint=writable if here else known)
    if kinds & {"NotADirectoryError", "FileExistsError"}:
        what = f"{url} cannot be a folder, as there is a file: {said}"
        return UsageError(what, hint="move that file away, or choose another URL")
    if isinstance(error, FileNotFoundError):
        make = "make the bucket or folder, mount its disk, or correct the URL"
        return UsageError(f"{url} is not there: {said}", hint=make)
    if isinstance(error, ValueError):
        return UsageError(f"cannot mirror to {url}: {said}", hint=MIRROR)
    if not here and kinds & {"OSError", "TimeoutError", "HTTPClientError", "BotoCoreError", "ClientError"}:
        again = "check the network and the URL (AWS_ENDPOINT_URL_S3 for a server of your own), then try again"
        return UnreachableError(f"{url} does not answer: {type(error).__name__}: {said}", hint=again)
    return SmolsumError(f"{url} cannot {deed}: {type(error).__name__}: {said}", hint="choose another URL")
