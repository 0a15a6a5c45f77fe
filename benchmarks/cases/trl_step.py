"""Whole GRPO steps of TRL, with its defaults. Runs where `trl` and `torch` are installed.

In bfloat16 weights and optimizer state are bfloat16 too. Of a step, what is neither sampling nor `training_step` is the
optimizer: clipping, AdamW, and setting gradients to nothing.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from shapes import Batches, Stopwatch, arguments, report
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

TOKENIZER = Path(__file__).parents[2] / "smolsum/policy/builtin/tiny"
NEVER = -1
"""a token id that no model samples"""


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers has no types for it
    """Seconds of each step and its parts."""

    def __init__(self, warm_up: int) -> None:
        self.watch, self.seconds, self.lengths = Stopwatch(warm_up), dict[str, float](), list[float]()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its seconds noted under the name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = function(*args, **kwargs)
            self.seconds[name] = time.perf_counter() - start
            return out

        return call

    def on_step_begin(self, *_: object, **__: object) -> None:
        """A step begins."""
        self.watch.begin()

    def on_step_end(self, *_: object, **__: object) -> None:
        """A step ends, optimizer included."""
        self.watch.end()
        step = self.watch.steps[-1]
        step["sampling"] = self.seconds["sampling"]
        step["update"] = self.seconds["training_step"] - self.seconds["sampling"]
        step["optimizer"] = step["step"] - self.seconds["training_step"]


def main() -> None:
    """Train a few steps."""
    args = arguments()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    clock, steps = Clock(args.warm_up), args.warm_up + args.repeat
    with tempfile.TemporaryDirectory() as folder:
        make = built_in if args.batches else drawn_at_random
        trainer = make(args, steps, folder, clock)
        trainer._generate = clock.timed("sampling", trainer._generate)
        trainer.training_step = clock.timed("training_step", trainer.training_step)
        trainer.train()
    lengths = clock.lengths[args.warm_up :]
    report(**clock.watch.figures, tokens=sum(lengths) / len(lengths))


def drawn_at_random(args: argparse.Namespace, steps: int, folder: str, clock: Clock) -> GRPOTrainer:
    """Random weights, prompts and rewards; no token ends a completion."""
    rng = random.Random(0)
    prompts = {f"{p}": [rng.randrange(args.shape.vocabulary) for _ in range(args.prompt)] for p in range(args.prompts)}

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        clock.lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return [rng.gauss(0, 1) for _ in completion_ids]

    settings = dict(args.shape.settings)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_config(
            AutoConfig.for_model(settings.pop("model_type"), **settings), dtype=getattr(torch, args.dtype)
        ),
        reward_funcs=reward,
        args=config(args, args.prompts, args.group, args.tokens, steps, folder),
        train_dataset=Dataset.from_dict({"prompt": list(prompts) * steps}),
        processing_class=AutoTokenizer.from_pretrained(TOKENIZER),
        callbacks=[clock],
    )
    trainer._tokenize_prompts = lambda texts: ([prompts[text] for text in texts], None, {})
    trainer.eos_token_ids = [NEVER]
    trainer.generation_config.eos_token_id = trainer.generation_kwargs["eos_token_id"] = NEVER
    return trainer


def built_in(args: argparse.Namespace, steps: int, folder: str, clock: Clock) -> GRPOTrainer:
    """The built-in model on the prompts of a run of smolsum, step for step, with its reward and settings."""
    batches = Batches.read(args.batches)
    prompts = [messages for step in batches.steps for messages in step]

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths = [len(ids) - (ids[-1] in trainer.eos_token_ids) for ids in completion_ids]
        clock.lengths.append(sum(lengths) / len(lengths))
        return list(map(batches.reward, lengths))

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(batches.model, dtype=getattr(torch, args.dtype)),
        reward_funcs=reward,
        args=config(
            args, len(batches.steps[0]), batches.group, batches.tokens, steps, folder,
            beta=batches.beta, learning_rate=batches.rate, adam_beta2=batches.beta2, loss_type="grpo",
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(batches.model),
        callbacks=[clock],
    )  # fmt: skip
    return trainer


def config(
    args: argparse.Namespace, prompts: int, group: int, tokens: int, steps: int, folder: str, **more: Any
) -> GRPOConfig:
    """TRL's defaults, apart from the sizes."""
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=prompts * group,
        num_generations=group,
        max_completion_length=tokens,
        max_steps=steps,
        shuffle_dataset=False,
        bf16=False,  # no automatic casts: the model has the type
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        save_strategy="no",
        logging_steps=1_000_000,
        disable_tqdm=True,
        gradient_checkpointing=args.mode != "whole",  # TRL's default: less memory, more time
        **more,
    )


if __name__ == "__main__":
    main()
