"""A small Hugging Face hub on loopback: real HTTP for `datasets` and `huggingface_hub`, no network.

The two libraries read HF_ENDPOINT when they are imported, so code under test runs in its own process
with `HubServer.environment(home)`. Routes imitated: `resolve` (HEAD and GET, ranges), repository info,
`tree` and `paths-info`, each for data sets and models, with the hub's own error codes.
"""

import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from support.hub_uploads import RefusedError, Uploads, answer

KINDS = ("datasets", "models")


class _Failure(Exception):
    """What the hub answers when it refuses: a status and the code its clients look at."""

    def __init__(self, status: HTTPStatus, code: str = "") -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


class _Server(ThreadingHTTPServer):
    """Room for all connections that a client opens at once."""

    request_queue_size = 256
    daemon_threads = True


class HubServer:
    """Serves each directory of `repositories` as `<kind>/<owner>/<name>`, kind being `datasets` or `models`.

    `revisions` has, by repository, what its branches and tags hold other than `main`; each is found by its commit too.
    `gated` names repositories that answer 401 as a gated one does. With `uploads` clients may write. `status`, when
    set, is the answer to every request (500: a broken hub); with `mute` a request gets none, its connection is closed.
    `requests` lists "METHOD /path" in order of arrival. A context manager.
    """

    def __init__(
        self,
        repositories: Mapping[str, Path],
        *,
        gated: Collection[str] = (),
        revisions: Mapping[str, Mapping[str, Path]] | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        unknown = [key for key in repositories if key.split("/")[0] not in KINDS or key.count("/") != 2]
        if unknown:
            raise ValueError(f"not <kind>/<owner>/<name>: {unknown}")
        self.repositories = dict(repositories)
        self.gated = frozenset(gated)
        self.revisions = {key: dict(named) for key, named in (revisions or {}).items()}
        self.uploads = uploads
        self.status: HTTPStatus | None = None
        self.mute = False
        self.requests: list[str] = []
        self._listen(0)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Refuses connections while it lasts, then serves under the same URL again."""
        self._close()
        try:
            yield
        finally:
            self._listen(self._server.server_port)

    def _listen(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, home: Path) -> dict[str, str]:
        """This process's environment with the hub's variables replaced: this server, a cache under `home`."""
        dropped = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            # `datasets` also asks a viewer at a name derived from HF_ENDPOINT that does not exist here: as
            # its proxy this server answers 404 at once, where looking the name up may wait for a time-out
            "http_proxy": self.url,
            "HTTP_PROXY": self.url,
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }


def commit(directory: Path) -> str:
    """A 40-digit commit id made of the names and contents of the files in `directory`."""
    digest = hashlib.sha1()
    for path in _files(directory):
        digest.update(path.relative_to(directory).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _blob(path: Path) -> str:
    """The id git gives the file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(directory: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(directory).as_posix()
    if path.is_dir():
        return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
    return {"type": "file", "oid": _blob(path), "size": path.stat().st_size, "path": name}


class _Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so that no kept connection outlives `HubServer.down`."""

    def __init__(self, hub: HubServer, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `HubServer.requests` is the log."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found

    def _answer(self) -> None:
        body = self._body()
        self.hub.requests.append(f"{self.command} {self.path}")
        if self.hub.mute:
            return
        try:
            if self.hub.status is not None:
                raise _Failure(self.hub.status)
            self._route(body)
        except _Failure as failure:
            headers = {"X-Error-Code": failure.code, "X-Error-Message": failure.code} if failure.code else {}
            self._send(failure.status, b"{}", headers | {"Content-Type": "application/json"})

    do_HEAD = do_GET = do_POST = do_PUT = _answer

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]  # the "/" in refs/pr/1 is quoted
        if self.hub.uploads is not None and not url.netloc:
            try:
                written = answer(self.hub, self.command, parts, self.headers, body)
            except RefusedError as refused:
                content = json.dumps({"error": refused.message, **refused.more}).encode()
                headers = {"Content-Type": "application/json", "X-Error-Message": refused.message}
                self._send(refused.status, content, headers)
                return
            if written is not None:
                self._send(HTTPStatus.OK, json.dumps(written).encode(), {"Content-Type": "application/json"})
                return
        if url.netloc or len(parts) < 3:
            raise _Failure(HTTPStatus.NOT_FOUND)
        if parts[0] == "api":
            self._api(parts[1:], parse_qs(url.query), body)
        else:
            self._resolve(parts if parts[0] in KINDS else ["models", *parts])

    def _repository(self, parts: list[str], revision: str) -> tuple[Path, str]:
        """The directory of a revision, and its commit."""
        key = "/".join(parts[:3])
        if key in self.hub.gated:
            raise _Failure(HTTPStatus.UNAUTHORIZED, "GatedRepo")
        if key not in self.hub.repositories:
            raise _Failure(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        named = {"main": self.hub.repositories[key], **self.hub.revisions.get(key, {})}
        known = {commit(directory): directory for directory in named.values()} | named
        if revision not in known:
            raise _Failure(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        return known[revision], commit(known[revision])

    def _resolve(self, parts: list[str]) -> None:
        """`<kind>/<owner>/<name>/resolve/<revision>/<file>`: the file, or with HEAD what is known of it."""
        if len(parts) < 6 or parts[3] != "resolve":
            self._repository(parts, "main")
            raise _Failure(HTTPStatus.NOT_FOUND)
        directory, sha = self._repository(parts, parts[4])
        path = directory.joinpath(*parts[5:])
        if not path.is_file() or ".." in parts:
            raise _Failure(HTTPStatus.NOT_FOUND, "EntryNotFound")
        content = path.read_bytes()
        headers = {"ETag": f'"{_blob(path)}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            self._send(HTTPStatus.OK, content, headers)
            return
        first, _, last = asked.partition("-")
        start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._send(HTTPStatus.PARTIAL_CONTENT, content[start : end + 1], headers)

    def _api(self, parts: list[str], query: dict[str, list[str]], body: bytes) -> None:
        """`<kind>/<owner>/<name>`, then nothing, `revision/R`, `tree/R[/folder]` or `paths-info/R`."""
        action, revision = (*parts[3:5], "main")[:2] if len(parts) > 3 else ("revision", "main")
        directory, sha = self._repository(parts, revision)
        if action == "revision":
            names = [path.relative_to(directory).as_posix() for path in _files(directory)]
            private = self.hub.uploads is not None and self.hub.uploads.private.get("/".join(parts[:3]), False)
            answer: Any = {"id": "/".join(parts[1:3]), "sha": sha, "private": private, "gated": False}
            answer |= {"tags": [], "siblings": [{"rfilename": name} for name in names]}
        elif action == "tree":
            folder = directory.joinpath(*parts[5:])
            if not folder.is_dir():
                raise _Failure(HTTPStatus.NOT_FOUND, "EntryNotFound")
            recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            found = sorted(folder.rglob("*") if recursive else folder.iterdir())
            answer = [_entry(directory, path) for path in found]
        elif action == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            answer = [_entry(directory, directory / name) for name in asked if (directory / name).exists()]
        else:
            raise _Failure(HTTPStatus.NOT_FOUND)
        self._send(HTTPStatus.OK, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-HF-Warning", "unauthenticated; set a token for faster downloads")  # as the real hub does
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
