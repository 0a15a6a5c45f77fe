"""The shapes that steps are measured at, the operations and bytes that they need, and what all cases share. Imports
only the standard library, so that every peer's environment can read it."""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

STATE_BYTES = 28
"""that AdamW in float32 reads and writes for a parameter: weight, gradient and two moments in; all but the gradient
out"""


@dataclass(frozen=True)
class Shape:
    """A Qwen2 model, or with convolutions an LFM2 model; tied embeddings, weights drawn at random."""

    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    vocabulary: int
    attention: tuple[int, ...] = ()
    """layers of LFM2 with attention, the others have a short convolution; () for Qwen2"""

    @property
    def attends(self) -> int:
        """The number of layers with attention."""
        return len(self.attention) or self.layers

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices in all layers."""
        kv_width = self.width // self.heads * self.kv_heads
        mixers = self.attends * (2 * self.width * self.width + 2 * self.width * kv_width)
        mixers += (self.layers - self.attends) * 4 * self.width * self.width
        return mixers + self.layers * 3 * self.width * self.ff

    @property
    def weights(self) -> int:
        """Weights of all matrices; norms, biases and filters are less than a thousandth."""
        return self.layer_weights + self.vocabulary * self.width

    def operations(self, prompts: int, prompt: int, group: int, tokens: int) -> float:
        """Floating-point operations of one update that goes through each prompt once: 2 a weight and token forward,
        4 backward; logits at completion tokens only; attention over what each token sees."""
        seen = (prompt - 1) ** 2 / 2 + group * (tokens * prompt + tokens**2 / 2)
        through = (prompt - 1 + group * tokens) * self.layer_weights + group * tokens * self.width * self.vocabulary
        return prompts * 6 * (through + 2 * self.attends * self.width * seen)

    def scaled(self, factor: float) -> Shape:
        """A shape whose heads and features are `factor` as many."""
        heads = round(self.heads * factor)
        width, ff = heads * (self.width // self.heads), round(self.ff * factor)
        return replace(self, heads=heads, kv_heads=math.gcd(heads, self.kv_heads), width=width, ff=ff)

    @property
    def settings(self) -> dict[str, Any]:
        """The `config.json` of the model."""
        shared = {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32_768,
            "rope_theta": 1e6,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        if not self.attention:
            own = {"intermediate_size": self.ff, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
            return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **shared, **own}
        return {
            "model_type": "lfm2",
            "architectures": ["Lfm2ForCausalLM"],
            **shared,
            "layer_types": ["full_attention" if n in self.attention else "conv" for n in range(self.layers)],
            "norm_eps": 1e-5,
            "block_norm_eps": 1e-5,
            "num_heads": self.heads,
            "conv_bias": False,
            "conv_L_cache": 3,
            "conv_dim": self.width,
            "conv_dim_out": self.width,
            "block_dim": self.width,
            "block_use_swiglu": True,
            "use_pos_enc": True,
            "block_ff_dim": self.ff,
            "block_auto_adjust_ff_dim": False,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
        }


SHAPES = {
    "0.5b": Shape(layers=24, width=896, ff=4864, heads=14, kv_heads=2, vocabulary=151_936),
    # its config.json says 6656 features, which the model adjusts to 4608
    "lfm2-350m": Shape(
        16, width=1024, ff=4608, heads=16, kv_heads=8, vocabulary=65_536, attention=(2, 5, 8, 10, 12, 14)
    ),
    "small": Shape(layers=8, width=512, ff=1408, heads=8, kv_heads=2, vocabulary=32_000),
}


def arguments() -> argparse.Namespace:
    """Arguments of every case. `shape` is a Shape, None for the built-in model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--scale", type=float, default=1.0, help="of the shape's heads and features")
    parser.add_argument("--batches", type=Path, help="file of `Batches`: a model on prompts of its data")
    parser.add_argument("--model", type=Path, help="folder of a model to train in place of the built-in one")
    parser.add_argument("--data", type=Path, help="folder of its data")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=330, help="tokens of a prompt")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each completion, exactly")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--mode", default="shared", help="shared, medium, repeated or bounded; for TRL whole")
    parser.add_argument("--warm-up", type=int, default=1, help="steps that do not count")
    parser.add_argument("--repeat", type=int, default=3, help="steps that count")
    parser.add_argument("--gguf", help="file of the same model, for llama.cpp")
    parser.add_argument("--vllm", help="Python of an environment that has vLLM")
    found = parser.parse_args()
    found.shape = SHAPES[found.shape].scaled(found.scale) if found.shape else None
    return found


@dataclass(frozen=True)
class Batches:
    """What a run of `smolsum train` trained on, so that a peer can train on the same."""

    model: str
    """folder of the model"""
    steps: list[list[list[dict[str, str]]]]
    """the messages of each prompt of each step"""
    group: int
    tokens: int
    """most of a completion"""
    target: int
    """tokens that the reward asks for"""
    floor: float
    """lowest reward"""
    beta: float
    rate: float
    beta2: float

    @classmethod
    def read(cls, path: Path) -> Batches:
        """Read what `json.dumps(vars(batches))` wrote."""
        return cls(**json.loads(path.read_text()))

    def reward(self, tokens: int) -> float:
        """The reward of a completion of so many tokens without its end, as the run's signal `length` has it."""
        return max(self.floor, 0.0 - abs(tokens - self.target) / self.target)


class Stopwatch:
    """Seconds of each step and of its parts."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up, self.steps = warm_up, list[dict[str, float]]()

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self.began = self.start = time.perf_counter()

    def lap(self, part: str | None = None) -> None:
        """Note the time since the last lap, or since the begin, as that of a part; without a name as of none."""
        now = time.perf_counter()
        if part:
            self.steps[-1][part] = now - self.start
        self.start = now

    def end(self) -> None:
        """End the step."""
        self.steps[-1]["step"] = time.perf_counter() - self.began

    @property
    def figures(self) -> dict[str, Any]:
        """The steps that count, and those before."""
        return {"steps": self.steps[self.warm_up :], "warm_up": self.steps[: self.warm_up]}


def time_decoding(args: argparse.Namespace, vocabulary: int, sample: Callable[[list[int], int], object]) -> None:
    """Report the seconds that a token of all rows takes once the prompt is read: `sample` is given the ids of a prompt
    and how many tokens to sample after it."""
    rng, found = random.Random(0), list[float]()
    for _ in range(args.warm_up + args.repeat):
        laps = []
        for tokens in (1, args.tokens):
            prompt = [rng.randrange(vocabulary) for _ in range(args.prompt)]
            start = time.perf_counter()
            sample(prompt, tokens)
            laps.append(time.perf_counter() - start)
        found.append((laps[1] - laps[0]) / (args.tokens - 1))
    report(decode=found[args.warm_up :])


def peak_gb() -> float:
    """The peak of this process's resident memory so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 3)


def report(**figures: object) -> None:
    """Print the figures as one line of JSON, with the peak of the process's resident memory in GB."""
    print(json.dumps({"peak_gb": peak_gb(), **figures}), flush=True)
