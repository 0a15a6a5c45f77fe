"""The metadata that tell llama.cpp a tokenizer.

llama.cpp knows the way in which a BPE cuts text by name only (`tokenizer.ggml.pre`), so a tokenizer that cuts in
another way cannot be put into a file. Kinds of tokens follow llama.cpp's `conversion/base.py`.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from smolsum.errors import UsageError
from smolsum.policy.gguf.tokenizer import BYTE, CONTROL, CUTS, ENDS, GPT2, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED

OTHER_FORMAT = "leave --format out: the Hugging Face layout has any tokenizer"
WORST = -1e6
"""the score of a token that no merge makes: it is below that of every merge"""
BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}
PROBE = (
    "It's 1234567 o'clock; WE'LL pay $3.50 (or €4).\n\n  Two  spaces,\ttabs\r\n and x = y**2...\n\n\n"
    "Größe, naïve, Привет, 你好世界, 🦙✅!? — “quoted” don't\u00a0stop  "
)
"""a text on which the ways to cut differ"""


@dataclass
class Vocabulary:
    """A tokenizer in llama.cpp's terms: the value of each key below `tokenizer.ggml`."""

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    space_prefix: bool = False
    adds: dict[str, bool] = field(default_factory=dict)
    """whether BOS and EOS are put around a text"""
    ids: dict[str, int] = field(default_factory=dict)
    """ids of special tokens"""


def vocabulary_of(tokenizer: TokenizerWrapper, size: int, eos_ids: frozenset[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer for a model with `size` logits. Raises UsageError for a tokenizer that
    llama.cpp does not have."""
    backend = tokenizer.backend_tokenizer
    held = json.loads(backend.to_str())
    if held["model"]["type"] != "BPE" or any(held["model"].get(k) for k in ("dropout", "end_of_word_suffix")):
        raise _unknown(f"it is a {held['model']['type']}, not a plain BPE")
    merges = [tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) for one in held["model"]["merges"]]
    pieces = bool(held["model"].get("byte_fallback"))
    tokens, kinds = _tokens(held, size, pieces=pieces)
    if pieces:
        made = Vocabulary("llama", "default", tokens, kinds, space_prefix=_adds_space(held))
        first: dict[str, float] = {}
        for rank, (left, right) in enumerate(merges):
            first.setdefault(left + right, -float(rank))
        made.scores = [first.get(token, WORST) for token in tokens]
    else:
        made = Vocabulary("gpt2", _pre(held), tokens, kinds, [f"{left} {right}" for left, right in merges])
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        if (number := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            made.ids[key] = int(number)
    eos = made.ids.get("eos")
    unnamed = [one for one in sorted(eos_ids) if one != eos and tokens[one] not in ENDS]
    if unnamed:
        made.ids["eot"] = unnamed[0]
    plain, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    made.adds = {
        "bos": whole[: len(whole) - len(plain)][:1] == [made.ids.get("bos")],
        "eos": len(whole) > len(plain) and whole[-1] == eos,
    }
    return made


def require_same(tokenizer: TokenizerWrapper, read: Any, chat: str) -> None:
    """Raise UsageError where the tokenizer that a written file stands for, `read`, cuts a text or a chat otherwise."""
    for text in (PROBE, chat):
        own, theirs = (one.encode(text, add_special_tokens=False).ids for one in (tokenizer.backend_tokenizer, read))
        if own != theirs:
            place = next((n for n, pair in enumerate(zip(own, theirs, strict=False)) if pair[0] != pair[1]), 0)
            raise _unknown(f"it would cut a text otherwise after {tokenizer.decode(own[:place])[-20:]!r}")


def _unknown(why: str) -> UsageError:
    return UsageError(f"llama.cpp does not have the model's tokenizer: {why}", hint=OTHER_FORMAT)


def _tokens(held: dict[str, Any], size: int, *, pieces: bool) -> tuple[list[str], list[int]]:
    """Return the tokens in order of their ids and their kinds; ids without a token get a name that no text has."""
    names = {number: token for token, number in held["model"]["vocab"].items()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    kinds = [NORMAL if number in names else UNUSED for number in range(size)]
    for number, token in enumerate(tokens):
        if pieces and token in BYTE_TOKENS:
            kinds[number] = BYTE
        if pieces and token == held["model"].get("unk_token"):
            kinds[number] = UNKNOWN
    for added in held["added_tokens"]:
        number, token = added["id"], added["content"]
        if number >= size:
            raise _unknown(f"the token {token!r} is beyond its {size} logits")
        if kinds[number] == UNKNOWN:
            continue
        control = added["special"] or (token.startswith("<|") and token.endswith("|>"))
        tokens[number] = token if control else token.replace(SPACE, " ")
        kinds[number] = CONTROL if control else USER_DEFINED
    return tokens, kinds


def _pre(held: dict[str, Any]) -> str:
    """Return llama.cpp's name of the way in which a tokenizer over bytes cuts text."""
    parts = _steps(held["pre_tokenizer"], "pretokenizers")
    patterns: list[str] = []
    for part in parts:
        if part["type"] == "Digits" and part["individual_digits"]:
            patterns.append(r"\p{N}")
        elif part["type"] == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
            patterns.append(part["pattern"].get("Regex", ""))
        elif part["type"] == "ByteLevel" and part is parts[-1] and not part["add_prefix_space"]:
            patterns += [GPT2] if part["use_regex"] else []
        else:
            raise _unknown(f"it cuts text by {part['type']}")
    if not parts or parts[-1]["type"] != "ByteLevel":
        raise _unknown("it does not work on bytes")
    normal = [part["type"] for part in _steps(held["normalizer"], "normalizers")]
    for name, cuts in CUTS.items():
        same = (tuple(patterns), bool(held["model"].get("ignore_merges"))) == (cuts.patterns, cuts.whole_words)
        if same and normal in ([], ["NFC"] if cuts.composed else []):
            return name
    raise _unknown(f"it has no name for the way in which it cuts text ({' then '.join(patterns)})")


def _adds_space(held: dict[str, Any]) -> bool:
    """Return whether SentencePiece's BPE puts a space before a text. Raises UsageError for one that works otherwise."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    parts, cuts = _steps(held["normalizer"], "normalizers"), _steps(held["pre_tokenizer"], "pretokenizers")
    if parts not in ([replace], [prepend, replace]):
        raise _unknown("it changes a text in another way than SentencePiece")
    # spaces are gone by then, so Gemma's own step, a split at them, does nothing
    if any(one["type"] != "Split" or one["pattern"] != {"String": " "} for one in cuts):
        raise _unknown("it cuts a text into words first")
    return parts[0] == prepend


def _steps(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer, which may be none, one or a sequence."""
    if part is None:
        return []
    return list(part[key]) if part["type"] == "Sequence" else [part]
