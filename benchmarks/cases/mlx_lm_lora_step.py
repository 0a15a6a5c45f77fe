"""Whole GRPO steps of mlx-lm-lora's trainer, with the same BLAS as this engine and all cores for it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from random_model import random_model
from shapes import Batches, Stopwatch, arguments, report

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm.utils import load
from mlx_lm_lora.trainer import grpo_trainer


class NoTokenizer:
    """For random weights: no token ends a completion, and texts are of no use."""

    eos_token_ids = frozenset[int]()

    def decode(self, ids: Sequence[int]) -> str:
        """No text."""
        return ""


class Clock:
    """Notes the parts of a step where the trainer calls generation, optimizer and callback."""

    def __init__(self, warm_up: int, ends: Collection[int]) -> None:
        self.watch, self.lengths, self._ends = Stopwatch(warm_up), list[list[int]](), ends
        self._generate = grpo_trainer.generate_grpo

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Sample; a step begins with it."""
        self.watch.begin()
        found = self._generate(*args, **kwargs)
        self.watch.lap("sampling")
        self.lengths.append([ids.size - (ids[-1].item() in self._ends) for ids in found[0]])
        return found

    def on_train_loss_report(self, _: object) -> None:
        """A step ends, its arrays computed."""
        self.watch.lap("optimizer")
        self.watch.end()


class TimedAdam(optim.AdamW):  # type: ignore[misc]  # mlx has no types
    """AdamW; the trainer has computed the gradients when it calls it."""

    def __init__(self, rate: float, beta2: float, watch: Stopwatch) -> None:
        super().__init__(rate, betas=[0.9, beta2], weight_decay=0.0, bias_correction=True)
        self._watch = watch

    def update(self, model: nn.Module, gradients: dict[str, Any]) -> None:
        """Update the model."""
        self._watch.lap("update")
        super().update(model, gradients)


def main() -> None:
    """Train a few steps: random weights, prompts and rewards, or the built-in model as a run of smolsum did."""
    args = arguments()
    rng, steps = random.Random(0), args.warm_up + args.repeat
    reference, beta, rate, beta2 = None, 0.0, 1e-6, 0.999
    if args.batches:
        batches = Batches.read(args.batches)
        (model, tokenizer), (reference, _) = load(batches.model), load(batches.model)
        model.set_dtype(mx.float32)
        reference.set_dtype(mx.float32)
        group, tokens, beta, rate, beta2 = batches.group, batches.tokens, batches.beta, batches.rate, batches.beta2
        prompts = [
            [tokenizer.apply_chat_template(messages, add_generation_prompt=True) for messages in step]
            for step in batches.steps
        ]
    else:
        model, tokenizer, group, tokens = random_model(args.shape, args.dtype), NoTokenizer(), args.group, args.tokens
        drawn = [[rng.randrange(args.shape.vocabulary) for _ in range(args.prompt)] for _ in range(args.prompts)]
        prompts = [drawn] * steps

    clock = Clock(args.warm_up, tokenizer.eos_token_ids)

    def reward(completions: list[str], **_: object) -> list[float]:
        if args.batches:
            return [batches.reward(length) for length in clock.lengths[-1]]
        return [rng.gauss(0, 1) for _ in completions]

    def each_step(**_: object) -> Iterator[tuple[Any, ...]]:
        for step in prompts:
            yield step, [[]] * len(step), [""] * len(step), [""] * len(step), None

    grpo_trainer.generate_grpo = clock.generate
    with tempfile.TemporaryDirectory() as folder:
        grpo_trainer.train_grpo(
            model,
            reference,
            tokenizer,
            TimedAdam(rate, beta2, clock.watch),
            [],
            reward_funcs=[reward],
            args=grpo_trainer.GRPOTrainingArgs(
                batch_size=len(prompts[0]),
                iters=steps,
                steps_per_report=1,
                group_size=group,
                beta=beta,
                epsilon=0.2,
                max_completion_length=tokens,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                adapter_file=str(Path(folder) / "adapters.safetensors"),
            ),
            iterate_batches=each_step,
            training_callback=clock,
            end_answer_token="",
        )
    lengths = [length for step in clock.lengths[args.warm_up :] for length in step]
    report(**clock.watch.figures, tokens=sum(lengths) / len(lengths))


if __name__ == "__main__":
    main()
