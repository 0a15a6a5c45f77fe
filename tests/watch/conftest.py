"""The clock of the machine that the view is tested on, and a view that does not wait for it."""

import time
from collections.abc import Iterator

import pytest
from support.training import PATIENCE_S

from smolsum.watch import runs_list, view


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day are shown in the zone of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view draws each change at once, looks for changes all the time, and says a sentence until the next one."""
    monkeypatch.setattr(view, "POLL_S", 0.1)
    monkeypatch.setattr(view, "FIRST_LOOK_S", PATIENCE_S)
    monkeypatch.setattr(view, "SAY_S", PATIENCE_S)
    monkeypatch.setattr(runs_list, "REFRESH_S", 0.1)
