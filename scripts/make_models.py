"""Make the built-in models: a byte-level BPE tokenizer, and a warm start on summaries of many lengths.

    uv run python scripts/make_models.py tiny        # Qwen2 architecture
    uv run python scripts/make_models.py tiny-lfm    # LFM2 architecture

It trains on the posts of the train split and draws the summaries of a post anew from its facts each time. Test posts
are never used. Seeded: the same command on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from builtin_models import CONFIGS, SHARED, VOCABULARY, start_copying
from make_data import stories
from tldr_mini.compose import Story, reference, summary
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from smolsum.policy import fast_math
from smolsum.policy.cpu.streams import map_over_streams
from smolsum.policy.logprobs import group_hidden, group_logprobs, token_logprobs  # loads a fast BLAS before MLX
from smolsum.tasks.tldr.settings import TldrConfig, variant

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes

BUILTIN = Path(__file__).parents[1] / "smolsum" / "policy" / "builtin"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
SEED = 7
SUMMARISE = TldrConfig().system_prompt
SYSTEMS = (SUMMARISE, *(variant(TldrConfig(), name).system_prompt for name in ("50-words", "64-tokens")))
"""prompts that the models should know; the lengths mean nothing to them"""
STEPS = {
    "tiny": {"copy": 400, "summarise": 2400, "count": 1500},
    "tiny-lfm": {"copy": 120, "summarise": 1500, "count": 1000},
}
LENGTHS = (40, 64, 88, 112)
"""lengths of counted summaries, in tokens"""
COUNTED_LAYER = 1
"""layer whose output must hold the count too, so that the layers above can use it"""


def prompt_text(post: str, system: str) -> str:
    """Return the chat up to the start of the answer, as the chat template renders it."""
    return f"{START}system\n{system}{END}\n{START}user\n{post}{END}\n{START}assistant\n"


def make_tokenizer(train: list[Story]) -> Tokenizer:
    """Train a byte-level BPE on posts, prompts and summaries; digits stay single so that the model can copy numbers."""
    rng = random.Random(SEED)
    texts = [prompt_text(s.post, system) for s in train[:400] for system in SYSTEMS]
    texts += (
        [s.post for s in train] + [summary(s, rng) for s in train for _ in range(2)] + [reference(s) for s in train]
    )
    return train_tokenizer(texts, VOCABULARY)


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE with so many tokens, the three of the chat among them."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [t.replace(START, "").replace(END, "") for t in texts],
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def save(name: str, model: nn.Module, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Write the model in the Hugging Face layout, bfloat16."""
    folder = BUILTIN / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.astype(mx.bfloat16) for k, v in tree_flatten(model.parameters())}
    weights = {k: v.transpose(0, 2, 1) if "conv.conv.weight" in k else v for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": 0}, indent=2) + "\n"
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": CHAT_TEMPLATE,
                "eos_token": END,
                "pad_token": PAD,
                "model_max_length": 1024,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
        + "\n"
    )


