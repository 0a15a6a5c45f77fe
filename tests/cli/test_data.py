"""`smolsum data`, and what a dry run says of the data: what the model gets, and how long it is."""

import json
import re
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.calls import Call, done

from smolsum.files import read_jsonl

POST = "My cat ate my lunch, and I do not know what to do about it now."


@pytest.fixture
def data() -> Path:
    """Three splits of posts that share none, with references of a few tokens."""
    folder = Path("posts")
    folder.mkdir()
    for split in ("train", "validation", "test"):
        row = {"prompt": f"{POST} This is {split}.", "completion": "Cat ate lunch."}
        (folder / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_data_are_shown_as_the_model_gets_them(data: Path, call: Call) -> None:
    """stdout has the rows alone; stderr the system prompt, the rendered prompt and the lengths, with those of all."""
    system = "Say it in a word."
    rendered = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{POST} This is train."
    shown = call("data", "tldr", f"--set=data.path={data}", f"--set=task.system_prompt={system}")
    out, err = done(shown, f"system prompt: {system}\n", rendered)
    assert [json.loads(line)["completion"] for line in out.splitlines()] == ["Cat ate lunch."] * 3
    lengths = {tuple(line.split()[:2]): line.split()[2:] for line in err.splitlines() if line.startswith("train ")}
    assert set(lengths["train", "references"]) == {"7"}
    assert int(lengths["train", "prompts"][0]) > 30


def test_data_without_references_and_a_model_elsewhere(data: Path, call: Call) -> None:
    """Both are said, and the rows are shown."""
    for path in data.iterdir():
        path.write_text(json.dumps({"prompt": f"{POST} {path.stem}"}) + "\n")
    shown = call("data", "tldr", f"--set=data.path={data}", "--set=model.path=nobody/nothing@v1")
    named = ("posts/train.jsonl:1 has no column 'completion'", "hf download nobody/nothing --revision v1")
    assert len(done(shown, *named)[0].splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--strategy=finetuned", "references 7 tokens, target 64: quality (meteor) will pull the length down"),
        (
            "--strategy=included --set=task.target_tokens=2 --reward=rouge-bleu",
            "target 2: quality (bleu, rouge) will pull the length up",
        ),
        ("", "target 64: quality (meteor) pulls the length down, and a constraint holds it"),
        ("--constraint=none", "target 64: quality (meteor) will pull the length down"),
        ("--constraint=bleu>=0.1", "target 64: quality (meteor) will pull the length down"),
        ("--set=task.target_tokens=7", ""),
        ("--reward=length", ""),
    ],
)
def test_a_dry_run_says_where_quality_pulls(data: Path, given: str, said: str, call: Call) -> None:
    """Only where a reward compares with references that are beyond the tolerance of the target."""
    _, err = done(call("train", "--dry-run", f"--set=data.path={data}", *given.split()), said)
    assert [("will pull the length" in err), ("a constraint holds it" in err)] == [
        part in said for part in ("will pull the length", "a constraint holds it")
    ]
    assert ("target" in err.splitlines()[-1]) == bool(said)


def test_where_the_splits_are_from(tmp_path: Path, call: Call) -> None:
    """File, way and number of rows of each, also where one file makes all three; `generated` is said to be made."""
    path = tmp_path / "posts.csv"
    path.write_text("id,prompt,completion\n" + "".join(f'{n},"{POST} This is {n}.",Cat.\n' for n in range(200)))
    _, err = done(call("data", "tldr", f"--set=data.path={path}", "--set=data.train_rows=50", "--preview=1"))
    said = " ".join(err.split())
    assert re.search(rf"test is {path}: 200 rows, of which \d+ by data.test_share = 0.1 and data.split_seed = 0", said)
    of_train = r"\d+ are left by validation and test, of which data.train_rows = 50 by data.split_seed = 0"
    assert re.search(rf"train is {path}: 200 rows, of which {of_train}", said)
    done(call("data", "strict-json", "--preview=1"), "test is made by the task strict-json")


def test_chats_are_shown_written_and_read_again(tmp_path: Path, call: Call) -> None:
    """The model gets all turns and the data's system message; what --output writes has the same fingerprints."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    turns += [{"role": "assistant", "content": "Hello."}]
    for split in ("train", "validation", "test"):
        asked = {"role": "user", "content": f"{POST} This is {split}."}
        row = {"id": "a", "messages": [*turns, asked, {"role": "assistant", "content": "Cat."}], "n": 3}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello."
    said = [done(call("data", "tldr", f"--set=data.path={tmp_path}"), rendered)[1]]
    done(call("data", "tldr", f"--set=data.path={tmp_path}", "--output=again"))
    said.append(done(call("data", "tldr", "--set=data.path=again"))[1])
    splits = ("train ", "validation ", "test ")
    first, second = ([x for x in text.splitlines() if x.startswith(splits) and "is" not in x] for text in said)
    assert len(first) >= 3
    assert first == second


def test_columns_that_rows_have_anyway_and_values_that_json_lacks(tmp_path: Path, call: Call) -> None:
    """The chosen columns are written, and others of their names are left out aloud; a date is a text."""
    rows = {
        "id": [f"p{n}" for n in range(60)], "post": [f"{POST} {n}" for n in range(60)], "summary": ["Cat."] * 60,
        "prompt": ["another"] * 60, "completion": ["another"] * 60, "day": [date(2026, 1, 2)] * 60,
    }  # fmt: skip
    pq.write_table(pa.table(rows), tmp_path / "posts.parquet")
    chosen = ("--set=data.prompt_column=post", "--set=data.completion_column=summary")
    _, err = done(call("data", "tldr", f"--set=data.path={tmp_path / 'posts.parquet'}", *chosen, "--output=out"))
    assert "left out" in err
    assert "columns completion, prompt" in err
    written = [row for path in sorted(Path("out").glob("*.jsonl")) for row in read_jsonl(path)]
    assert {row["completion"] for row in written} == {"Cat."}
    assert {row["prompt"] for row in written} == {*rows["post"]}
    assert {row["day"] for row in written} == {"2026-01-02"}
