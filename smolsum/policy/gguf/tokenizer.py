"""The tokenizer of a GGUF file as `tokenizer.json` and `tokenizer_config.json`, and what ends a completion.

llama.cpp knows how a BPE splits text by the name in `tokenizer.ggml.pre`. The splits are those of the families' own
tokenizers; llama.cpp (`src/llama-vocab.cpp`) has the same in its own words. transformers' reader of GGUF files ignores
that name, and so splits the digits of SmolLM, among others, wrongly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from smolsum.errors import UsageError
from smolsum.policy.gguf.header import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""kinds of tokens, as `tokenizer.ggml.token_type` numbers them"""
ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>")
"""tokens that end a completion wherever a vocabulary has them, as in llama.cpp; its </s> is an HTML tag in Gemma's"""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACE = "▁"
"""how SentencePiece writes a space"""


@dataclass(frozen=True)
class Cuts:
    """How a BPE tokenizer cuts a text before it merges: by each pattern in turn."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """whether a piece that is a token stays whole, whatever the merges say"""
    adds_bos: bool = False
    """whether a text begins with the BOS token, where the file says nothing"""
    composed: bool = False
    """whether characters are composed first (NFC)"""


LLAMA3 = Cuts((rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}",), whole_words=True, adds_bos=True)
CUTS = {
    "gpt-2": Cuts((GPT2,)),
    "smollm": Cuts((r"\p{N}", GPT2)),
    "qwen2": Cuts((rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}",), composed=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "lfm2": LLAMA3,
    "default": Cuts((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
"""by the names of `tokenizer.ggml.pre`; the converters of llama.cpp write the first of names with the same split"""


def tokenizer_files(file: GgufFile) -> tuple[Tokenizer, dict[str, Any], dict[str, Any]]:
    """Return the tokenizer, its settings (`tokenizer_config.json`), and the ids of special tokens as
    `generation_config.json` has them. Raises UsageError for a file without tokenizer, and for a tokenizer that is not
    known."""
    model = file.metadata.get("tokenizer.ggml.model")
    if model is None:
        raise UsageError(
            f"{file.path} has no tokenizer (tokenizer.ggml.model)",
            hint="convert the model to GGUF again, with its tokenizer",
        )
    vocabulary = TokenList.of(file)
    if model == "gpt2":
        made = _byte_level(file, vocabulary)
    elif model == "llama":
        made = _sentencepiece(file, vocabulary)
    else:
        raise UsageError(
            f"{file.path}: tokenizer.ggml.model = {model!r} is not known; known are gpt2 and llama",
            hint="give the model's Hugging Face directory",
        )
    for special, kind in ((True, CONTROL), (False, USER_DEFINED)):
        added = [AddedToken(token, special=special, normalized=False) for token, _ in vocabulary.of_kind(kind) if token]
        made.add_special_tokens(added) if special else made.add_tokens(added)
    names = {f"{name}_token": vocabulary.name(vocabulary.ids[name]) for name in ("bos", "eos", "unk", "pad")}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in names.items() if token is not None},
        "clean_up_tokenization_spaces": False,
    }
    if (template := file.optional("tokenizer.chat_template", str, "")).strip():
        config["chat_template"] = template
    ends = vocabulary.ends()
    if not ends:
        raise UsageError(
            f"{file.path} names no token that ends a completion (tokenizer.ggml.eos_token_id)",
            hint="convert the model to GGUF again, with its tokenizer",
        )
    ids = {f"{name}_token_id": vocabulary.ids[name] for name in ("bos", "pad") if vocabulary.ids[name] is not None}
    return made, config, {**ids, "eos_token_id": ends[0] if len(ends) == 1 else ends}


@dataclass(frozen=True)
class TokenList:
    """The tokens of a file in order of their ids, the kind of each, and the ids of special ones by name."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    ids: Mapping[str, int | None]

    @classmethod
    def of(cls, file: GgufFile) -> "TokenList":
        """Read it. Raises UsageError for a list of another length than the embedding, and for ids beyond it."""
        tokens = file.required("tokenizer.ggml.tokens", list)
        kinds = file.optional("tokenizer.ggml.token_type", list, [NORMAL] * len(tokens))
        embedding = file.tensors.get("token_embd.weight")
        if len(kinds) != len(tokens) or (embedding is not None and len(tokens) > embedding.shape[0]):
            rows = embedding.shape[0] if embedding is not None else 0
            raise UsageError(
                f"{file.path}: tokenizer.ggml.tokens has {len(tokens)} tokens, tokenizer.ggml.token_type"
                f" {len(kinds)}, the embedding {rows}",
                hint="download the file again",
            )
        ids: dict[str, int | None] = {}
        for name, key in KEYS.items():
            ids[name] = file.optional(f"tokenizer.ggml.{key}_token_id", int, None)
            if (one := ids[name]) is not None and not 0 <= one < len(tokens):
                raise UsageError(
                    f"{file.path}: tokenizer.ggml.{key}_token_id = {one} is beyond the {len(tokens)} tokens",
                    hint="download the file again",
                )
        return cls(tokens, kinds, ids)

    def name(self, number: int | None) -> str | None:
        """Return a token's text."""
        return None if number is None else self.tokens[number]

    def of_kind(self, kind: int) -> list[tuple[str, int]]:
        """Return the tokens of a kind with their ids."""
        return [(t, i) for i, (t, k) in enumerate(zip(self.tokens, self.kinds, strict=True)) if k == kind]

    def used(self) -> dict[str, int]:
        """Return the id of each token but those that only fill the embedding."""
        places = enumerate(zip(self.tokens, self.kinds, strict=True))
        return {t: i for i, (t, k) in places if not (k == UNUSED and t.startswith("[PAD"))}

    def ends(self) -> list[int]:
        """Return the ids of the tokens that end a completion, the EOS token first."""
        named = [one for name in ("eos", "eot", "eom") if (one := self.ids[name]) is not None]
        known = {t: i for kind in (CONTROL, USER_DEFINED) for t, i in self.of_kind(kind) if t in ENDS}
        return list(dict.fromkeys([*named, *(known[t] for t in ENDS if t in known)]))


