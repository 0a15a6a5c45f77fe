"""`smolsum data`, and what a dry run says of the data: what the model gets, and how long it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smolsum.cli import main

POST = "My cat ate my lunch, and I do not know what to do about it now."


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three splits of posts that share none, with references of a few tokens."""
    monkeypatch.chdir(tmp_path)
    folder = Path("posts")
    folder.mkdir()
    for split in ("train", "validation", "test"):
        row = {"prompt": f"{POST} This is {split}.", "completion": "Cat ate lunch."}
        (folder / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_data_are_shown_as_the_model_gets_them(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout has the rows alone; stderr the system prompt, the rendered prompt and the lengths, with those of all."""
    system = "Say it in a word."
    assert main.main(["data", "tldr", f"--set=data.path={data}", f"--set=task.system_prompt={system}"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["completion"] for line in out.splitlines()] == ["Cat ate lunch."] * 3
    assert f"system prompt: {system}\n" in err
    assert f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{POST} This is train." in err
    lengths = {tuple(line.split()[:2]): line.split()[2:] for line in err.splitlines() if line.startswith("train ")}
    assert set(lengths["train", "references"]) == {"7"}
    assert int(lengths["train", "prompts"][0]) > 30


def test_data_without_references_and_a_model_elsewhere(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are said, and the rows are shown."""
    for path in data.iterdir():
        path.write_text(json.dumps({"prompt": f"{POST} {path.stem}"}) + "\n")
    assert main.main(["data", "tldr", f"--set=data.path={data}", "--set=model.path=nobody/nothing@v1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "no references: posts/train.jsonl:1 has no column 'completion'" in err
    assert "known once nobody/nothing@v1 is on this machine (hf download nobody/nothing --revision v1)" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "references 7 tokens, target 64: quality (meteor) will pull the length down"),
        (
            ("--set=task.target_tokens=2", "--reward=rouge-bleu"),
            "target 2: quality (rouge, bleu) will pull the length up",
        ),
        (("--set=task.target_tokens=7",), ""),
        (("--reward=length",), ""),
    ],
)
def test_a_dry_run_says_where_quality_pulls(
    data: Path, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where a reward compares with references that are beyond the tolerance of the target."""
    assert main.main(["train", "--dry-run", f"--set=data.path={data}", *given]) == 0
    err = capsys.readouterr().err
    assert said in err
    assert ("will pull the length" in err) == bool(said)
