"""Whole steps of this engine: sampling, the gradients of the step's groups, the optimizer."""

from __future__ import annotations

import random

from random_model import random_model
from shapes import Stopwatch, arguments, peak_gb, report

from smolsum.config.sections import Config, GrpoConfig, OptimizerConfig, SamplingConfig, TrainConfig
from smolsum.config.stage import StageConfig
from smolsum.grpo.batch_gradient import gradients
from smolsum.grpo.optimizer import Optimizer
from smolsum.policy import fast_math
from smolsum.policy.cpu.gradient import forget_most_mapped, most_mapped
from smolsum.policy.group_gradient import Chunking
from smolsum.policy.memory import MaxLengths, estimate, shape_of
from smolsum.policy.sampling import generate, rollout_seed
from smolsum.types import Prompt, Rollout, RolloutGroup

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

STAGE = StageConfig(
    rewards={"length": 1.0}, steps=1, epochs=1, temperature=1.0, learning_rate=1e-6, schedule="constant",
    warmup_steps=0, beta=0.0, mask_truncated=False,
)  # fmt: skip
CHUNKINGS = {
    "shared": Chunking(),
    "medium": Chunking(bfloat16=True),
    "repeated": Chunking(shared_prefix=False),
    "bounded": Chunking(rows=2, logits=32_000_000, checkpointing=True),
}


def main() -> None:
    """Train a model with random weights on random prompts with random advantages; no token ends a completion."""
    args = arguments()
    model = random_model(args.shape, "float32")
    fast_math.install(model)
    rng = random.Random(0)
    prompts = [
        Prompt(f"{p}", (), tuple(rng.randrange(args.shape.vocabulary) for _ in range(args.prompt)), ("",), {})
        for p in range(args.prompts)
    ]
    optimizer = Optimizer(model, OptimizerConfig())
    mx.eval(optimizer.m, optimizer.v)
    clock, peaks = Stopwatch(args.warm_up), dict[str, float]()
    for step in range(args.warm_up + args.repeat):
        seeds = [[rollout_seed(0, step, prompt.id, g) for g in range(args.group)] for prompt in prompts]
        clock.begin()
        sampled = generate(
            model,
            [prompt.token_ids for prompt in prompts],
            seeds,
            eos_ids=frozenset(),
            temperature=1.0,
            max_new_tokens=args.tokens,
        )
        clock.lap("sampling")
        peaks.setdefault("sampling", peak_gb())
        groups = [
            RolloutGroup(
                prompt,
                tuple(
                    Rollout(one.token_ids, one.logprobs, one.finish_reason, step, "local", seed, "")
                    for one, seed in zip(row, own, strict=True)
                ),
            )
            for prompt, row, own in zip(prompts, sampled, seeds, strict=True)
        ]
        advantages = mx.array([[rng.gauss(0, 1) for _ in range(args.group)] for _ in groups])
        mx.reset_peak_memory()
        forget_most_mapped()
        clock.lap()
        grads, _ = gradients(
            model, groups, advantages, GrpoConfig(), STAGE, max_new_tokens=args.tokens, chunking=CHUNKINGS[args.mode]
        )
        mx.eval(grads)
        clock.lap("update")
        peaks["update"] = (mx.get_peak_memory() + most_mapped()) / 1e9
        mx.reset_peak_memory()
        optimizer.step(model, grads, 1e-6)
        clock.lap("optimizer")
        peaks["optimizer"] = mx.get_peak_memory() / 1e9
        clock.end()
    config = Config(
        sampling=SamplingConfig(rollouts=args.group),
        train=TrainConfig(prompts_per_step=args.prompts),
        stages={"length": STAGE},
    )
    expected = estimate(shape_of(model), config, CHUNKINGS[args.mode], MaxLengths(args.prompt, args.tokens))
    report(
        **clock.figures,
        tokens=args.tokens,
        peaks_gb={part: round(peak, 3) for part, peak in peaks.items()},
        parameters=sum(p.size for _, p in tree_flatten(model.parameters())),
        estimate_gb=round(sum(expected.values()) / 1e9, 2),
    )


if __name__ == "__main__":
    main()
