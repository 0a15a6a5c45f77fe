"""A saved checkpoint in transformers: the same logits as in MLX."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.models import write

from smolsum.policy.load import load_policy
from smolsum.policy.weights import save_policy

# isort: split
import mlx.core as mx

TOKENS = [[5, 9, 33, 4, 60, 12, 8, 41, 3, 22, 17, 2]]
THEIRS = """
import sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
AutoTokenizer.from_pretrained(sys.argv[1])
with torch.no_grad():
    np.save(sys.argv[2], model(torch.tensor(%s)).logits.numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen2", "qwen3", "llama", "lfm2", "builtin:tiny", "builtin:tiny-lfm"])
def test_transformers_gives_the_same_logits(tmp_path: Path, model: str) -> None:
    """float32 logits within 1e-3 of MLX's."""
    pytest.importorskip("torch", reason="uv sync --group bench")
    policy = load_policy(model if ":" in model else str(write(tmp_path / "start", model)))
    (tmp_path / "saved").mkdir()
    save_policy(policy, policy.model.parameters(), tmp_path / "saved")
    # torch brings its own BLAS: the two libraries do not share a process
    command = [sys.executable, "-c", THEIRS % TOKENS, str(tmp_path / "saved"), str(tmp_path / "logits.npy")]
    subprocess.run(command, check=True, capture_output=True)
    ours = np.array(policy.model(mx.array(TOKENS)).astype(mx.float32))
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours, atol=1e-3)
