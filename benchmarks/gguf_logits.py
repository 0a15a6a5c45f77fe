"""Logits of GGUF files as smolsum reads them, against those of transformers' own reader of GGUF, both in float32.

    uv run --group bench --with accelerate python benchmarks/gguf_logits.py [FILE.gguf ...]

Without files: models with random weights of each architecture that both read, which the tests' writer makes by the
rules of llama.cpp's converters. With files: these. Every row is the largest difference of a logit over the first
tokens, and the share of positions at which both have the same likeliest token.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from smolsum.policy.load import load_policy

# isort: split
import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.gguf_files import write_pair

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "lfm2")
WIDE = {"hidden_size": 64, "intermediate_size": 96}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128},
    "gemma3_text": {
        "head_dim": 256, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10_000.0, "num_hidden_layers": 6,
        "sliding_window_pattern": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "lfm2": {"conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 96},
}  # fmt: skip
"""with the values that transformers takes for Qwen3 and Gemma 3 whatever the file says"""
TOKENS = 64


def compare(file: Path) -> tuple[float, float, float]:
    """Return the largest difference of a logit, the largest logit, and the share of positions with the same likeliest
    token."""
    policy = load_policy(str(file), dtype="float32")
    ids = np.random.default_rng(0).integers(3, len(policy.tokenizer), (1, TOKENS))
    ours = np.array(policy.model(mx.array(ids)))[0]
    other = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    with torch.no_grad():
        theirs = other(torch.tensor(ids)).logits[0].numpy()
    same = (ours.argmax(-1) == theirs.argmax(-1)).mean()
    return float(np.abs(ours - theirs).max()), float(np.abs(theirs).max()), float(same)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    files = parser.parse_args(arguments).files
    print("| model | largest difference | largest logit | same likeliest token |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for family in () if files else FAMILIES:
            _, file = write_pair(Path(folder) / family, family, **WIDE, **SIZES.get(family, {}))
            files.append(file.rename(file.with_name(f"{family}.gguf")))
        for file in files:
            difference, largest, same = compare(file)
            print(f"| {file.stem} | {difference:.1e} | {largest:.1f} | {same:.0%} |", flush=True)


if __name__ == "__main__":
    main()
