"""`eval` of tasks that ask models behind endpoints, over real HTTP: who is asked, about what, and what compares."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from support.judge_server import Reply, answer, serving
from support.training import make_data

from smolsum.cli.main import main
from smolsum.runs.record_io import read_summary
from smolsum.tasks.doc_qa.reader_model import clients_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    return make_data(tmp_path_factory.mktemp("data") / "posts")


def brain(prompt: str, before: int) -> Reply:
    """A reader that finds nothing, and a grader that is never content."""
    return answer(json.dumps({"right": False} if prompt.startswith("Somebody was asked") else {"answer": None}))


def evaluate(data: Path, runs: Path, url: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """What `smolsum eval` returns in a process of its own, with a cache of this test alone."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(runs / "cache"))
    clients_of.cache_clear()
    sets = [f"data.path={data}", "sampling.max_new_tokens=8", "train.eval_batch=50"]
    return main(["eval", "builtin:tiny", "--runs-dir", str(runs), *(f"--set={key}" for key in sets), *more])


def test_readers_elsewhere_do_not_compare(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers may call anything judge-a: evaluations by both are refused, with who they were; by one they are not,
    and what one measured is not measured over by the other."""
    with serving(mischief=brain) as one, serving(mischief=brain) as other:
        asked = ["--task=doc-qa", "--set=task.reader=judge-a", "--set=task.system_prompt="]
        for name, server in (("a", one), ("again", one), ("b", other)):
            assert evaluate(data, tmp_path, server.url, monkeypatch, *asked, "--name", name) == 0
        a, again, b = (str(tmp_path / name) for name in ("a", "again", "b"))
        capsys.readouterr()
        assert main(["stats", "--paired", a, again]) == 0
        assert main(["stats", "--paired", a, b]) == 2
        said = capsys.readouterr().err
        assert f"reader judge-a at {one.url}, grader judge-a at {one.url} against reader judge-a at {other.url}" in said
        assert evaluate(data, tmp_path, other.url, monkeypatch, *asked, "--name", "a") == 2
        assert "holds the evaluation of something else: task.reader" in capsys.readouterr().err


def test_a_reader_may_move_while_nothing_is_measured(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions are kept over an outage, and read by the reader that answers then."""
    asked = ["--task=doc-qa", "--set=task.reader=judge-a", "--set=task.system_prompt=", "--set=task.wait_s=0.1"]
    assert evaluate(data, tmp_path, "http://127.0.0.1:9/v1", monkeypatch, *asked, "--name", "a") == 3
    with serving(mischief=brain) as server:
        assert evaluate(data, tmp_path, server.url, monkeypatch, *asked, "--name", "a") == 0
        assert (read_summary(tmp_path / "a").task or {})["reader"] == f"judge-a at {server.url}"


def test_only_the_split_is_corrupted(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of the other splits cost requests only in training."""

    def worse(prompt: str, before: int) -> Reply:
        text = re.search(r"Text:\n(.*)", prompt, re.S)[1]  # type: ignore[index]
        return answer(json.dumps({"text": text.replace("my", "the").replace("My", "The") + " Or not."}))

    with serving(mischief=worse) as server:
        asked = ["--task=ab-judge", "--set=task.corruptor=judge-a", "--name", "pairs"]
        assert evaluate(data, tmp_path, server.url, monkeypatch, *asked) == 0
        texts = {re.search(r"Text:\n(.*)", prompt, re.S)[1] for _, prompt in server.asked}  # type: ignore[index]
    assert texts == set(pl.read_parquet(data / "test.parquet")["prompt"])
