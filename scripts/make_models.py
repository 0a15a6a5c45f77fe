"""Make the built-in models: a byte-level BPE tokenizer, and a warm start on summaries of many lengths.

    uv run python scripts/make_models.py tiny        # Qwen2 architecture
    uv run python scripts/make_models.py tiny-lfm    # LFM2 architecture

Supervised training on the posts of the train split; each time a post is met, its summaries are drawn anew from its facts. Test posts are
never used. Seeded: the same command on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

from make_data import stories
from tldr_mini.compose import Story, reference, summary
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from smolsum.policy import kernels
from smolsum.policy.logprobs import group_logprobs  # loads a fast BLAS before MLX
from smolsum.policy.streams import spread
from smolsum.tasks.prompts import VARIANTS

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes

BUILTIN = Path(__file__).parents[1] / "smolsum" / "builtin"
VOCABULARY = 1536
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
SEED = 7
SHARED = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
          "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2,
          "pad_token_id": 0, "initializer_range": 0.02, "use_cache": True}  # fmt: skip
CONFIGS = {
    "tiny": SHARED | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 4, "intermediate_size": 384,
                      "rms_norm_eps": 1e-6, "hidden_act": "silu"},
    # the keys of LiquidAI's own files: MLX needs block_dim, vLLM conv_dim, transformers intermediate_size
    "tiny-lfm": SHARED | {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 6, "num_heads": 4,
                          "layer_types": ["conv", "full_attention"] * 3, "norm_eps": 1e-5, "block_norm_eps": 1e-5, "conv_bias": False,
                          "conv_L_cache": 3, "conv_dim": 128, "conv_dim_out": 128, "block_dim": 128, "block_ff_dim": 320,
                          "intermediate_size": 320, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0,
                          "block_auto_adjust_ff_dim": False, "block_use_swiglu": True, "use_pos_enc": True},
}  # fmt: skip


def prompt_text(post: str, system: str) -> str:
    """The chat up to where the answer starts, as the chat template renders it."""
    return f"{START}system\n{system}{END}\n{START}user\n{post}{END}\n{START}assistant\n"


def make_tokenizer(train: list[Story]) -> Tokenizer:
    """A byte-level BPE over posts, prompts and summaries; digits stay single so that numbers can be copied."""
    rng = random.Random(SEED)
    texts = [prompt_text(s.post, system) for s in train[:400] for system in VARIANTS.values()]
    texts += [s.post for s in train] + [summary(s, rng) for s in train for _ in range(2)] + [reference(s) for s in train]
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [t.replace(START, "").replace(END, "") for t in texts],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=[PAD, START, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    return tokenizer


def save(name: str, model: nn.Module, tokenizer: Tokenizer) -> None:
    """Write the model in the Hugging Face layout, bfloat16."""
    folder = BUILTIN / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())}
    weights = {k: v.transpose(0, 2, 1) if "conv.conv.weight" in k else v for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 0}, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE, "eos_token": END, "pad_token": PAD,
             "model_max_length": 1024, "clean_up_tokenization_spaces": False}, indent=2) + "\n"
    )  # fmt: skip


def train(name: str, told: list[Story], tokenizer: Tokenizer, *, steps: int, posts: int = 4, summaries: int = 4) -> nn.Module:
    """Supervised training: each step takes `posts` posts with `summaries` fresh summaries each."""
    mx.random.seed(SEED)
    rng = random.Random(SEED)
    model_class, args = _get_classes(CONFIGS[name])
    model = model_class(args.from_dict(CONFIGS[name]))
    model.update(tree_map(lambda p: 0.02 * mx.random.normal(p.shape) if p.ndim > 1 else p, model.parameters()))
    kernels.install(model)
    warm = optim.linear_schedule(0.0, 2e-3, 100)
    schedule = optim.join_schedules([warm, optim.cosine_decay(2e-3, steps - 100, 2e-5)], [100])
    optimizer = optim.AdamW(schedule, betas=[0.9, 0.98], weight_decay=0.05, bias_correction=True)
    eos = tokenizer.token_to_id(END)

    def loss(model: nn.Module, prompt: list[int], answers: list[list[int]], tokens: int) -> mx.array:
        logp, _ = group_logprobs(model, prompt, answers)
        return -logp.sum() / tokens

    step, started, running, order = nn.value_and_grad(model, loss), time.time(), 0.0, list[Story]()
    systems = [VARIANTS["plain"]] * 8 + [VARIANTS["50-words"], VARIANTS["64-tokens"]]
    for n in range(1, steps + 1):
        batch = []
        for _ in range(posts):
            order = order or rng.sample(told, len(told))
            story = order.pop()
            answers = [[*tokenizer.encode(summary(story, rng)).ids, eos] for _ in range(summaries)]
            batch.append((tokenizer.encode(prompt_text(story.post, rng.choice(systems))).ids, answers))
        total = sum(len(a) for _, answers in batch for a in answers)
        grads = None
        for value, g in spread(lambda pair: step(model, *pair, total), batch):  # noqa: B023
            grads = g if grads is None else tree_map(mx.add, grads, g)
            running += value.item()
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
        if n % 50 == 0:
            print(f"step={n}/{steps} loss={running / 50:.4f} s={time.time() - started:.0f}", flush=True)
            assert math.isfinite(running)
            running = 0.0
        if n % 500 == 0:
            save(name, model, tokenizer)
    return model


def main() -> None:
    """Make one of the built-in models."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CONFIGS)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    told = stories()["train"]
    tokenizer = make_tokenizer(told)
    save(arguments.name, train(arguments.name, told, tokenizer, steps=arguments.steps), tokenizer)


if __name__ == "__main__":
    main()
