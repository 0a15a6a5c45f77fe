"""Decoding alone, by a vLLM server, started as the worker of this engine starts it."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

from shapes import arguments, time_decoding

from smolsum.rollout.worker.engines.vllm_process import VllmServer
from smolsum.rollout.worker.engines.vllm_setup import flags, installed


def main() -> None:
    """Sample the rollouts of prompts of random tokens; none ends early."""
    args, made = arguments(), Path(tempfile.mkdtemp(prefix="v-"))  # a short path, as sockets need it
    own = flags(
        max_model_len=args.prompt + args.tokens, max_running=128, lora_rank=0, cpu=installed(args.vllm).cpu,
        stateful=False,
    )  # fmt: skip
    named = ["--model", str(args.model), "--served-model-name", "policy", "--dtype", args.dtype]
    server = VllmServer(args.vllm, [*named, *own], made, lambda line: None)
    with asyncio.Runner() as runner:
        runner.run(server.start())
        body = {"model": "policy", "n": args.group, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}

        def sample(prompt: list[int], tokens: int) -> None:
            runner.run(server.post("/v1/completions", {**body, "prompt": prompt, "max_tokens": tokens}))

        try:
            time_decoding(args, json.loads((args.model / "config.json").read_text())["vocab_size"], sample)
        finally:
            runner.run(server.stop())
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    main()
