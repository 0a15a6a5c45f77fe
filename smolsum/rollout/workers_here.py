"""What workers on this machine take of its memory, which a Mac does not tell the trainer.

Linux says how much memory is still free, a Mac only how much there is: a trainer next to a worker would plan with what
the worker holds.
"""

import os
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from smolsum.config.fields import worker_urls
from smolsum.rollout.protocol import Health, parse

ANSWER_S = 3.0


def reserved_here(urls: str) -> float:
    """Return the bytes that those of these workers (`workers.urls`) take that run on this machine.

    One that does not answer counts as 0: the trainer says so when it connects to it.
    """
    return float(sum(_reserved(url) for url in worker_urls(urls) if _is_here(url)))


def _reserved(url: str) -> int:
    token = os.environ.get("SMOLSUM_WORKER_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(f"{url}/health", headers=headers, timeout=ANSWER_S, trust_env=False)
        return parse(answer.content, Health).reserved_bytes or 0
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError):
        return 0


def _is_here(url: str) -> bool:
    """Return whether the host of a URL is this machine: the system then sends to it from the same address."""
    try:
        parts = urlsplit(url)
        found: Sequence[tuple[int, int, int, str, tuple[str, int]]] = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )  # type: ignore[assignment]
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as one:
            one.connect(address)  # sends nothing
            return str(one.getsockname()[0]) == address[0]
    except (OSError, ValueError):
        return False
