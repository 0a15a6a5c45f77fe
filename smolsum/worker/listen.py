"""The address that a worker listens on; without a token only loopback is allowed."""

import ipaddress
import os
import socket

from smolsum.errors import MachineError, UsageError
from smolsum.rollout.protocol import check_token


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """Return a bound socket; called before the model is loaded, so that a port in use is known early.

    Raises UsageError for a bad address or token, and for an open address without one; MachineError for a port in use.
    """
    check_token(token)
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} is reachable from the network, but no token is set",
            hint="export SMOLSUM_WORKER_TOKEN=$(openssl rand -hex 16), here and on the trainer",
        )
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
        listener.listen()  # until then another worker could bind the port too
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="--port 0 takes a free one"
        ) from error
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Return the URL for the trainer. A worker that listens on all addresses gives the one of the default route."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        host = _outward(listener.family)
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _outward(family: socket.AddressFamily) -> str:
    """Return this machine's address on the network, or its name if it has none. Sends nothing."""
    remote = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # reserved for documentation
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((remote, 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Return whether an address reaches this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
