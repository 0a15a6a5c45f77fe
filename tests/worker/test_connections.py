"""Connections that send nothing, or slowly: they are closed, and never keep others away."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from support.serving import face

from smolsum.worker import connections
from smolsum.worker.engines.mlx import MlxEngine

MANY = 3000
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def worker(folder: Path) -> Iterator[httpx.Client]:
    """A worker that serves it, with a token."""
    engine = MlxEngine(str(folder), dtype="float32", quantize=0, max_model_len=None)
    with face(engine, token="secret") as client:
        client.headers["authorization"] = "Bearer secret"
        yield client


@contextlib.contextmanager
def opened(worker: httpx.Client, count: int, sent: list[bytes]) -> Iterator[list[socket.socket]]:
    """So many connections, each of which has sent one of these beginnings of a request."""
    found: list[socket.socket] = []
    try:
        for number in range(count):
            found.append(socket.create_connection((worker.base_url.host, worker.base_url.port or 0)))
            with contextlib.suppress(OSError):  # it may be closed already
                found[-1].sendall(sent[number % len(sent)])
        yield found
    finally:
        for one in found:
            one.close()


def closed(connection: socket.socket, within_s: float) -> bool:
    """Whether the worker closes a connection, perhaps after answers."""
    end = time.monotonic() + within_s
    try:
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(4096):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def gone(connection: socket.socket, data: bytes, within_s: float) -> bool:
    """Whether the worker ends a connection that sends and does not read."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            connection.sendall(data)
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_thousands_of_slow_connections_leave_a_worker_answering(
    worker: httpx.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    """Silent ones, half heads, and bodies without the token that never end. A new client is answered within a second,
    one that was there before goes on, and the log stays empty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip(f"this machine allows {hard} open files, too few for the test's own end")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, hard))
    try:
        assert worker.get("/health").is_success
        with opened(worker, MANY, [b"", HEAD, HEAD + b"Content-Length: 99999\r\n\r\n{", b"nonsense\r\n\r\n"]) as every:
            assert worker.get("/health").is_success
            assert httpx.get(f"{worker.base_url}/health", headers=worker.headers, timeout=30).is_success
            for _ in range(3):  # all that waited to be accepted before that one has been
                began = time.monotonic()
                new = HTTPConnection(worker.base_url.host, worker.base_url.port, timeout=10)
                new.request("GET", "/health", headers={"authorization": "Bearer secret"})
                assert (new.getresponse().status, time.monotonic() - began < 1) == (200, True)
                new.close()
            assert sum(closed(one, 0.001) for one in every[:1000]) > 700
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(capfd.readouterr().err) < 1000


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Authorization: Bearer secret\r\nContent-Length: 99\r\n\r\n{"])
def test_who_does_not_send_is_closed(worker: httpx.Client, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Without a head, with half of one, and with half a body; one byte at a time is no help."""
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(connections, "BODY_S", 0.3)
    monkeypatch.setattr(connections, "SWEEP_S", 0.1)
    with opened(worker, 1, [sent]) as (one,):
        with contextlib.suppress(OSError):
            for _ in range(10):
                time.sleep(0.1)
                one.sendall(b"a")
        assert closed(one, 5)
    assert worker.get("/health").is_success


def test_who_is_answered_is_not_closed(worker: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long sampling takes, and however many others come; a body at a fair rate has the time that it needs."""
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "BODY_S", 0.2)
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)

    def slowly() -> Iterator[bytes]:
        for _ in range(8):
            time.sleep(0.1)
            yield b" " * 8192
        yield b'{"prompt": "a b", "max_tokens": 200, "n": 64}'

    headers = {"content-type": "application/json", **worker.headers}
    answer = worker.post("/v1/completions", content=slowly(), headers=headers)
    assert (answer.status_code, len(answer.json()["choices"])) == (200, 64)


def test_who_does_not_read_is_closed(worker: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are sent on and on while no answer is read do not keep a connection open."""
    monkeypatch.setattr(connections, "UNREAD_S", 0.5)
    monkeypatch.setattr(connections, "SWEEP_S", 0.1)
    with opened(worker, 1, [b""]) as (one,):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(1)
        asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n" * 100
        with contextlib.suppress(TimeoutError, ConnectionError):  # until the worker takes no more, or has closed it
            all(one.sendall(asked) is None for _ in range(10_000))
        assert gone(one, asked, 120)  # though nothing was read
        assert worker.get("/health").is_success


def test_only_connections_without_a_request_in_work_make_room() -> None:
    """The oldest that sent none goes first, then idle ones, bodies and answers that are not read; if all are being
    answered the new one goes."""

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    class Connection:
        def __init__(self, *, idle: bool, receiving: bool = False, unread: bool = False) -> None:
            self.is_idle, self.is_receiving, self.is_unread, self.transport = idle, receiving, unread, Transport()
            self.loop = self

        def call_later(self, *_: object) -> object:
            return self

    every = connections.OpenConnections(limit=5)
    answering, unread, body, idle, new = (
        Connection(idle=False), Connection(idle=False, unread=True), Connection(idle=False, receiving=True),
        Connection(idle=True), Connection(idle=True),
    )  # fmt: skip
    for one in (answering, unread, body, idle, new):
        assert every.add(one)  # type: ignore[arg-type]
    for one in (answering, unread, body, idle):
        every.without_request.pop(one)  # type: ignore[arg-type]
    for expected in (new, idle, body, unread):
        late = Connection(idle=False)
        assert every.add(late)  # type: ignore[arg-type]
        every.without_request.pop(late)  # type: ignore[arg-type]
        assert expected.transport.aborted
    assert not every.add(Connection(idle=True))  # type: ignore[arg-type]
    assert not answering.transport.aborted


def test_a_low_limit_of_open_files_is_left_as_it_is() -> None:
    """mlx-lm's import would set another, which ends in an error for all but the administrator."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024));"
        "import smolsum.policy.load; before = resource.setrlimit;"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), before.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["1024", "1024", "setrlimit"]), done.stderr
