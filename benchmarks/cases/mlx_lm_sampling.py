"""Sampling with mlx-lm's generator of batches, with the same BLAS as this engine and all cores for it."""

from __future__ import annotations

import random

from random_model import random_model
from shapes import Batches, Stopwatch, arguments, report

# isort: split
import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load


def main() -> None:
    """Sample a few steps' rollouts, all of a step at once."""
    args = arguments()
    steps, ends = args.warm_up + args.repeat, frozenset[int]()
    if args.batches:
        batches = Batches.read(args.batches)
        model, tokenizer = load(batches.model)
        model.set_dtype(mx.float32)
        group, tokens, ends = batches.group, batches.tokens, tokenizer.eos_token_ids
        prompts = [
            [tokenizer.apply_chat_template(messages, add_generation_prompt=True) for messages in step]
            for step in batches.steps
        ]
    else:
        model, group, tokens, rng = random_model(args.shape, args.dtype), args.group, args.tokens, random.Random(0)
        drawn = [[rng.randrange(args.shape.vocabulary) for _ in range(args.prompt)] for _ in range(args.prompts)]
        prompts = [drawn] * steps
    clock, lengths = Stopwatch(args.warm_up), list[float]()
    for step in prompts[:steps]:
        rows = [prompt for prompt in step for _ in range(group)]
        clock.begin()
        generator = BatchGenerator(
            model,
            stop_tokens=[[end] for end in ends],
            sampler=make_sampler(1.0),
            completion_batch_size=len(rows),
            prefill_batch_size=len(rows),
        )
        generator.insert(rows, [tokens] * len(rows))
        count = 0
        while responses := generator.next_generated():
            for response in responses:
                count += response.finish_reason != "stop"
                response.logprobs[response.token].item()  # which GRPO needs
        generator.close()
        clock.lap("sampling")
        lengths.append(count / len(rows))
    report(**clock.figures, tokens=sum(lengths[args.warm_up :]) / args.repeat)


if __name__ == "__main__":
    main()
