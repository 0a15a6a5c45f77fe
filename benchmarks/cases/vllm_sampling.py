"""Sampling with a vLLM server, started as the worker of this engine starts it.

Every step has prompts of its own, or the server would not read them again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from random_model import write_random_model
from shapes import Batches, Stopwatch, arguments, report

from smolsum.policy.load import encode_chat, load_policy
from smolsum.rollout.worker.engines.vllm_process import VllmServer
from smolsum.rollout.worker.engines.vllm_setup import flags, installed

Prompts = list[list[list[int]]]
"""token ids of each prompt of each step"""


async def main() -> None:
    """Sample a few steps' rollouts, all of a step at once."""
    args = arguments()
    made = Path(tempfile.mkdtemp(prefix="v-"))  # a short path, as sockets need it
    try:
        if args.batches:
            batches = Batches.read(args.batches)
            policy = load_policy(batches.model)
            prompts = [[encode_chat(policy, messages) for messages in step] for step in batches.steps]
            await measure(args, made, batches.model, prompts, batches.group, batches.tokens, sorted(policy.eos_ids))
        else:
            model = write_random_model(made / "model", args.shape, args.dtype)
            rng, steps = random.Random(0), args.warm_up + args.repeat

            def ids() -> list[int]:
                return [rng.randrange(args.shape.vocabulary) for _ in range(args.prompt)]

            drawn = [[ids() for _ in range(args.prompts)] for _ in range(steps)]
            await measure(args, made, str(model), drawn, args.group, args.tokens, [])
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def measure(
    args: argparse.Namespace, folder: Path, model: str, prompts: Prompts, group: int, tokens: int, ends: list[int]
) -> None:
    """Start the server, sample and report. Only these ids end a completion."""
    longest = max(len(prompt) for step in prompts for prompt in step) + tokens
    stateful = bool(args.shape and args.shape.attention)
    arguments = [
        "--model", model, "--served-model-name", "policy", "--dtype", args.dtype,
        *flags(
            max_model_len=longest, max_running=128, lora_rank=0, cpu=installed(args.vllm).cpu, stateful=stateful
        ),
    ]  # fmt: skip
    silent: Callable[[str], None] = lambda line: None  # noqa: E731
    server = VllmServer(args.vllm, arguments, folder, silent)
    await server.start()
    clock, lengths = Stopwatch(args.warm_up), list[int]()
    try:
        for place, step in enumerate(prompts[: args.warm_up + args.repeat]):
            clock.begin()
            answers = await asyncio.gather(
                *(
                    server.post(
                        "/v1/completions",
                        {
                            "model": "policy", "prompt": prompt, "n": group, "max_tokens": tokens, "temperature": 1.0,
                            "logprobs": 0, "return_token_ids": True, "ignore_eos": True, "stop_token_ids": ends,
                            "seed": place,
                        },
                    )
                    for prompt in step
                )
            )  # fmt: skip
            clock.lap("sampling")
            if place >= args.warm_up:
                choices = [choice for answer in answers for choice in answer["choices"]]
                lengths += [len(one["token_ids"]) - (one["finish_reason"] == "stop") for one in choices]
    finally:
        await server.stop()
    report(**clock.figures, tokens=sum(lengths) / len(lengths), peak_gb=None)


if __name__ == "__main__":
    asyncio.run(main())
