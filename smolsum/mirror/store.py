"""A folder at an fsspec URL (`s3://bucket/runs`, `sftp://…`, a mounted disk), and one error for one that refuses."""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from smolsum.disk import FULL
from smolsum.errors import SmolsumError, UnreachableError, UsageError
from smolsum.mirror.address import LOCAL, MIRROR, protocol_of

RENAMING = ("file", "local", "sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs")
"""protocols whose files are seen while they are written, and which can rename; object stores show whole objects"""
SHOWN = 200
"""characters of a foreign error that ours quotes"""


class Store:
    """Files below a URL, by names relative to it. Each call raises SmolsumError, whatever library lies beneath."""

    def __init__(self, url: str) -> None:
        """UsageError for what is no URL, or one whose library is not installed. Nothing is asked of the store yet."""
        self.url = url.rstrip("/")
        self._protocol = protocol_of(url)
        from fsspec.core import url_to_fs

        try:
            self._fs, self._root = url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as error:
            raise UsageError(f"cannot mirror to {url}: {error}", hint=MIRROR) from error
        except OSError as error:  # some connect at once
            raise UnreachableError(f"cannot reach {url}: {error}", hint="check the network and the URL") from error
        # its retries are told as ours
        logging.getLogger("s3fs").setLevel(logging.CRITICAL)
        self._renames = self._protocol in RENAMING

    def child(self, name: str) -> Store:
        """The folder `name` below this one."""
        return Store(f"{self.url}/{name}")

    def prove(self) -> None:
        """Writes a file, reads it back and removes it. Raises what keeps a run from being mirrored here."""
        name, content = f".smolsum-{secrets.token_hex(8)}", secrets.token_bytes(16)
        self.write(name, content)
        if self.read(name) != content:
            raise SmolsumError(f"{self.url} gives back another file than it was given", hint="--mirror another URL")
        self.remove(name)

    def sizes(self) -> dict[str, int]:
        """Every file below, with its bytes; empty where there is none."""
        with self._asking("list"):
            self._fs.invalidate_cache()
            found: dict[str, Any] = self._fs.find(self._root, detail=True)
            prefix = self._root.rstrip("/") + "/"
            return {path.removeprefix(prefix): int(info["size"]) for path, info in found.items()}

    def folders(self) -> list[str]:
        """The names of the folders right below."""
        with self._asking("list"), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return sorted(posixpath.basename(f["name"].rstrip("/")) for f in found if f["type"] == "directory")
        return []

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        with self._asking("read"):
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._path(name)))

    def read(self, name: str) -> bytes:
        """A file's content."""
        with self._asking("read"):
            return bytes(self._fs.cat_file(self._path(name)))

    def fetch(self, name: str, target: Path) -> None:
        """Copies a file to this machine; OSError where that is what refuses it."""
        try:
            with self._asking("read"):
                self._fs.get_file(self._path(name), str(target))
        except SmolsumError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and (cause.errno in FULL or cause.filename == str(target)):
                raise cause from None
            raise

    def write(self, name: str, content: bytes) -> None:
        """Puts `content` in the place of the file: a reader sees it before or after, never a part of it."""
        with self._asking("write"), self._target(name) as path:
            self._fs.pipe_file(path, content)

    def put(self, source: Path, name: str) -> None:
        """As `write`, from a file that does not change meanwhile. FileNotFoundError where that is gone."""
        try:
            with self._asking("write"), self._target(name) as path:
                self._fs.put_file(str(source), path)
        except SmolsumError:
            source.stat()
            raise

    def remove(self, name: str) -> None:
        """Takes a file away, if it is there."""
        with self._asking("remove files"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Takes an empty folder away, where the store has folders; object stores have none."""
        if self._renames:
            with suppress(Exception):  # not empty, or gone: it costs nobody anything
                self._fs.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    @contextmanager
    def _target(self, name: str) -> Iterator[str]:
        """Where to write so that the file appears as a whole."""
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
            with suppress(Exception):  # half a file on a full disk is in the way of the next try
                self._fs.rm_file(temporary)
            raise

    @contextmanager
    def _asking(self, deed: str) -> Iterator[None]:
        """Turns what the store's library raises, which may be anything, into one of our errors."""
        try:
            yield
        except Exception as error:
            if self._protocol in LOCAL and isinstance(error, OSError) and error.errno is not None:
                raise _refusal(error, self.url, deed) from error
            raise _failure(error, self.url, deed) from error


def _refusal(error: OSError, url: str, deed: str) -> SmolsumError:
    """What is wrong with a disk of this machine: nothing that goes by itself, and nothing that a network has to do
    with."""
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
