"""The command line, called in this process, and a judge that it can ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.judge_server import JudgeServer, serving

from smolsum import console

OF_THE_USER = ("SMOLSUM_RUNS_DIR", "SMOLSUM_JUDGE_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "FORCE_COLOR")
OF_THE_COMMAND = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Each test in a directory with nothing in it, and in an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in (*OF_THE_USER, *OF_THE_COMMAND):
        # set first, so that what the command itself sets is taken back too
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    console.set_plain(False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    """A judge, which the environment names, and of whose answers none is known from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running
