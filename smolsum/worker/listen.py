"""Where a worker listens, and for whom."""

from __future__ import annotations

import ipaddress
import os
import socket

from smolsum.errors import MachineError, UsageError


def _check(host: str, token: str | None) -> None:
    """UsageError where anybody on the network could use the worker."""
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
        raise UsageError("the token is empty or holds white space or other signs", hint="openssl rand -hex 16")
    if token is None and not loopback(host):
        raise UsageError(
            f"--host {host} lets others in, and there is no token to tell them apart",
            hint="export SMOLSUM_WORKER_TOKEN=$(openssl rand -hex 16), here and on the trainer",
        )


def loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket that is bound, so that a port which is taken is known before a model is loaded. Raises UsageError,
    MachineError."""
    _check(host, token)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"--host {host}: {error.strerror}", hint="--host 127.0.0.1, or an address of this machine"
        ) from error
    if os.name == "posix":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # else another worker could bind it, too
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="--port 0 takes a free one"
        ) from error
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Where the trainer finds it; of a worker that listens on every address, on the one that leads out of here."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        host = _outward(listener.family)
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _outward(family: socket.AddressFamily) -> str:
    """This machine's address towards others, its name where it has none; nothing is sent."""
    beyond = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # of documents, so nobody's
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((beyond, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
