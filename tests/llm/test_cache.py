"""Answers on disk: shared by processes, and none lost to a damaged line."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.training import PATIENCE_S

from smolsum.files import read_jsonl
from smolsum.llm.cache import AnswerCache


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def cache() -> AnswerCache[object]:
    """The answers of one reader."""
    return AnswerCache("reader", "a model/at http://h", "again")


def test_damaged_lines_cost_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are counted and left in the file; a stored refusal is known but no answer."""
    with cache() as written:
        written.add("a", 1)
        written.add("b", None)
    (path,) = tmp_path.rglob("*.jsonl")
    assert path == tmp_path / "smolsum" / "reader" / "a-model-at-http-h.jsonl"
    content = path.read_bytes() + b'{nonsense\n{"id": 3}\n{"key": 3, "answer": 4}\n[]\n'
    path.write_bytes(content)
    found = cache()
    assert (found.get("a"), found.get("b"), "b" in found, "c" in found) == (1, None, True, False)
    assert found.has_answers
    assert path.read_bytes() == content
    assert f"warning: skipped 4 damaged lines of {path}" in capsys.readouterr().err


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """Lines of processes that open and append at the same time are all there, whole."""
    code = (
        "import sys; from smolsum.llm.cache import AnswerCache\n"
        "cache = AnswerCache('reader', 'shared', 'again')\n"
        "for n in range(100):\n"
        "    with cache: cache.add(f'{sys.argv[1]}{n}', sys.argv[1] * 5000)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, letter]) for letter in "xyz"]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    rows = read_jsonl(tmp_path / "smolsum" / "reader" / "shared.jsonl")
    assert {row["key"] for row in rows} == {f"{letter}{n}" for letter in "xyz" for n in range(100)}
    assert all(row["answer"] == row["key"][0] * 5000 for row in rows)
