"""Models behind an endpoint, measured as a policy of our own is: same prompts, same questions, one table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import JudgeServer, Reply, answer, failure, score_of, serving
from support.reading_server import DOCUMENT, QUESTIONS, brain
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
    assert main(["report", *map(str, folders), "--format=json", "--output", str(tmp_path / "report")]) == 0
    page = next((tmp_path / "report").glob("*.json")).read_text()
    assert "Side by side" in page
    assert "answered_within with 95 % intervals" in page
    commands = {cell["command"] for cell in cells(page) if "command" in cell}
    assert commands == {"smolsum train --task doc-qa"}
    assert "judge-a: " in (verdict := json.loads(page)["verdict"])
    assert verdict.count("in answered within the limit, without training.") == 2
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
    assert main(["report", str(folder), "--format=json", "--output", str(tmp_path / "report")]) == 0
    commands = {cell.get("command") for cell in cells((tmp_path / "report" / "report.json").read_text())}
    assert commands <= {None, "smolsum train --task doc-qa", f"smolsum {' '.join(command)}"}
    assert f"smolsum {' '.join(command)}" in commands
    server.mischief = lambda p, n: answer('{"answer": null}') if p.startswith("Answer a question") else head(p, n)
    clients_of.cache_clear()
    assert main(command) == 0
    assert "not read" not in capsys.readouterr().err


def documents(folder: Path) -> Path:
    """A data set of one document in each split, with its three questions."""
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows = [
            {"document_id": split, "document_extracted": f"{DOCUMENT} ({split})", "question": question, "answer": said}
            for question, said in QUESTIONS.items()
        ]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def no_endpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that names no endpoint and holds no answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "SMOLSUM_JUDGE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    clients_of.cache_clear()
    return monkeypatch


def test_each_role_has_its_server_and_its_key(
    no_endpoints: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command: a model behind one endpoint writes the summary, the reader answers from it at another, the grader
    grades at a third. By hand: the summary answers two of three questions, one of them wrongly. Each server gets its
    own key and no other, and no key is in any file or message."""
    data, runs = documents(tmp_path / "documents"), tmp_path / "runs"
    command = ["baseline", "--task=doc-qa", "--api=judge-a", "--runs-dir", str(runs), f"--set=data.path={data}"]
    command += ["--set=task.reader=judge-a", "--set=task.grader=judge-b"]
    with (
        serving(key="key-of-policy", mischief=lambda p, n: answer("The car is red. The hat is blue.")) as policy,
        serving(key="key-of-reader", mischief=brain) as reader,
        serving(key="key-of-grader", mischief=brain) as grader,
    ):
        servers = {"POLICY": policy, "READER": reader, "GRADER": grader}
        for prefix, server in servers.items():
            no_endpoints.setenv(f"SMOLSUM_{prefix}_URL", server.url)
            no_endpoints.setenv(f"SMOLSUM_{prefix}_API_KEY", server.key)
        no_endpoints.setenv("OPENAI_API_KEY", "key-of-openai")
        assert main(command) == 0
    for server in servers.values():
        assert server.authorizations == {f"Bearer {server.key}"}
    assert [prompt for _, prompt in policy.asked] == [f"{DOCUMENT} (test)"]
    assert all(prompt.startswith("Answer a question") for _, prompt in reader.asked)
    assert [model for model, _ in grader.asked] == ["judge-b"] * len(grader.asked)
    assert all(prompt.startswith("Somebody was asked") for _, prompt in grader.asked)
    out, err = capsys.readouterr()
    folder = Path(out.split()[-1])
    (row,) = read_jsonl(folder / "scores.jsonl")
    assert row["answered"] == pytest.approx(1 / 3)
    assert row["ceiling"] == 1.0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model"]["weights"].endswith(policy.url)
    assert summary["task"]["reader"] == f"judge-a at {reader.url}"
    assert summary["task"]["grader"] == f"judge-b at {grader.url}"
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("key-of-" in text for text in [out, err, *written])


