"""The connections of a worker: one without a request is closed soon, their number has a bound, and there is always room
for one more.

Anyone who reaches the port can open connections without the token. Many open ones, requests that come byte by byte, and
answers that are not read must not keep the trainer away.
"""

import asyncio
import contextlib
import errno
import resource
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from smolsum import console

HEAD_S = 10.0
"""from the opening of a connection, or the end of an answer, to the end of the next request's head"""
BODY_S = 30.0
"""for a body's first bytes; after that it has to arrive at `BODY_RATE`"""
BODY_RATE = 16_384.0
"""bytes a second, on average since the head"""
UNREAD_S = 60.0
"""that an answer may wait for the client to read"""
SWEEP_S = 1.0
"""between two checks of the deadlines"""
MAX_CONNECTIONS = 1000
WANTED_FILES, OTHER_FILES, LEAST_CONNECTIONS = 8192, 128, 16
"""files that this process would like to have open, those kept for other things than connections, and the least bound"""
ACCEPTED_AT_ONCE, QUEUE = 64, 2048
"""connections accepted before others get a turn, and those that may wait for that"""
WARN_AGAIN_S = 60.0
CONNECTION = "smolsum.connection"
"""where the state of a request has its connection"""


class OpenConnections:
    """All open connections of a server, the oldest first, and those that have sent no request yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.every: dict[BoundedConnection, None] = {}
        self.without_request: dict[BoundedConnection, None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def add(self, connection: "BoundedConnection") -> bool:
        """Take a connection in, and close another one if there are too many: the oldest without a request, else the
        oldest that is idle, sends a body or does not read. Returns whether there is room."""
        if len(self.every) >= self.limit:
            victim = next(self._expendable(), None)
            if victim is None:
                return False
            self.remove(victim)
            victim.drop()
        self.every[connection] = self.without_request[connection] = None
        if self._sweep is None:
            self._sweep = connection.loop.call_later(SWEEP_S, self._close_late, connection.loop)
        return True

    def remove(self, connection: "BoundedConnection") -> None:
        """Forget a connection."""
        self.every.pop(connection, None)
        self.without_request.pop(connection, None)

    def _expendable(self) -> Iterator["BoundedConnection"]:
        yield from self.without_request
        yield from (one for one in self.every if one.is_idle)
        yield from (one for one in self.every if one.is_receiving)
        yield from (one for one in self.every if one.is_unread)

    def _close_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections whose deadline has passed, again and again while there are any."""
        now = time.monotonic()
        for connection in [one for one in self.every if one.is_late(now)]:
            connection.drop()
        self._sweep = loop.call_later(SWEEP_S, self._close_late, loop) if self.every else None


class BoundedConnection(asyncio.Protocol):
    """A connection with deadlines for what its client sends and reads, and a bound on their number.

    It passes everything on to `http`, uvicorn's protocol, and learns from the ASGI messages (`_watched`) what its
    request is at.
    """

    def __init__(self, connections: OpenConnections, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self._all = loop, connections
        self.http: asyncio.Protocol
        self.is_idle = True
        """whether no request is being received or answered"""
        self.is_receiving = False
        """whether a request's body is still to come"""
        self.is_unread = False
        """whether more of an answer waits for the client to read than is worth keeping"""
        self._since = time.monotonic()
        """of the wait for a request, or of the body"""
        self._received = 0
        """bytes since then"""
        self._unread_since = 0.0

    def begin_request(self) -> None:
        """Its head has come."""
        self._since, self.is_idle, self.is_receiving = time.monotonic(), False, True
        self._all.without_request.pop(self, None)

    def end_body(self) -> None:
        """The whole request has come."""
        self.is_receiving = False

    def end_response(self) -> None:
        """The whole answer has been sent, or is about to."""
        self._since, self._received, self.is_idle, self.is_receiving = time.monotonic(), 0, True, False

    def is_late(self, now: float) -> bool:
        """Return whether the client takes too long to send, or to read."""
        if self.is_unread and now - self._unread_since > UNREAD_S:
            return True
        waited = now - self._since
        if self.is_idle:
            return waited > HEAD_S
        return self.is_receiving and waited > BODY_S + self._received / BODY_RATE

    def drop(self) -> None:
        """Close at once, and forget an answer that is not read: the kernel would keep megabytes of it for minutes."""
        if self.is_unread:
            reset = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError):  # the client may have gone meanwhile
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a stream
        self.transport = transport
        self.http.connection_made(transport)
        if not self._all.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        self.http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        return self.http.eof_received()

    def pause_writing(self) -> None:
        self.is_unread, self._unread_since = True, time.monotonic()
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.is_unread = False
        self.http.resume_writing()


def server_config(api: ASGIApp, **settings: Any) -> uvicorn.Config:
    """Return the settings of a worker's HTTP server."""
    connections = OpenConnections(_limit())

    def connection(app_state: dict[str, Any], **given: Any) -> BoundedConnection:
        made = BoundedConnection(connections, asyncio.get_running_loop())
        made.http = H11Protocol(app_state={**app_state, CONNECTION: made}, **given)
        return made

    # uvicorn warns of each malformed request, and anyone can send these
    quiet = {"log_level": "error", "access_log": False, "ws": "none"}
    # a function makes protocols as a class does, which is all that uvicorn needs
    return uvicorn.Config(_watched(api), http=connection, backlog=ACCEPTED_AT_ONCE, **quiet | settings)  # type: ignore[arg-type]


def _watched(api: ASGIApp) -> ASGIApp:
    """Return the application, which says on each request's connection what the request is at."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await api(scope, receive, send)
            return
        connection: BoundedConnection = scope["state"].pop(CONNECTION)

        async def receive_noted() -> Message:
            message = await receive()
            if not message.get("more_body"):
                connection.end_body()
            return message

        connection.begin_request()
        try:
            await api(scope, receive_noted, send)
        finally:
            connection.end_response()

    return watched


def _limit() -> int:
    """Return how many connections there may be, once the process may open as many files as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, most = (WANTED_FILES if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    if files < (wanted := min(most, WANTED_FILES)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            files = wanted
        except (OSError, ValueError):
            pass  # then the bound follows the limit that there is
    return max(LEAST_CONNECTIONS, min(MAX_CONNECTIONS, files - OTHER_FILES - ACCEPTED_AT_ONCE))


class AcceptErrors:
    """An event loop's handler for errors: it warns once a minute if no more files can be opened, where asyncio writes a
    traceback for each connection that waits."""

    def __init__(self) -> None:
        self._warned = -WARN_AGAIN_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS):
            loop.default_exception_handler(dict(context))
        elif time.monotonic() - self._warned > WARN_AGAIN_S:
            self._warned = time.monotonic()
            console.warn(f"a connection cannot be accepted: {error.strerror}; raise `ulimit -n`")
