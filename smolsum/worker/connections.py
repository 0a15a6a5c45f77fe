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
from starlette.types import ASGIApp
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


class OpenConnections:
    """All open connections of a server, the oldest first, and those that have sent no request yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.every: dict[BoundedProtocol, None] = {}
        self.without_request: dict[BoundedProtocol, None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def add(self, connection: "BoundedProtocol") -> bool:
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

    def remove(self, connection: "BoundedProtocol") -> None:
        """Forget a connection."""
        self.every.pop(connection, None)
        self.without_request.pop(connection, None)

    def _expendable(self) -> Iterator["BoundedProtocol"]:
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


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines for what a client sends, and a bound on connections."""

    def __init__(self, *arguments: Any, connections_of_server: OpenConnections, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._all = connections_of_server
        self._since = time.monotonic()
        """of the wait for a request, or of the body"""
        self._received = 0
        """bytes of the body"""
        self._unread_since = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_receiving(self) -> bool:
        """Whether a request's body is still to come."""
        return not self.is_idle and self.cycle.more_body

    @property
    def is_unread(self) -> bool:
        """Whether more of an answer waits for the client to read than is worth keeping."""
        return bool(self.flow.write_paused)

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # uvicorn's own type
        super().connection_made(transport)
        if not self._all.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._since, self._received = time.monotonic(), 0
            self._all.without_request.pop(self, None)
        self._received += len(data)

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()
        super().pause_writing()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()


def server_config(api: ASGIApp, **settings: Any) -> uvicorn.Config:
    """Return the settings of a worker's HTTP server."""
    connections = OpenConnections(_limit())

    def protocol(*arguments: Any, **more: Any) -> BoundedProtocol:
        return BoundedProtocol(*arguments, connections_of_server=connections, **more)

    # uvicorn warns of each malformed request, and anyone can send these
    quiet = {"log_level": "error", "access_log": False}
    # a function makes protocols as a class does, which is all that uvicorn needs
    return uvicorn.Config(api, http=protocol, backlog=ACCEPTED_AT_ONCE, **quiet | settings)  # type: ignore[arg-type]


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