def test_a_role_without_a_key_of_its_own_gets_none(
    no_endpoints: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OpenAI's key stays at home: the reader refuses the request, and the error names the reader's variable."""
    data = documents(tmp_path / "documents")
    command = ["baseline", "--task=doc-qa", "--api=judge-a", "--runs-dir", str(tmp_path / "runs")]
    command += [f"--set=data.path={data}", "--set=task.reader=judge-a"]
    with (
        serving(mischief=lambda p, n: answer("The car is red.")) as policy,
        serving(key="key-of-reader", mischief=brain) as reader,
    ):
        no_endpoints.setenv("SMOLSUM_POLICY_URL", policy.url)
        no_endpoints.setenv("SMOLSUM_READER_URL", reader.url)
        no_endpoints.setenv("OPENAI_API_KEY", "key-of-openai")
        assert main(command) == 2
        assert (policy.authorizations, reader.authorizations) == ({""}, {""})
        assert "export SMOLSUM_READER_API_KEY=…" in capsys.readouterr().err
        no_endpoints.setenv("SMOLSUM_GRADER_URL", policy.url)
        clients_of.cache_clear()
        assert main(command) == 2
        assert "--set task.grader=MODEL, or unset SMOLSUM_GRADER_URL" in capsys.readouterr().err


def test_two_judges_of_one_name_at_two_servers(
    no_endpoints: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are two judges, asked with their own keys while a third server is the policy; at one server they are the
    same."""
    data = make_data(tmp_path / "posts", test=2)
    command = ["baseline", "--api=judge-a", "--prompt=50-words", "--runs-dir", str(tmp_path / "runs"), "--rounds=1"]
    command += [f"--set=data.path={data}", "--judge=judge-b", "--second-judge=judge-b"]
    with serving(key="p", mischief=head) as policy, serving(key="j1") as first, serving(key="j2") as second:
        for prefix, server in {"POLICY": policy, "JUDGE": first}.items():
            no_endpoints.setenv(f"SMOLSUM_{prefix}_URL", server.url)
            no_endpoints.setenv(f"SMOLSUM_{prefix}_API_KEY", server.key)
        assert main(command) == 2
        assert "judge-b cannot be its own second judge" in capsys.readouterr().err
        no_endpoints.setenv("SMOLSUM_SECOND_JUDGE_URL", second.url)
        no_endpoints.setenv("SMOLSUM_SECOND_JUDGE_API_KEY", second.key)
        assert main(command) == 0
        assert [one.authorizations for one in (policy, first, second)] == [{"Bearer p"}, {"Bearer j1"}, {"Bearer j2"}]
        assert len(first.asked) == len(second.asked) == 8
        folder = Path(capsys.readouterr().out.split()[-1])
        judging = json.loads((folder / "summary.json").read_text())["judging"]
        assert (judging["endpoint"], judging["second"]["endpoint"]) == (first.url, second.url)
        assert main([*command[:-2], "--judge=judge-b"]) == 0  # the second judge's scores stay
    assert json.loads((folder / "summary.json").read_text())["judging"]["second"]["endpoint"] == second.url


def test_an_endpoint_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and what to set."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["baseline", "--task=doc-qa", "--api=gpt-4.1", "--runs-dir", str(tmp_path)]) == 2
    assert "no key for the model gpt-4.1" in capsys.readouterr().err


def test_no_prompt_is_compared_on_data_that_bring_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chat's system message stands for that of the task, so all variants would ask the same."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A post."}]
    (tmp_path / "test.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    command = ["baseline", "--model=tiny", "--judge=none", "--prompt=50-words", f"--runs-dir={tmp_path / 'runs'}"]
    assert main([*command, f"--set=data.path={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert "1 of 1 chats of the test split bring their own system message" in said
    assert "the prompt '50-words' would not be sent" in said