def drills(tokenizer_size: int, rng: random.Random, size: int = 64) -> Iterator[list[Any]]:
    """Yield batches of random tokens written twice, which teach a small model to copy."""
    while True:
        length = rng.randint(16, 40)
        half = [mx.random.randint(300, tokenizer_size, (size // 2, length)) for _ in range(2)]
        yield [mx.concatenate([tokens, tokens], axis=1) for tokens in half]


def drill_loss(model: nn.Module, tokens: mx.array) -> mx.array:
    """Return the mean loss over the second copy."""
    length = tokens.shape[1] // 2
    logits, target = model(tokens[:, :-1])[:, length:], mx.stop_gradient(tokens[:, length + 1 :])
    return (fast_math.logsumexp(logits) - mx.take_along_axis(logits, target[..., None], -1)).mean()


class Summaries:
    """Summaries of a post in free wording, drawn once and sorted by length."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self.tokenizer, self.rng, self.eos = tokenizer, rng, tokenizer.token_to_id(END)
        self.known: dict[int, list[list[int]]] = {}

    def of(self, story: Story, count: int) -> list[list[int]]:
        """Return `count` summaries of any length, EOS at the end."""
        return [[*self.tokenizer.encode(summary(story, self.rng)).ids, self.eos] for _ in range(count)]

    def near(self, story: Story, targets: Sequence[int]) -> list[list[int]]:
        """Return, for each target, the summary out of forty whose length in tokens is nearest to it."""
        known = self.known.setdefault(id(story), []) or self.known[id(story)]
        if not known:
            known += self.of(story, 40)
        return [min(known, key=lambda ids, t=target: abs(len(ids) - 1 - t)) for target in targets]


def lessons(
    written: list[Story], tokenizer: Tokenizer, rng: random.Random, *, counted: bool, posts: int = 4, summaries: int = 4
) -> Iterator[list[Any]]:
    """Yield batches of posts, each with several summaries; mostly under the prompt that training uses.

    Lengths are random, or (`counted`) close to one of a few: to predict where a summary ends, a model must then know
    how much it has written, and choose its last sentences accordingly.
    """
    order, texts = list[Story](), Summaries(tokenizer, rng)
    systems = [SUMMARISE] * 8 + list(SYSTEMS[1:])
    while True:
        batch = []
        for _ in range(posts):
            order = order or rng.sample(written, len(written))
            story = order.pop()
            answers = texts.near(story, rng.choices(LENGTHS, k=summaries)) if counted else texts.of(story, summaries)
            batch.append((tokenizer.encode(prompt_text(story.post, rng.choice(systems))).ids, answers))
        total = sum(len(a) for _, answers in batch for a in answers)
        yield [(prompt, answers, len(batch) / total) for prompt, answers in batch]


def lesson_loss(model: nn.Module, lesson: tuple[list[int], list[list[int]], float]) -> mx.array:
    """Return a post's share of the batch's mean loss for each token, times the number of posts."""
    prompt, answers, weight = lesson
    return -group_logprobs(model, prompt, answers)[0].sum() * weight


class Watched(nn.Module):
    """A layer whose last output is kept."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.is_attention_layer = getattr(layer, "is_attention_layer", True)  # LFM2's trunk reads it
        self.keep = (kept := []).append  # MLX takes no list in a closure for parameters
        self.last = lambda: kept[-1]

    def __call__(self, *args: Any, **options: Any) -> mx.array:
        out: mx.array = self.layer(*args, **options)
        self.keep(out)
        return out


class Counting(nn.Module):
    """The model with two heads that predict, at every token, how many came before; the heads are discarded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.inner = nn.Sequential(nn.RMSNorm(SHARED["hidden_size"]), nn.Linear(SHARED["hidden_size"], 1))
        self.outer = nn.Linear(SHARED["hidden_size"], 1)


def counting_loss(counting: Counting, lesson: tuple[list[int], list[list[int]], float]) -> mx.array:
    """Return `lesson_loss` plus the squared errors of both counts in units of 16 tokens."""
    prompt, answers, weight = lesson
    layers = counting.model.model.layers
    watched = Watched(layers[COUNTED_LAYER])
    layers[COUNTED_LAYER] = watched
    hidden, tokens, mask = group_hidden(counting.model, prompt, answers)
    layers[COUNTED_LAYER] = watched.layer
    logp = token_logprobs(counting.model, hidden.reshape(-1, hidden.shape[-1]), tokens.reshape(-1), 1.0).reshape(
        mask.shape
    )
    count = mx.arange(mask.shape[1]) / 16
    errors = [counting.inner(watched.last())[..., 0] - count, counting.outer(hidden)[..., 0] - count]
    return ((0.3 * sum(e * e for e in errors) - logp) * mask).sum() * weight


def fit(
    model: nn.Module, batches: Iterator[list[Any]], loss: Callable[..., mx.array], *, name: str, steps: int, rate: float
) -> None:
    """Minimise the mean loss of each batch with AdamW: a warm-up of 50 steps, then cosine to a hundredth."""
    schedule = optim.join_schedules(
        [optim.linear_schedule(0.0, rate, 50), optim.cosine_decay(rate, steps - 50, rate / 100)], [50]
    )
    optimizer = optim.AdamW(schedule, betas=[0.9, 0.98], weight_decay=0.01, bias_correction=True)
    step, started, running = nn.value_and_grad(model, loss), time.time(), 0.0
    for n, batch in zip(range(1, steps + 1), batches, strict=False):
        grads: Any = None
        for value, g in map_over_streams(lambda item: step(model, item), batch):
            running += value.item() / len(batch)
            grads = g if grads is None else tree_map(mx.add, grads, g)
        grads, _ = optim.clip_grad_norm(tree_map(lambda g: g / len(batch), grads), 1.0)  # noqa: B023
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
        if n % 50 == 0:
            print(f"{name} step={n}/{steps} loss={running / 50:.4f} s={time.time() - started:.0f}", flush=True)
            running = 0.0


def main() -> None:
    """Make one of the built-in models: train copying, summarising, then counting; save after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=STEPS)
    parser.add_argument("--phases", nargs="+", choices=("copy", "summarise", "count"), default=list(STEPS["tiny"]))
    arguments = parser.parse_args()
    written, name = stories()["train"], arguments.name
    fresh = "copy" in arguments.phases
    tokenizer = make_tokenizer(written) if fresh else Tokenizer.from_file(str(BUILTIN / name / "tokenizer.json"))
    mx.random.seed(SEED)
    model_class, args = _get_classes(CONFIGS[name])
    for phase in arguments.phases:
        rng, steps = random.Random(SEED), STEPS[name][phase]
        model = model_class(args.from_dict(CONFIGS[name]))
        fast_math.install(model)
        if phase == "copy":
            start_copying(model)
            fit(model, drills(VOCABULARY, rng), drill_loss, name=phase, steps=steps, rate=3e-3)
        else:  # each phase starts from the weights that the one before saved
            weights = model.sanitize(mx.load(str(BUILTIN / name / "model.safetensors")))
            model.load_weights([(k, v.astype(mx.float32)) for k, v in weights.items()])
            batches = lessons(written, tokenizer, rng, counted=phase == "count")
            if phase == "count":
                fit(Counting(model), batches, counting_loss, name=phase, steps=steps, rate=1e-3)
            else:
                fit(model, batches, lesson_loss, name=phase, steps=steps, rate=2e-3)
        save(name, model, tokenizer, CONFIGS[name])


if __name__ == "__main__":
    main()
