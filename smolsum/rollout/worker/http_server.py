"""The HTTP server of a worker, on uvicorn: the address it listens on, and connections that cannot keep others away.

Anyone who reaches the port can open connections without the token. Many open ones, requests that come byte by byte, and
answers that are not read must not keep the trainer away. uvicorn itself has one deadline, for a client that is silent
after an answer, and at its own limit of connections it would refuse the newest.
"""

import asyncio
import contextlib
import errno
import ipaddress
import resource
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from smolsum import console
from smolsum.errors import MachineError, UsageError
from smolsum.llm.client import is_loopback
from smolsum.rollout.protocol import check_token

HEAD_S = 10.0
"""from the opening of a connection, or the end of an answer, to the end of the next request's head"""
BODY_S = 30.0
"""for a body's first bytes; after that it has to arrive at `BODY_RATE`"""
BODY_RATE = 16_384.0
"""bytes a second, on average since the head"""
UNREAD_S = 60.0
"""that an answer may wait for the client to read"""
MAX_CONNECTIONS = 1000
WANTED_FILES, OTHER_FILES, LEAST_CONNECTIONS = 8192, 128, 16
"""files that this process would like to have open, those kept for other things than connections, and the least bound"""
ACCEPTED_AT_ONCE, QUEUE = 64, 2048
"""connections accepted before others get a turn, and those that may wait for that"""
WARN_AGAIN_S = 60.0
EXPENDABLE = ("new", "idle", "receiving", "unread")
"""stages of connections that make room for a new one, in this order"""


class BoundedConnection(H11Protocol):
    """A connection with deadlines for what its client sends and reads, and a bound on their number."""

    def __init__(self, others: "dict[BoundedConnection, None]", limit: int, **given: Any) -> None:
        """`others` are all open connections of the server, the oldest first."""
        super().__init__(**given)
        self.others, self.limit = others, limit
        self.since, self.received = time.monotonic(), 0
        """when the wait for a request, or for its body, began, and the bytes received since then"""
        self.unread_since: float | None = None
        """since when more of an answer waits for the client to read than is worth keeping"""

    @property
    def stage(self) -> Literal["new", "idle", "receiving", "unread", "answering"]:
        """What it is at; a new one has not sent a request yet, an idle one no further request."""
        if not self.cycle:
            return "new"
        if self.cycle.response_complete:
            return "idle"
        if self.cycle.more_body:
            return "receiving"
        return "answering" if self.unread_since is None else "unread"

    def is_late(self, now: float) -> bool:
        """Return whether the client takes too long to send, or to read."""
        if self.unread_since is not None and now - self.unread_since > UNREAD_S:
            return True
        waited, stage = now - self.since, self.stage
        if stage in ("new", "idle"):
            return waited > HEAD_S
        return stage == "receiving" and waited > BODY_S + self.received / BODY_RATE

    def drop(self) -> None:
        """Close at once, and forget an answer that is not read: the kernel would keep megabytes of it for minutes."""
        if self.unread_since is not None:
            reset = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError):  # the client may have gone meanwhile
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self.others.pop(self, None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a stream
        super().connection_made(transport)
        victim = None
        if len(self.others) >= self.limit:  # this one goes if all others are being answered
            victim = next((one for stage in EXPENDABLE for one in self.others if one.stage == stage), self)
        self.others[self] = None
        if victim is not None:
            victim.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # a head is complete
            self.since = time.monotonic()

    def on_response_complete(self) -> None:
        self.since, self.received = time.monotonic(), 0
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.unread_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = None
        super().resume_writing()


class HttpServer(uvicorn.Server):
    """Serves an application on a socket of `listen`, without handlers of signals, until `should_exit`."""

    def __init__(self, api: ASGIApp, listener: socket.socket, when_ready: Callable[[], None]) -> None:
        """`when_ready` is called once connections are accepted."""
        self.open: dict[BoundedConnection, None] = {}
        connection: Any = partial(BoundedConnection, self.open, _limit())  # makes protocols, as a class does
        # uvicorn warns of each malformed request, and anyone can send these
        quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "ws": "none"}
        config = uvicorn.Config(
            api, http=connection, backlog=ACCEPTED_AT_ONCE, timeout_keep_alive=int(HEAD_S),
            timeout_graceful_shutdown=2, lifespan="off", **quiet,
        )  # fmt: skip
        super().__init__(config)
        self.listener, self._when_ready = listener, when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_accept_errors())
        await super().startup([self.listener])
        self.listener.listen(QUEUE)  # asyncio takes the number that it accepts at once for this one too
        self._when_ready()

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        for connection in [one for one in self.open if one.is_late(now)]:
            connection.drop()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _limit() -> int:
    """Return how many connections there may be, once the process may open as many files as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, most = (WANTED_FILES if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    if files < (wanted := min(most, WANTED_FILES)):
        with contextlib.suppress(OSError, ValueError):  # then the bound follows the limit that there is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            files = wanted
    return max(LEAST_CONNECTIONS, min(MAX_CONNECTIONS, files - OTHER_FILES - ACCEPTED_AT_ONCE))


def _accept_errors() -> Callable[[asyncio.AbstractEventLoop, Mapping[str, Any]], None]:
    """Return an event loop's handler for errors, which warns once a minute if no more files can be opened: asyncio
    writes a traceback for each connection that waits."""
    warned = -WARN_AGAIN_S

    def handle(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        nonlocal warned
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS):
            loop.default_exception_handler(dict(context))
        elif time.monotonic() - warned > WARN_AGAIN_S:
            warned = time.monotonic()
            console.warn(f"a connection cannot be accepted: {error.strerror}; raise `ulimit -n`")

    return handle


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """Return a bound socket; called before the model is loaded, so that a port in use is known early.

    Raises UsageError for a bad address or token, and for an open address without one; MachineError for a port in use.
    """
    check_token(token)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"--host {host}: {error.strerror}", hint="--host 127.0.0.1, or an address of this machine"
        ) from error
    # by name too, as the routes answer to no other name without a token
    if token is None and not (ipaddress.ip_address(address[0]).is_loopback and is_loopback(f"http://{_shown(host)}")):
        listener.close()
        raise UsageError(
            f"--host {host} is reachable from the network, but no token is set",
            hint="export SMOLSUM_WORKER_TOKEN=$(openssl rand -hex 16), here and on the trainer",
        )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # until then another worker could bind the port too
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="--port 0 takes a free one"
        ) from error
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Return the URL for the trainer. A worker that listens on all addresses gives the one of the default route."""
    address, port = listener.getsockname()[:2]
    if ipaddress.ip_address(address).is_unspecified:
        host = _outward(listener.family)
    return f"http://{_shown(host)}:{port}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _outward(family: socket.AddressFamily) -> str:
    """Return this machine's address on the network, or its name if it has none. Sends nothing."""
    remote = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # reserved for documentation
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((remote, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
