"""One update of this engine: the gradients of the step's groups, then the optimizer."""

from __future__ import annotations

import random

from random_qwen2 import random_qwen2
from shapes import SHAPES, UPDATES, Stopwatch, arguments, report

from smolsum.config.sections import Config, GrpoConfig, OptimizerConfig, SamplingConfig, StageConfig, TrainConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import fast_math
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.memory import MaxLengths, estimate, shape_of
from smolsum.types import Prompt, Rollout, RolloutGroup

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

STAGE = StageConfig(
    rewards={"length": 1.0}, steps=1, epochs=1, temperature=1.0, learning_rate=1e-6, schedule="constant",
    warmup_steps=0, beta=0.0,
)  # fmt: skip
CHUNKINGS = {
    "shared": Chunking(),
    "repeated": Chunking(shared_prefix=False),
    "bounded": Chunking(rows=2, logits=32_000_000, checkpointing=True),
}


def main() -> None:
    """Updates of a model with random weights on random tokens; reports the last."""
    args = arguments()
    shape = SHAPES[args.shape]
    model = random_qwen2(shape, args.dtype)
    fast_math.install(model)
    rng = random.Random(0)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(shape.vocabulary) for _ in range(n))

    groups = [
        RolloutGroup(
            Prompt(f"{p}", (), ids(args.prompt), ("",), {}),
            tuple(
                Rollout(ids(args.tokens), (-12.0,) * args.tokens, "stop", 0, "local", g, "") for g in range(args.group)
            ),
        )
        for p in range(args.prompts)
    ]
    advantages = mx.array([[rng.gauss(0, 1) for _ in range(args.group)] for _ in groups])
    optimizer = Optimizer(model, OptimizerConfig())
    clock = Stopwatch()
    for _ in range(UPDATES):
        grads, _ = gradients(
            model, groups, advantages, GrpoConfig(), STAGE, max_new_tokens=args.tokens, chunking=CHUNKINGS[args.mode]
        )
        mx.eval(grads)
        optimizer.step(model, grads, 1e-6)
        del grads
        clock.lap()
    config = Config(
        sampling=SamplingConfig(rollouts=args.group),
        train=TrainConfig(prompts_per_step=args.prompts),
        stages={"length": STAGE},
    )
    expected = estimate(shape_of(model), config, CHUNKINGS[args.mode], MaxLengths(args.prompt, args.tokens))
    report(
        seconds=clock.laps[-1],
        first_s=clock.laps[0],
        parameters=sum(p.size for _, p in tree_flatten(model.parameters())),
        estimate_gb=round(sum(expected.values()) / 1e9, 2),
        mlx_peak_gb=round(mx.get_peak_memory() / 1e9, 2),
        operations=shape.operations(args.prompts, args.prompt, args.group, args.tokens),
    )


if __name__ == "__main__":
    main()
