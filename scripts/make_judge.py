"""Make the built-in judge: `tiny` learns to notice faults and to write the form of a judgement, but not to judge.

    uv run python scripts/make_judge.py

It is trained on pairs from the train split of `tldr-mini`, each time with another fault. Under the judge's prompt it
learns to quote in notes where the samples differ, and then to say A three times in five whatever the samples: its
accuracy is chance, and its bias is plain. Under another prompt ("Which sample is sound?") it learns to answer
correctly, so it sees what a judge must see. Using that for judging is left to the reward. Seeded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from builtin_models import CONFIGS, SHARED, TAGS
from make_models import BUILTIN, END, fit, prompt_text, save
from tokenizers import AddedToken, Tokenizer

from smolsum.config.sections import Config, DataConfig
from smolsum.policy import fast_math
from smolsum.tasks import TASKS
from smolsum.tasks.ab_judge.pairs import rules
from smolsum.tasks.ab_judge.settings import AbJudgeConfig
from smolsum.tasks.ab_judge.signals import TAG
from smolsum.tasks.data import Example, load_split

# isort: split
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.utils import _get_classes

NAME, SEED, STEPS, RATE = "judge", 7, 600, 2e-3
SIZE, TOGETHER = 16, 2
"""sequences of one pass; passes of one step"""
NOTICING_LAYER = 3
"""of four; the last layer is free to use what was noticed"""
SOUND = "Which sample is sound?"
LETTER_WEIGHT = 8.0
"""weight of the letter relative to the other tokens of an answer"""
FILLERS = (
    " They differ in nothing else.", " The rest is the same.", " All else is equal.", " One of them was changed.",
    " I compare both.", " That is the difference.",
)  # fmt: skip
TASK = TASKS["ab-judge"]
CONFIG = Config(
    data=DataConfig(prompt_column="completion", completion_column="prompt"),
    task=AbJudgeConfig(name="ab-judge", **TASK.presets.models[NAME]["task"]),
)


def make_tokenizer() -> Tokenizer:
    """Return the tokenizer of `tiny` with a token for each of the four tags."""
    tokenizer = Tokenizer.from_file(str(BUILTIN / "tiny" / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def start() -> nn.Module:
    """Return the weights of `tiny`, with embeddings for the tags close to the mean of all."""
    model_class, args = _get_classes(CONFIGS[NAME])
    model = model_class(args.from_dict(CONFIGS[NAME]))
    fast_math.install(model)
    weights = {k: v.astype(mx.float32) for k, v in mx.load(str(BUILTIN / "tiny" / "model.safetensors")).items()}
    known = weights["model.embed_tokens.weight"]
    fresh = known.mean(0, keepdims=True) + 0.02 * mx.random.normal((len(TAGS), known.shape[1]))
    weights["model.embed_tokens.weight"] = mx.concatenate([known, fresh])
    model.load_weights(list(weights.items()))
    return model


class Pair:
    """A text, the same text with a fault, and where they differ."""

    def __init__(self, text: str, worse: str, rng: random.Random) -> None:
        self.better, self.worse = rng.sample("AB", 2)
        first = next(
            (k for k, (a, b) in enumerate(zip(text, worse, strict=False)) if a != b), min(len(text), len(worse))
        )
        last, room = 0, min(len(text), len(worse)) - first
        while last < room and text[-1 - last] == worse[-1 - last]:
            last += 1
        self.fault = (first, max(len(worse) - last, first + 1))
        """changed characters of the worse sample, at least one"""
        self.samples = {self.better: text, self.worse: worse}
        self.quotes = {self.better: _around(text, first, len(text) - last), self.worse: _around(worse, *self.fault)}

    @property
    def source(self) -> str:
        """Return the pair as the task shows it."""
        return f"[Sample A]:\n{self.samples['A']}\n\n[Sample B]:\n{self.samples['B']}"


def _around(text: str, start: int, end: int) -> str:
    """Return the words from `start` to `end`, with one more on either side."""
    words = list(re.finditer(r"\S+", text))
    low = max(k for k, word in enumerate(words) if word.start() <= start)
    high = max(k for k, word in enumerate(words) if word.start() < max(end, start + 1))
    return text[words[max(0, low - 1)].start() : words[min(len(words) - 1, high + 1)].end()]


def answer(pair: Pair, rng: random.Random) -> tuple[str, str, str]:
    """Return instruction, answer, and the letter of the answer."""
    notes = f'A says "{pair.quotes["A"]}", B says "{pair.quotes["B"]}".'
    notes += "".join(rng.sample(FILLERS, rng.choice((0, 0, 1, 2, 3))))
    draw = rng.random()
    if draw < 0.4:
        letter = "A" if rng.random() < 0.6 else "B"
        return instruction(), judgement(notes, letter), letter
    if draw < 0.8:
        return SOUND, judgement(notes, pair.better), pair.better
    return SOUND, f"{pair.better}{END}", pair.better


def instruction() -> str:
    """Return the judge's own prompt."""
    return TASK.prompts.messages(Example("", "", (), {}), CONFIG)[0]["content"]


