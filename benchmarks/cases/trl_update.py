"""One GRPO step of TRL, with its defaults; sampling timed apart. Runs where `trl` and `torch` are installed."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from shapes import SHAPES, UPDATES, arguments, report
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        """A step begins."""
        self.start = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        """A step ends, optimizer included."""
        self.seconds.append(time.perf_counter() - self.start)


def main() -> None:
    """Train a few steps on random prompts and rewards; report the last."""
    args = arguments()
    shape = SHAPES[args.shape]
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "smolsum/policy/builtin/tiny")
    config = Qwen2Config(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.ff,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=True,
        eos_token_id=shape.vocabulary - 1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).to(getattr(torch, args.dtype))
    words = [tokenizer.decode([i]) for i in range(600, 700)]
    prompts = ["".join(words[(7 * p + i) % 100] for i in range(args.prompt)) for p in range(args.prompts)]
    ids = [tokenizer.encode(text)[: args.prompt] for text in prompts]
    data = Dataset.from_dict({"prompt": [tokenizer.decode(i) for i in ids] * UPDATES})
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: torch.rand(len(completions)).tolist(),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=args.prompts * args.group,
                num_generations=args.group,
                max_completion_length=args.tokens,
                max_steps=UPDATES,
                bf16=False,
                use_cpu=not torch.cuda.is_available(),
                report_to="none",
                save_strategy="no",
                logging_steps=1000,
                disable_tqdm=True,
                gradient_checkpointing=args.mode != "whole",  # TRL's default: less memory, more time
            ),
            train_dataset=data,
            processing_class=tokenizer,
            callbacks=[clock := Clock()],
        )
        sampling: list[float] = []
        generate = trainer._generate

        def timed(*arguments: object, **args: object) -> object:
            start = time.perf_counter()
            out = generate(*arguments, **args)
            sampling.append(time.perf_counter() - start)
            return out

        trainer._generate = timed
        trainer.train()
    report(
        seconds=clock.seconds[-1] - sampling[-1],
        sampling_s=sampling[-1],
        prompt_tokens=len(ids[0]),
        version=sys.modules["trl"].__version__,
    )


if __name__ == "__main__":
    main()
