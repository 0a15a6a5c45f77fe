"""Functions in C keep to one thread, unless a test chooses: several test processes share the cores, and threads that
wait for each other's turn would take minutes."""

import pytest

from smolsum.policy.cpu import native


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "threads", lambda: 1)