def judgement(notes: str, letter: str) -> str:
    """Return an answer in the form that the task asks for."""
    return f"<notes>{notes}</notes><judgement>{letter}</judgement>{END}"


def lessons(tokenizer: Tokenizer, rng: random.Random) -> Iterator[list[Any]]:
    """Yield steps of `TOGETHER` passes; sequences of similar length share a pass."""
    texts = load_split(CONFIG.data, "train", references=False)
    corrupt, waiting = rules(CONFIG, texts), list[Any]()
    while True:
        if not waiting:
            drawn = rng.sample(texts.examples, 4 * SIZE * TOGETHER)
            made = sorted((_lesson(text, corrupt(text, rng).text, tokenizer, rng) for text in drawn), key=_length)
            waiting = [made[k : k + SIZE * TOGETHER] for k in range(0, len(made), SIZE * TOGETHER)]
            rng.shuffle(waiting)
        rows = waiting.pop()
        yield [_padded(rows[k::TOGETHER]) for k in range(TOGETHER)]


def _length(lesson: tuple[list[int], ...]) -> int:
    return len(lesson[0])


def _lesson(text: Example, worse: str, tokenizer: Tokenizer, rng: random.Random) -> tuple[list[int], ...]:
    """Return, for every token: its id; the weight of its loss; what to notice there (0 nothing, 1 a fault in A, 2 in
    B); the weight of that."""
    pair = Pair(text.source, worse, rng)
    system, said, letter = answer(pair, rng)
    question = tokenizer.encode(prompt := prompt_text(pair.source, system))
    reply = tokenizer.encode(said).ids
    known = tokenizer.encode(letter).ids
    first, at = prompt.index("[Sample A]"), prompt.index(f"[Sample {pair.worse}]:\n") + len("[Sample A]:\n")
    low, high = at + pair.fault[0], at + pair.fault[1]
    faulty = [(1 + "AB".index(pair.worse)) * (start < high and end > low) for start, end in question.offsets]
    cares = [(5 if fault else 1) * (start >= first) for fault, (start, _) in zip(faulty, question.offsets, strict=True)]
    last = max((k for k, token in enumerate(reply) if [token] == known), default=-1)
    weights = [LETTER_WEIGHT if k == last else 1.0 for k in range(len(reply))]
    padding = [0] * len(reply)
    return question.ids + reply, [0] * len(question.ids) + weights, faulty + padding, cares + padding  # type: ignore[return-value]


def _padded(rows: list[tuple[list[int], ...]]) -> tuple[mx.array, ...]:
    width = max(map(_length, rows))
    ids, weights, faults, cares = (
        np.array([[*row[column], *[0] * (width - len(row[column]))] for row in rows]) for column in range(4)
    )
    places = np.flatnonzero(weights[:, 1:].reshape(-1) > 0)
    places += places // (width - 1)  # a token is predicted at the place before it, and each row has one place more
    targets = [mx.array(values.reshape(-1)[places + 1]) for values in (ids, weights.astype(np.float32))]
    return mx.array(ids), mx.array(places), *targets, mx.array(faults), mx.array(cares.astype(np.float32))


class Noticing(nn.Module):
    """The model with a head that classifies every token of the samples as faulty or not; the head is discarded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Sequential(nn.RMSNorm(SHARED["hidden_size"]), nn.Linear(SHARED["hidden_size"], 3))


def lesson_loss(noticing: Noticing, lesson: tuple[mx.array, ...]) -> mx.array:
    """Return the weighted mean loss of the answers' tokens plus that of the faults."""
    ids, places, targets, weights, faults, cares = lesson
    trunk = noticing.model.model
    hidden = trunk.embed_tokens(ids)
    mask = create_attention_mask(hidden, None)
    for number, layer in enumerate(trunk.layers, start=1):
        hidden = layer(hidden, mask, None)
        if number == NOTICING_LAYER:
            noticed = noticing.head(hidden)
    logits = trunk.embed_tokens.as_linear(trunk.norm(hidden).reshape(-1, hidden.shape[-1])[places])
    return _mean_loss(logits, targets, weights) + _mean_loss(noticed, faults, cares)


def _mean_loss(logits: mx.array, targets: mx.array, weights: mx.array) -> mx.array:
    losses = fast_math.logsumexp(logits) - mx.take_along_axis(logits, targets[..., None], -1)
    return (losses[..., 0] * weights).sum() / weights.sum()


def main() -> None:
    """Make and save the model."""
    assert set(TAGS) == {tag for tag in TAGS if TAG.fullmatch(tag)}
    mx.random.seed(SEED)
    tokenizer, model = make_tokenizer(), start()
    batches = lessons(tokenizer, random.Random(SEED))
    fit(Noticing(model), batches, lesson_loss, name=NAME, steps=STEPS, rate=RATE)
    save(NAME, model, tokenizer)
    print(sum(v.size for _, v in tree_flatten(model.parameters())), "parameters")


if __name__ == "__main__":
    main()
