"""Evaluations in a directory with nothing in it, with a cache of their own, and no endpoint in the environment."""

from pathlib import Path

import pytest

from smolsum.tasks.doc_qa.reader_model import clients_of


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "SMOLSUM_JUDGE_MODEL", "SMOLSUM_RUNS_DIR", "SMOLSUM_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    clients_of.cache_clear()
