"""Connections that send nothing, or slowly: they are closed, and never keep others away."""

import asyncio
import contextlib
import errno
import itertools
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from support.serving import engine_of, face
from support.training import PATIENCE_S, wait_until
from uvicorn.server import ServerState

from smolsum.rollout.worker import http_server
from smolsum.rollout.worker.http_server import BoundedConnection

MANY = 3000
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def worker(folder: Path) -> Iterator[httpx.Client]:
    """A worker that serves it, with a token."""
    with face(engine_of(folder), token="secret") as client:
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


def closed(connection: socket.socket) -> bool:
    """Whether the worker has closed a connection, perhaps after answers."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def test_thousands_of_slow_connections_leave_a_worker_answering(
    worker: httpx.Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Silent ones, half heads, and bodies without the token that never end. Without any deadline a new client is
    answered, one that was there before goes on, the oldest are closed, and the log stays empty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY:
        pytest.skip(f"this machine allows {hard} open files, too few for the test's own end")
    monkeypatch.setattr(http_server, "HEAD_S", 1e9)
    monkeypatch.setattr(http_server, "BODY_S", 1e9)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, hard))
    try:
        assert worker.get("/health").is_success
        with opened(worker, MANY, [b"", HEAD, HEAD + b"Content-Length: 99999\r\n\r\n{", b"nonsense\r\n\r\n"]) as every:
            assert worker.get("/health").is_success
            for _ in range(3):
                answer = httpx.get(f"{worker.base_url}/health", headers=worker.headers, timeout=PATIENCE_S)
                assert answer.is_success
            wait_until(lambda: sum(map(closed, every[:1000])) > 700)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(capfd.readouterr().err) < 1000


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Authorization: Bearer secret\r\nContent-Length: 99999\r\n\r\n{"])
def test_who_does_not_send_is_closed(worker: httpx.Client, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Without a head, with half of one, and with half a body; one byte at a time is no help."""
    monkeypatch.setattr(http_server, "HEAD_S", 0.3)
    monkeypatch.setattr(http_server, "BODY_S", 0.3)
    with opened(worker, 1, [sent]) as (one,):

        def ended() -> bool:
            with contextlib.suppress(OSError):
                one.send(b"a")
            return closed(one)

        wait_until(ended)
    assert worker.get("/health").is_success


def test_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head has `HEAD_S` from the opening and from the end of an answer; a body at a fair rate has the time that it
    needs, and a slower one has not; an answer may take for ever."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(http_server, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def run() -> None:
        finish = asyncio.Event()

        async def api(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            await finish.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        one = accepted(api, {}, 1)
        late = http_server.HEAD_S + 0.1
        assert [one.is_late(clock.now + after) for after in (late - 0.2, late)] == [False, True]
        one.data_received(HEAD)
        assert one.is_late(late)
        size = int(20 * http_server.BODY_S * http_server.BODY_RATE)
        one.data_received(b"Content-Length: %d\r\n\r\n" % size)
        await asyncio.sleep(0)  # the application begins
        assert [one.is_late(after) for after in (http_server.BODY_S - 0.1, http_server.BODY_S + 0.1)] == [False, True]
        for part in range(1, 20):
            clock.now = part * http_server.BODY_S
            assert not one.is_late(clock.now)
            one.data_received(bytes(size // 20))
        assert one.is_late(clock.now + 2 * http_server.BODY_S + 0.1)
        one.data_received(bytes(size - 19 * (size // 20)))
        while one.stage == "receiving":
            await asyncio.sleep(0)
        assert not one.is_late(1e9)
        clock.now = 1e9
        finish.set()
        while one.stage != "idle":
            await asyncio.sleep(0)
        assert [one.is_late(clock.now + after) for after in (late - 0.2, late)] == [False, True]

    asyncio.run(run())


@pytest.mark.parametrize("goes_on", [True, False], ids=["sends on", "waits"])
def test_who_does_not_read_is_closed(worker: httpx.Client, monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:
    """A client that asks and reads no answer is cut off, also if it asks on and on; its answers are forgotten, where
    the kernel would keep them for minutes."""
    made = BoundedConnection.connection_made

    def made_small(self: BoundedConnection, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(BoundedConnection, "connection_made", made_small)  # soon full
    monkeypatch.setattr(http_server, "UNREAD_S", 0.2)
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n" * 500
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(PATIENCE_S)
        one.connect((worker.base_url.host, worker.base_url.port))
        one.sendall(asked)
        if goes_on:
            with pytest.raises(ConnectionError):
                all(one.sendall(asked) is None for _ in itertools.count())
        else:
            wait_until(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET)
    assert worker.get("/health").is_success


def test_only_connections_without_a_request_in_work_make_room() -> None:
    """The oldest that sent none goes first, then idle ones, bodies and answers that are not read; if all are being
    answered the new one goes."""

    async def api(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "more_body": scope["path"] != "/idle"})
        await asyncio.Event().wait()

    async def run() -> None:
        every: dict[BoundedConnection, None] = {}

        async def opened(sent: str) -> BoundedConnection:
            one = accepted(api, every, 5)
            if sent:
                one.data_received(sent.encode())
            await asyncio.sleep(0)  # the application begins
            return one

        answering, unread = [await opened("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(2)]
        unread.pause_writing()
        body = await opened(HEAD.decode() + "Content-Length: 9\r\n\r\n{")
        idle = await opened("GET /idle HTTP/1.1\r\nHost: localhost\r\n\r\n")
        new = await opened("")
        for expected in (new, idle, body, unread):
            assert expected in every
            await opened("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert expected not in every
            expected.transport.abort.assert_called()  # type: ignore[attr-defined]
        assert (await opened("")) not in every
        assert answering in every

    asyncio.run(run())


def accepted(api: Any, others: dict[BoundedConnection, None], limit: int) -> BoundedConnection:
    """A connection that was opened now, to a server with this application."""
    config = uvicorn.Config(api, interface="asgi3", log_level="critical")
    one = BoundedConnection(others, limit, config=config, server_state=ServerState(), app_state={})
    one.connection_made(Mock(asyncio.Transport))
    return one


def test_a_low_limit_of_open_files_is_left_as_it_is() -> None:
    """mlx-lm's import would set another, which ends in an error for all but the administrator."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024));"
        "import smolsum.policy.load; before = resource.setrlimit;"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), before.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.split()) == (0, ["1024", "1024", "setrlimit"]), done.stderr
