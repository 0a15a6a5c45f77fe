"""Make the built-in model of strict JSON: it knows what JSON looks like, and has the bad habits of small models.

    uv run python scripts/make_json_model.py

It trains a byte-level BPE tokenizer, drills copying, then trains on answers to generated prompts. None of them is a
prompt of the task's default test or validation split. Many answers are sloppy (`HABITS`): numbers in quotes, Python's
True, an item too few, a word before the block. The model imitates their shares, and GRPO has to unlearn them. Seeded:
the same command on the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from builtin_models import CONFIGS, start_copying
from make_models import BUILTIN, END, drill_loss, drills, fit, prompt_text, save, train_tokenizer
from tokenizers import Tokenizer

from smolsum.policy import fast_math
from smolsum.tasks.data import Example
from smolsum.tasks.strict_json.generator import split_of
from smolsum.tasks.strict_json.settings import PLAIN, THINKING, StrictJsonConfig

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import _get_classes

NAME, SEED, VOCABULARY = "tiny-json", 11, 640
CONFIG = CONFIGS["tiny"] | {"vocab_size": VOCABULARY}
PROMPTS = StrictJsonConfig(train_prompts=12000, simple=0.25, medium=0.35, hard=0.4)
STEPS = {"copy": 300, "answer": 1000}
HABITS = {"quoted": 0.6, "python": 0.6, "short": 0.3, "preface": 0.4, "unclosed": 0.1}
THINKS = 0.2
"""share of lessons whose prompt asks for thinking"""
STRINGS = (
    "Noah",
    "Emma",
    "Rome",
    "Oslo",
    "red",
    "blue",
    "cat",
    "fox",
    "pear",
    "fig",
    "saw",
    "axe",
    "note",
    "north",
    "Lima",
    "green",
)


def value(schema: Mapping[str, Any], rng: random.Random, habits: set[str]) -> Any:
    """Return a value that satisfies a schema, apart from the habits."""
    match schema["type"]:
        case "object":
            made = {key: value(part, rng, habits) for key, part in schema["properties"].items()}
            spare = [key for key in ("name", "id", "kind", "info", "extra") if key not in made]
            while len(made) < schema.get("minProperties", 0) - ("short" in habits):
                made[spare.pop(0)] = rng.choice(STRINGS)
            return made
        case "array":
            count = max(1, schema["minItems"] - ("short" in habits))
            return [value(schema["items"], rng, habits) for _ in range(count)]
        case "string":
            return rng.choice(schema.get("enum", STRINGS))
        case "boolean":
            return rng.choice((True, False))
        case kind:
            most = int(schema.get("exclusiveMaximum", 100))
            number = rng.randrange(1, most) if kind == "integer" else rng.randrange(10, 10 * most) / 10
            return str(number) if "quoted" in habits else number


def thought(schema: Mapping[str, Any]) -> str:
    """Return a short plan of the answer."""
    if schema["type"] == "array":
        return f"I need {schema['minItems']} items in an array, each one {_kind(schema['items'])}."
    return f"I need {_kind(schema)}."


def _kind(schema: Mapping[str, Any]) -> str:
    if schema["type"] == "object":
        return f"an object with {' and '.join(schema['properties'])}"
    return f"an array of {schema['minItems']}" if schema["type"] == "array" else f"a {schema['type']}"


def answer(schema: Mapping[str, Any], rng: random.Random, *, think: bool) -> str:
    """Return a completion with the habits that are drawn for it."""
    habits = {habit for habit, share in HABITS.items() if rng.random() < share}
    text = json.dumps(value(schema, rng, habits))
    if "python" in habits:
        text = text.replace("true", "True").replace("false", "False")
    block = f"```json\n{text}\n" + ("" if "unclosed" in habits else "```")
    thinking = f"<think>{thought(schema)}</think>" if think else ""
    return thinking + ("Here is the JSON:" if "preface" in habits else "") + block


def known_prompts() -> list[Example]:
    """Return prompts to learn from, without those of the task's validation and test splits."""
    task = StrictJsonConfig()
    held = {e.source for split in ("validation", "test") for e in split_of(task, split).examples}
    return [e for e in split_of(PROMPTS, "train").examples if e.source not in held]


def make_tokenizer() -> Tokenizer:
    """Train a byte-level BPE on prompts and answers; digits stay single so that the model can copy them."""
    rng = random.Random(SEED)
    examples = known_prompts()[:3000]
    texts = [prompt_text(e.source, rng.choice((PLAIN, THINKING))) for e in examples]
    texts += [answer(e.metadata["schema"], rng, think=rng.random() < 0.5) for e in examples]
    return train_tokenizer(texts, VOCABULARY)


def lessons(tokenizer: Tokenizer, rng: random.Random, size: int = 16) -> Iterator[list[Any]]:
    """Yield padded batches of prompts with an answer each; the answers are drawn anew each time."""
    examples, order, eos = known_prompts(), list[Any](), tokenizer.token_to_id(END)
    while True:
        rows = []
        for _ in range(size):
            order = order or rng.sample(examples, len(examples))
            example, think = order.pop(), rng.random() < THINKS
            prompt = tokenizer.encode(prompt_text(example.source, THINKING if think else PLAIN)).ids
            said = tokenizer.encode(answer(example.metadata["schema"], rng, think=think)).ids
            rows.append((prompt, [*said, eos]))
        width = max(len(prompt) + len(said) for prompt, said in rows)
        tokens = [[*prompt, *said, *[0] * (width - len(prompt) - len(said))] for prompt, said in rows]
        mask = [[0] * (len(p) - 1) + [1] * len(s) + [0] * (width - len(p) - len(s)) for p, s in rows]
        yield [(mx.array(tokens), mx.array(mask))]


def lesson_loss(model: nn.Module, lesson: tuple[mx.array, mx.array]) -> mx.array:
    """Return the mean loss over the tokens of the answers."""
    tokens, mask = lesson
    logits, target = model(tokens[:, :-1]), mx.stop_gradient(tokens[:, 1:])
    loss = fast_math.logsumexp(logits) - mx.take_along_axis(logits, target[..., None], -1)
    return (loss.reshape(mask.shape) * mask).sum() / mask.sum()


def main() -> None:
    """Train copying, then answering; save after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--phases", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    phases = parser.parse_args().phases
    tokenizer = make_tokenizer() if "copy" in phases else Tokenizer.from_file(str(BUILTIN / NAME / "tokenizer.json"))
    mx.random.seed(SEED)
    model_class, args = _get_classes(CONFIG)
    for phase in phases:
        rng, model = random.Random(SEED), model_class(args.from_dict(CONFIG))
        fast_math.install(model)
        if phase == "copy":
            start_copying(model)
            fit(model, drills(VOCABULARY, rng), drill_loss, name=phase, steps=STEPS[phase], rate=3e-3)
        else:
            weights = model.sanitize(mx.load(str(BUILTIN / NAME / "model.safetensors")))
            model.load_weights([(k, v.astype(mx.float32)) for k, v in weights.items()])
            fit(model, lessons(tokenizer, rng), lesson_loss, name=phase, steps=STEPS[phase], rate=2e-3)
        save(NAME, model, tokenizer, CONFIG)


if __name__ == "__main__":
    main()
