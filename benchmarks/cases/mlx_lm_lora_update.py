"""One update of mlx-lm-lora: its own loss on given completions, and Adam. The same BLAS as this engine's."""

from __future__ import annotations

import importlib.metadata
import random

from random_qwen2 import random_qwen2
from shapes import SHAPES, UPDATES, Stopwatch, arguments, report

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm_lora.trainer.grpo_trainer import grpo_loss


def main() -> None:
    """Two updates of a model with random weights on random tokens; reports the last."""
    args = arguments()
    shape = SHAPES[args.shape]
    model = random_qwen2(shape, args.dtype)
    rng = random.Random(0)

    def ids(n: int) -> list[int]:
        return [rng.randrange(shape.vocabulary) for _ in range(n)]

    prompts = [ids(args.prompt) for _ in range(args.prompts)]
    of = [p for p in range(args.prompts) for _ in range(args.group)]
    completions = [mx.array(ids(args.tokens)) for _ in of]
    advantages = mx.array([rng.gauss(0, 1) for _ in of])
    optimizer = optim.Adam(1e-6)

    def loss(model: nn.Module) -> mx.array:
        return grpo_loss(
            model,
            None,
            (prompts,),
            completions=completions,
            completion_texts=[""] * len(of),
            batch_indices=of,
            advantages=advantages,
            reward_metrics={},
            beta=0.0,
            max_tokens=args.tokens,
        )[0]

    step = nn.value_and_grad(model, loss)
    clock = Stopwatch()
    for _ in range(UPDATES):
        _, grads = step(model)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
        del grads
        clock.lap()
    report(
        seconds=clock.laps[-1],
        mlx_peak_gb=round(mx.get_peak_memory() / 1e9, 2),
        version=importlib.metadata.version("mlx-lm-lora"),
    )


if __name__ == "__main__":
    main()
