"""`smolsum export --format gguf`: one file that scores as the other format, a Modelfile, and the card."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from support.calls import Call, done
from support.disks import mounted
from support.refusals import assert_refused
from support.training import arguments, make_data

from smolsum.cli import main
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.policy.gguf.write import write_gguf
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs

SHORT = {
    "stages__length__steps": 2, "stages__quality__steps": 1, "train__checkpoint_every": 1, "train__validate_every": 1,
    "sampling__rollouts": 2, "sampling__max_new_tokens": 24, "task__target_tokens": 20, "model__adapter": "lora",
    "optimizer__learning_rate": 0.003,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `posts`, and `runs` with the run `mine`, which trained adapters for the model in a GGUF file."""
    folder = tmp_path_factory.mktemp("home")
    data, start = make_data(folder / "posts"), load_policy("builtin:tiny")
    template = start.tokenizer.chat_template
    write_gguf(start, start.model.parameters(), folder / "start.gguf", kind="F16", name="start", template=template)
    given = [f"--model={folder}/start.gguf", *arguments(data, folder / "runs", "mine", **SHORT)[2:]]
    assert main.main(["train", *given, "--quiet"]) == 0
    return folder


def test_the_file_scores_as_the_other_format(home: Path, tmp_path: Path, call: Call) -> None:
    """The run's answers to its posts, after the chat template's own system message, with adapters merged; that format
    answers as the run was evaluated."""
    for name, flags in (("other", ()), ("gguf", ("--format", "gguf", "--gguf-type", "f16"))):
        done(call("export", "mine", tmp_path / name, "--runs-dir", home / "runs", "--license", "mit", *flags))
    found = sorted(path.name for path in (tmp_path / "gguf").iterdir())
    assert found == ["Modelfile", "README.md", "evidence", "figures", "gguf-F16.gguf"]
    one, other = load_policy(str(tmp_path / "gguf" / "gguf-F16.gguf")), load_policy(str(tmp_path / "other"))
    posts = pl.read_parquet(home / "posts" / "test.parquet")["prompt"]
    rows = read_jsonl(home / "runs" / "mine" / "eval" / "quality-test" / "generations.jsonl")
    for post, row in zip(posts, rows, strict=True):
        chats = [
            policy.tokenizer.apply_chat_template(
                [{"role": "user", "content": post}], add_generation_prompt=True, return_dict=False
            )
            for policy in (one, other)
        ]
        assert chats[0] == chats[1]
        scores = [np.array(group_logprobs(policy.model, chats[0], [row["token_ids"]])[0]) for policy in (one, other)]
        np.testing.assert_allclose(scores[0], scores[1], atol=0.02)
        assert scores[0].max() < 0 < np.exp(scores[0]).min()
    assert one.eos_ids >= other.eos_ids


def test_the_modelfile_and_the_card_name_the_file(home: Path, tmp_path: Path, call: Call) -> None:
    """8 bits unless another type is asked for; greedy answers as long as the evaluation's."""
    out, _ = done(call("export", "mine", tmp_path / "m", "--runs-dir", home / "runs", "--format", "gguf"), "no licence")
    assert out.strip() == str(tmp_path / "m")
    text = (tmp_path / "m" / "Modelfile").read_text()
    lines = (
        "FROM ./m-Q8_0.gguf",
        'SYSTEM """Summarise the post.',
        "PARAMETER temperature 0",
        "PARAMETER num_predict 24",
    )
    assert [line for line in (*lines, 'PARAMETER stop "<|im_end|>"') if line not in text] == []
    card = (tmp_path / "m" / "README.md").read_text()
    assert "--model m-Q8_0.gguf" in card
    assert "parameters in Q8_0" in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "gguf"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--gguf-type", "Q4_0"), "--format gguf"),
        (("--format", "gguf", "--adapter"), "--adapter"),
        (("--format", "gguf", "--gguf-type", "Q5_K"), "'Q5_K'"),
        (("--format", "onnx"), "'onnx'"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    home: Path, tmp_path: Path, call: Call, flags: tuple[str, ...], named: str
) -> None:
    """And nothing is written."""
    assert_refused(call("export", "mine", tmp_path / "out", "--runs-dir", home / "runs", *flags), named)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(home: Path, tmp_path: Path, call: Call) -> None:
    """Neither a part of the file nor the folder."""
    with mounted(tmp_path / "disk", 900) as disk:
        answer = call("export", "mine", disk / "out", "--runs-dir", home / "runs", "--format", "gguf")
        assert_refused(answer, "disk is full", error=SmolsumError)
        assert list(disk.iterdir()) == []
