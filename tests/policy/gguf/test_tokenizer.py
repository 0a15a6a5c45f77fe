"""The tokenizer of a GGUF file: how each name of `tokenizer.ggml.pre` cuts a text, merges by score, special tokens."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from support.gguf_files import TOKENS, replaced, write_pair
from tokenizers import Tokenizer

from smolsum.policy.gguf.header import read_header
from smolsum.policy.gguf.tokenizer import tokenizer_files

TEXT = "It'S 1234 x=5!\n\n  ok"
PIECES = {
    "gpt-2": ["It", "'", "S", " 1234", " x", "=", "5", "!", "\n\n ", " ok"],
    "smollm": ["It", "'", "S", " ", "1", "2", "3", "4", " x", "=", "5", "!", "\n\n ", " ok"],
    "qwen2": ["It", "'S", " ", "1", "2", "3", "4", " x", "=", "5", "!\n\n", " ", " ok"],
    "llama-bpe": ["It", "'S", " ", "123", "4", " x", "=", "5", "!\n\n", " ", " ok"],
    "lfm2": ["It", "'S", " ", "123", "4", " x", "=", "5", "!\n\n", " ", " ok"],
    "default": ["It", "'", "S", " ", "123", "4", " x", "=", "5", "!", "\n\n ", " ok"],
}
"""worked out by hand from the families' patterns"""


def tokenizer_of(file: Path) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    return tokenizer_files(read_header(file))


@pytest.mark.parametrize("pre", PIECES)
def test_a_text_is_cut_as_the_name_says(tmp_path: Path, pre: str) -> None:
    """Digits, contractions, line ends and spaces of each family."""
    _, file = write_pair(tmp_path, "llama", pre=pre)
    made, _, _ = tokenizer_of(file)
    pieces = [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in made.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert pieces == PIECES[pre]


@pytest.mark.parametrize(
    ("pre", "added", "ids"),
    [("gpt-2", None, [3]), ("llama-bpe", None, [0, 3]), ("llama-bpe", False, [3]), ("gpt-2", True, [0, 3])],
)
def test_bos_begins_a_text_where_the_file_or_the_family_says_so(
    tmp_path: Path, pre: str, added: bool | None, ids: list[int]
) -> None:
    """A text that is no chat; templates of chats bring their own."""

    def change(writer: gguf.GGUFWriter) -> None:
        if added is not None:
            writer.add_add_bos_token(added)

    _, file = write_pair(tmp_path, "llama", change=change, pre=pre)
    made, _, _ = tokenizer_of(file)
    assert made.encode("a").ids == ids
    assert made.encode("a", add_special_tokens=False).ids == [3]


def test_a_piece_that_is_a_token_stays_whole_for_llama_3(tmp_path: Path) -> None:
    """Its tokenizer looks a piece up before it merges; others reach a token by merges only."""
    ids = {}
    for pre in ("llama-bpe", "gpt-2"):
        _, file = write_pair(tmp_path / pre, "llama", change=_more_tokens(["xyz"]), pre=pre, vocab_size=len(TOKENS) + 1)
        made, _, _ = tokenizer_of(file)
        ids[pre] = made.encode("xyz", add_special_tokens=False).ids
    letters = [TOKENS.index(letter) for letter in "xyz"]
    assert ids == {"llama-bpe": [len(TOKENS)], "gpt-2": letters}


def _more_tokens(tokens: list[str]) -> Any:
    def change(writer: gguf.GGUFWriter) -> None:
        kinds = writer.kv_data[0]["tokenizer.ggml.token_type"].value
        replaced("tokenizer.ggml.tokens", [*TOKENS, *tokens])(writer)
        replaced("tokenizer.ggml.token_type", [*kinds, *[gguf.TokenType.NORMAL] * len(tokens)])(writer)

    return change


PIECE_SCORES = {
    "<unk>": 0.0, "<bos>": 0.0, "<eos>": 0.0, "<end_of_turn>": 0.0, **{f"<0x{n:02X}>": 0.0 for n in range(256)},
    "▁": -10.0, "a": -11.0, "b": -12.0, "c": -13.0, "ab": -2.0, "bc": -1.0, "▁a": -3.0, "abc": -4.0, "  ": -1000.0,
}  # fmt: skip
PIECES_IN_ORDER = list(PIECE_SCORES)


@pytest.fixture
def gemma_file(tmp_path: Path) -> Path:
    """A file with a tokenizer like Gemma's: no space before the text, runs of spaces as tokens."""

    def change(writer: gguf.GGUFWriter) -> None:
        replaced("tokenizer.ggml.model", "llama")(writer)
        replaced("tokenizer.ggml.tokens", PIECES_IN_ORDER)(writer)
        kinds = {"<unk>": 2, "<bos>": 3, "<eos>": 3, "<end_of_turn>": 3, "  ": 4}
        types = [kinds.get(piece, 6 if piece.startswith("<0x") else 1) for piece in PIECES_IN_ORDER]
        replaced("tokenizer.ggml.token_type", types)(writer)
        writer.add_token_scores(list(PIECE_SCORES.values()))
        writer.add_unk_token_id(0)
        for key, number in (("bos", 1), ("eos", 2), ("padding", 2)):
            replaced(f"tokenizer.ggml.{key}_token_id", number)(writer)
        writer.add_add_space_prefix(False)

    return write_pair(tmp_path, "gemma3_text", change=change, vocab_size=len(PIECES_IN_ORDER))[1]


def test_merges_follow_the_scores(gemma_file: Path) -> None:
    """The pair whose token scores best comes first: `bc` before `ab`, and `▁a` before `abc`."""
    made, _, _ = tokenizer_of(gemma_file)

    def tokens(text: str) -> list[str]:
        return [PIECES_IN_ORDER[i] for i in made.encode(text, add_special_tokens=False).ids]

    assert tokens("abb") == ["ab", "b"]
    assert tokens("abcb") == ["abc", "b"]
    assert tokens("b abc") == ["b", "▁a", "bc"]
    assert tokens("a abb") == ["a", "▁", "ab", "b"]
    assert tokens("a  b") == ["a", "  ", "b"]
    assert tokens("<end_of_turn>é") == ["<end_of_turn>", "<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("b é  a", add_special_tokens=False).ids) == "b é  a"
    assert made.encode("b").ids == [1, PIECES_IN_ORDER.index("b")]


def test_ends_are_those_of_the_file_and_of_its_family(gemma_file: Path, tmp_path: Path) -> None:
    """EOS first, then a turn's end; a named EOT counts whatever it is called."""
    assert tokenizer_of(gemma_file)[2]["eos_token_id"] == [2, 3]
    _, file = write_pair(tmp_path / "eot", "llama", change=lambda writer: writer.add_eot_token_id(TOKENS.index("z")))
    assert tokenizer_of(file)[2]["eos_token_id"] == [2, TOKENS.index("z"), 0]


def test_special_tokens_have_their_names(gemma_file: Path) -> None:
    """transformers finds them, and a text has no special token that it does not hold."""
    _, config, ids = tokenizer_of(gemma_file)
    names = {name: config[f"{name}_token"] for name in ("bos", "eos", "unk", "pad")}
    assert names == {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<eos>"}
    assert (ids["bos_token_id"], ids["pad_token_id"]) == (1, 2)
