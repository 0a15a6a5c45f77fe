"""The two shapes that updates are measured at, and the operations that an update needs. Imports only the
standard library, so that every peer's environment can read it."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import dataclass

UPDATES = 3
"""the last one counts: the first pays for compilation, and the first two for memory that was not touched before"""


@dataclass(frozen=True)
class Shape:
    """A Qwen2 model with tied embeddings, weights drawn at random."""

    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices in all layers."""
        kv_width = self.width // self.heads * self.kv_heads
        return self.layers * (2 * self.width * self.width + 2 * self.width * kv_width + 3 * self.width * self.ff)

    def operations(self, prompts: int, prompt: int, group: int, tokens: int) -> float:
        """Floating-point operations of one update that goes through each prompt once: 2 a weight and token forward,
        4 backward; logits at completion tokens only; attention over what each token sees."""
        seen = (prompt - 1) ** 2 / 2 + group * (tokens * prompt + tokens**2 / 2)
        through = (prompt - 1 + group * tokens) * self.layer_weights + group * tokens * self.width * self.vocabulary
        return prompts * 6 * (through + 2 * self.layers * self.width * seen)


SHAPES = {
    "0.5b": Shape(layers=24, width=896, ff=4864, heads=14, kv_heads=2, vocabulary=151_936),
    "small": Shape(layers=8, width=512, ff=1408, heads=8, kv_heads=2, vocabulary=32_000),
}


def arguments() -> argparse.Namespace:
    """Arguments of every case: the shape, and prompts, prompt tokens, rollouts and tokens of the update."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=330)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--mode", default="shared", help="shared, repeated or bounded; for TRL whole")
    return parser.parse_args()


class Stopwatch:
    """Seconds of each of a few updates."""

    def __init__(self) -> None:
        self.laps: list[float] = []
        self.start = time.perf_counter()

    def lap(self) -> None:
        """Note the time since the last lap."""
        now = time.perf_counter()
        self.laps.append(now - self.start)
        self.start = now


def report(**figures: object) -> None:
    """Print the figures as one line of JSON, with the peak of the process's resident memory in GB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    print(json.dumps({**figures, "peak_gb": round(peak, 2)}), flush=True)