KEYS = {"bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unk": "unknown", "pad": "padding"}
"""names of special tokens, and how keys of a file have them"""


def _byte_level(file: GgufFile, vocabulary: TokenList) -> Tokenizer:
    """Return the BPE over bytes of GPT-2 and its descendants."""
    name = file.required("tokenizer.ggml.pre", str)
    if name not in CUTS:
        raise UsageError(
            f"{file.path}: tokenizer.ggml.pre = {name!r} is not known; known are {', '.join(CUTS)}",
            hint="give the model's Hugging Face directory",
        )
    cuts, tokens = CUTS[name], vocabulary.used()
    merges = [_pair(merge) for merge in file.required("tokenizer.ggml.merges", list)]
    made = Tokenizer(_bpe(file, vocab=tokens, merges=merges, ignore_merges=cuts.whole_words))
    if cuts.composed:
        made.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cuts.patterns]
    prefix = file.optional("tokenizer.ggml.add_space_prefix", bool, False)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = _ends_of_text(file, vocabulary, cuts.adds_bos) or processors.ByteLevel(trim_offsets=False)
    return made


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(file: GgufFile, vocabulary: TokenList) -> Tokenizer:
    """Return SentencePiece's BPE, whose merges are the tokens in order of their scores."""
    tokens, scores = vocabulary.used(), file.required("tokenizer.ggml.scores", list)
    if len(scores) != len(vocabulary.tokens):
        raise UsageError(
            f"{file.path}: tokenizer.ggml.scores has {len(scores)} numbers for {len(vocabulary.tokens)} tokens",
            hint="download the file again",
        )
    ranked = []
    for token, number in vocabulary.of_kind(NORMAL):
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        found = [(a, b) for a, b in parts if a in tokens and b in tokens]
        ranked += [(-scores[number], tokens[a], tokens[b], (a, b)) for a, b in found]
    ranked.sort()
    unknown = vocabulary.name(vocabulary.ids["unk"])
    made = Tokenizer(
        _bpe(
            file, vocab=tokens, merges=[one[-1] for one in ranked], unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    prefix = file.optional("tokenizer.ggml.add_space_prefix", bool, True)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    if (ends := _ends_of_text(file, vocabulary, True)) is not None:
        made.post_processor = ends
    return made


def _bpe(file: GgufFile, **parts: Any) -> models.BPE:
    try:
        return models.BPE(**parts)
    except Exception as error:  # the library raises Exception itself
        raise UsageError(
            f"{file.path}: tokenizer.ggml.merges does not go with tokenizer.ggml.tokens: {error}",
            hint="download the file again",
        ) from error


def _ends_of_text(file: GgufFile, vocabulary: TokenList, adds_bos: bool) -> processors.TemplateProcessing | None:
    """Return what puts BOS and EOS around a text that is no chat; None where neither is."""
    wanted = {
        "bos": file.optional("tokenizer.ggml.add_bos_token", bool, adds_bos),
        "eos": file.optional("tokenizer.ggml.add_eos_token", bool, False),
    }
    used = {name: number for name, wish in wanted.items() if wish and (number := vocabulary.ids[name]) is not None}
    if not used:
        return None
    texts = {name: vocabulary.tokens[number] for name, number in used.items()}
    before, after = ([texts[name]] if name in texts else [] for name in ("bos", "eos"))
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(texts[name], number) for name, number in used.items()],
    )
