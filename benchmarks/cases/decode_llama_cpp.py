"""Decoding alone, by llama.cpp through its Python package, as its own benchmark of batches does it: the prompt's cache
is shared by all rows, and the next tokens are given, so that nothing is sampled and no log-prob computed."""

from __future__ import annotations

import os
import random

import llama_cpp
from shapes import arguments, time_decoding


def main() -> None:
    """Feed every row one token at a time."""
    args = arguments()
    room = args.prompt + args.group * args.tokens + args.group
    model = llama_cpp.llama_model_load_from_file(args.gguf.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max, params.kv_unified = room, 512, args.group, True
    params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, params)
    memory, rng = llama_cpp.llama_get_memory(context), random.Random(1)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def feed(entries: list[tuple[int, int, int]], wanted: bool) -> None:
        """`entries` are token, position and row."""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for n, (token, position, row) in enumerate(entries):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, position, 1, row
            batch.logits[n] = wanted
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp could not decode")
        llama_cpp.llama_batch_free(batch)

    def sample(prompt: list[int], tokens: int) -> None:
        llama_cpp.llama_memory_clear(memory, True)
        feed([(token, position, 0) for position, token in enumerate(prompt)], wanted=False)
        for row in range(1, args.group):
            llama_cpp.llama_memory_seq_cp(memory, 0, row, -1, -1)
        for position in range(len(prompt), len(prompt) + tokens):
            feed([(rng.randrange(vocabulary), position, row) for row in range(args.group)], wanted=True)
        llama_cpp.llama_synchronize(context)

    time_decoding(args, vocabulary, sample)


if __name__ == "__main__":
    main()
