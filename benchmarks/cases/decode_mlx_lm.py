"""Decoding alone, by mlx-lm's generator of batches, with the same BLAS as this engine and all cores for it."""

from __future__ import annotations

from shapes import arguments, time_decoding

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load


def main() -> None:
    """Sample the rollouts of prompts of random tokens; none ends early."""
    args = arguments()
    model, _ = load(str(args.model))
    model.set_dtype(getattr(mx, args.dtype))

    def sample(prompt: list[int], tokens: int) -> None:
        size = args.group
        generator = BatchGenerator(
            model, stop_tokens=[], sampler=make_sampler(1.0), completion_batch_size=size, prefill_batch_size=size
        )
        generator.insert([prompt] * size, [tokens] * size)
        while responses := generator.next_generated():
            for response in responses:
                response.logprobs[response.token].item()  # which GRPO needs
        generator.close()

    time_decoding(args, model.args.vocab_size, sample)


if __name__ == "__main__":
    main()
