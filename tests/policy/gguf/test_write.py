"""GGUF files of policies: they hold the policy's weights, tokenizer and template, or are not written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gguf_files import write_pair
from support.models import LLAMA3, write
from support.refusals import refuses

from smolsum.policy.gguf.header import read_header
from smolsum.policy.gguf.modelfile import modelfile
from smolsum.policy.gguf.write import write_gguf
from smolsum.policy.load import load_policy

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
LFM2 = {**WIDE, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 96}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3": ("llama", {**WIDE, "rope_scaling": LLAMA3, "attention_bias": True}),
    "llama, own head": ("llama", {**WIDE, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {**WIDE, "rope_scaling": YARN}),
    "qwen3": ("qwen3", {**WIDE, "head_dim": 24}),
    "gemma3": ("gemma3_text", {**WIDE, "num_hidden_layers": 4}),
    "lfm2": ("lfm2", LFM2),
}
TURNS = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|im_end|>{% endfor %}"
ANSWER = "{% if add_generation_prompt %}[assistant]{% endif %}"


def written(folder: Path | str, out: Path, kind: str, template: str = "") -> Path:
    policy = load_policy(str(folder), dtype="float32")
    write_gguf(policy, policy.model.parameters(), out, kind=kind, name="tiny", template=template or TURNS)
    return out


@pytest.mark.parametrize(("family", "changes"), MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("kind", "most"), [("F16", 1e-3), ("Q8_0", 1e-2), ("Q4_0", 0.2)])
def test_what_is_written_is_read(tmp_path: Path, family: str, changes: dict[str, Any], kind: str, most: float) -> None:
    """The same settings, and weights that differ by the rounding of the type only."""
    folder, _ = write_pair(tmp_path, family, **changes)
    file = written(folder, tmp_path / "out.gguf", kind)
    one, other = load_policy(str(file), dtype="float32"), load_policy(str(folder), dtype="float32")
    read = dict(tree_flatten(one.model.parameters()))
    for name, value in tree_flatten(other.model.parameters()):
        assert np.abs(np.array(read[name] - value)).max() <= most * np.abs(np.array(value)).max(), name
    ids = mx.array([list(range(3, 15))])
    logits = [np.array(policy.model(ids)) for policy in (one, other)]
    assert np.abs(logits[0] - logits[1]).max() <= 25 * most * np.abs(logits[1]).max()
    assert one.tokenizer.encode("the 9, a th") == other.tokenizer.encode("the 9, a th")


def test_a_file_says_what_a_reader_of_llama_cpp_looks_for(tmp_path: Path) -> None:
    """Names, template, kinds of tensors: vectors in float32, embeddings in no less than 8 bits."""
    folder, _ = write_pair(tmp_path, "llama", **WIDE)
    found = read_header(written(folder, tmp_path / "out.gguf", "Q4_0", TURNS + ANSWER))
    told = ("general.name", "general.file_type", "tokenizer.ggml.pre", "tokenizer.chat_template")
    assert [found.metadata[key] for key in told] == ["tiny", 2, "gpt-2", TURNS + ANSWER]
    kinds = {
        name: found.tensors[name].kind for name in ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight")
    }
    assert list(kinds.values()) == ["Q8_0", "F32", "Q4_0"]
    assert found.metadata["tokenizer.ggml.merges"] == ["t h"]
    read, own = load_policy(str(tmp_path / "out.gguf")), load_policy(str(folder))
    assert (read.tokenizer.eos_token_id, read.tokenizer.pad_token_id) == (2, 0)
    assert read.tokenizer.get_vocab() == own.tokenizer.get_vocab()


def test_a_modelfile_says_what_the_template_says(tmp_path: Path) -> None:
    """Turns in Ollama's language, greedy answers of the run's length, and what ends them."""
    folder, _ = write_pair(tmp_path, "llama")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for template, told in (
        (TURNS + ANSWER, '{{ else if eq .Role "user" }}[user]{{ .Content }}<|im_end|>{{ else if'),
        ("{{ messages[-1]['content'] | upper }}", "# the chat template is in the file"),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
        text = modelfile(load_policy(str(folder)), "tiny-F16.gguf", most=24)
        assert told in text
        assert text.startswith("FROM ./tiny-F16.gguf\n")
        for line in ("temperature 0", "repeat_penalty 1.0", "num_predict 24", 'stop "<|im_end|>"'):
            assert f"PARAMETER {line}\n" in text


def test_what_llama_cpp_does_not_have_is_refused(tmp_path: Path) -> None:
    """Another architecture, and another way to cut text: nothing would say so later."""
    gemma2 = write(tmp_path / "gemma2", "gemma2")
    for model, named in ((gemma2, "gemma2"), ("builtin:tiny-lfm", "tokenizer")):
        with refuses(named, "--format"):
            written(model, tmp_path / "out.gguf", "F16")


def test_a_value_beyond_float16_is_refused(tmp_path: Path) -> None:
    """It would become infinite."""
    folder, _ = write_pair(tmp_path, "llama", **WIDE)
    policy = load_policy(str(folder), dtype="float32")
    weights = dict(tree_flatten(policy.model.parameters()))
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"] * 1e7
    with refuses("blk.0.ffn_up.weight", "float16"):
        write_gguf(policy, weights, tmp_path / "out.gguf", kind="F16", name="tiny", template=TURNS)
