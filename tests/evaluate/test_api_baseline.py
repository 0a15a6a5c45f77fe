"""Models behind an endpoint, measured as a policy of our own is: same prompts, same questions, one table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import JudgeServer, Reply, answer, failure, score_of, serving
from support.training import make_data

from smolsum.cli.main import main
from smolsum.config.sections import DataConfig
from smolsum.files import read_jsonl
from smolsum.tasks.data import load_split
from smolsum.tasks.doc_qa.documents import from_facts, known_forms
from smolsum.tasks.doc_qa.reader import read
from smolsum.tasks.doc_qa.reader_model import clients_of
from smolsum.tasks.text_metrics import count_words, first_words


def head(prompt: str, before: int) -> Reply:
    """A summary that any model could write: the post's first 30 words."""
    return answer(" ".join(prompt.split()[:30]))


def cells(page: str) -> list[dict[str, Any]]:
    """All cells of a report."""
    found = json.loads(page)["sections"]
    return [cell for s in found for item in s["items"] for row in item.get("rows", []) for cell in row]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    """An endpoint with two models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(mischief=head) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        yield served


def test_models_behind_an_endpoint(server: JudgeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has the scores that its summaries earn, by hand; what failed is asked again by the same command, and nothing
    else is; the report has them side by side with intervals."""
    data, runs = make_data(tmp_path / "posts"), tmp_path / "runs"
    command = ["baseline", "--task=doc-qa", "--api=judge-a", "--api=judge-b", "--judge=none", "--attempts=1"]
    command += ["--runs-dir", str(runs), f"--set=data.path={data}", "--set=task.max_words=20"]
    examples = load_split(DataConfig(path=str(data)), "test").examples
    server.mischief = lambda p, n: failure(500, "oops") if p == examples[1].source and n == 0 else head(p, n)
    assert main(command) == 1
    said = capsys.readouterr().err
    assert all(f"{model} gave no completion for 1 of 4 prompts" in said for model in ("judge-a", "judge-b"))
    assert len(server.asked) == 8
    asked = len(server.asked) + 2
    assert main(command) == 0
    assert len(server.asked) == asked
    folders = [Path(line) for line in capsys.readouterr().out.split()][-2:]
    known = known_forms(DataConfig(path=str(data)))
    for folder, model in zip(folders, ("judge-a", "judge-b"), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["model"]["path"] == model
        assert summary["n"] == 4
        rows = {row["id"]: row for row in read_jsonl(folder / "scores.jsonl")}
        for example in examples:
            text = " ".join(example.source.split()[:30])
            questions = from_facts(example.id, example.metadata["facts"])
            within = read(first_words(text, 20), questions, example.metadata["facts"], known)
            row = rows[example.id]
            assert row["text"] == text
            assert row["answered_within"] == pytest.approx(sum(within) / len(within))
            assert row["words"] == count_words(text)
            assert row["tokens"] > 0
    assert main(["report", *map(str, folders), "--format=json", "--out", str(tmp_path / "report")]) == 0
    page = next((tmp_path / "report").glob("*.json")).read_text()
    assert "Side by side" in page
    assert "answered_within with 95 % intervals" in page
    commands = {cell["command"] for cell in cells(page) if "command" in cell}
    assert commands == {"smolsum train --task doc-qa"}
    assert "judge-a: " in (verdict := json.loads(page)["verdict"])
    assert verdict.count("in answered_within, without training.") == 2
    samples = [item for s in json.loads(page)["sections"] if s["title"] == "Samples" for item in s["items"]]
    assert [len(item["rows"]) for item in samples] == [4, 4]
    assert len(server.asked) == asked


def test_a_reader_that_fails_for_all(server: JudgeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was read: that is said, with the command that asks again and no sentence without an end."""
    data, runs = make_data(tmp_path / "posts"), tmp_path / "runs"
    command = ["baseline", "--task=doc-qa", "--api=judge-b", "--judge=none", "--attempts=1", "--runs-dir", str(runs)]
    command += [f"--set=data.path={data}", "--set=task.reader=judge-a", "--set=task.attempts=1"]

    def every_other(prompt: str, before: int) -> Reply:
        """A reader that leaves questions of each document without an answer."""
        if not prompt.startswith("Answer a question"):
            return head(prompt, before)
        return answer('{"answer": null}' if score_of("judge-a", f"{prompt}Test Case:") % 2 else "no idea")

    server.mischief = every_other
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"4 of 4 not read, and in no mean; smolsum {' '.join(command)} asks again" in said
    assert "to fill them" not in said
    folder = next(runs.glob("baseline-*"))
    assert main(["report", str(folder), "--format=json", "--out", str(tmp_path / "report")]) == 0
    commands = {cell.get("command") for cell in cells((tmp_path / "report" / "report.json").read_text())}
    assert commands <= {None, "smolsum train --task doc-qa", f"smolsum {' '.join(command)}"}
    assert f"smolsum {' '.join(command)}" in commands
    server.mischief = lambda p, n: answer('{"answer": null}') if p.startswith("Answer a question") else head(p, n)
    clients_of.cache_clear()
    assert main(command) == 0
    assert "not read" not in capsys.readouterr().err


def test_an_endpoint_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what to set."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["baseline", "--task=doc-qa", "--api=gpt-4.1", "--runs-dir", str(tmp_path)]) == 2
    assert "no key for the model gpt-4.1" in capsys.readouterr().err
