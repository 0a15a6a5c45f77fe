"""Memory that workers on this machine take, as the trainer on a Mac asks for it."""

import socket

import pytest
from support.scripted_worker import ScriptedWorker

from smolsum.rollout.workers_here import reserved_here


def test_workers_on_this_machine_are_added_up() -> None:
    """By any address of this machine; one that is away, or does not answer as a worker, takes nothing."""
    first, second = ScriptedWorker(), ScriptedWorker()
    try:
        first.health_changes = {"reserved_bytes": 3_000}
        second.health_changes = {"reserved_bytes": 500}
        urls = f"{first.url},{second.url.replace('127.0.0.1', 'localhost')}/"
        assert reserved_here(urls) == 3_500
        second.health_changes = {"reserved_bytes": None}
        assert reserved_here(urls) == 3_000
        second.health_changes = {"version": "none"}
        assert reserved_here(urls) == 3_000
    finally:
        first.close()
        second.close()
    assert reserved_here(f"{first.url},http://host.invalid:8100,http://192.0.2.1:8100") == 0
    assert reserved_here("") == 0


def test_a_worker_elsewhere_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("smolsum.rollout.workers_here._reserved", lambda url: asked.append(url) or 1)
    own = socket.gethostbyname(socket.gethostname())
    assert reserved_here(f"http://192.0.2.1:8100,http://{own}:8100") == 1
    assert asked == [f"http://{own}:8100"]
