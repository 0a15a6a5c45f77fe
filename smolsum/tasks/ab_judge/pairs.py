"""The corruptor that asks a model behind an OpenAI-compatible endpoint for a worse text, once for each text ever.

Pairs of a text and a corrupted one, in random order.

The settings of judging between two samples.

The corruptor by rule that a configuration asks for.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from smolsum.config.fields import NonNegative, Positive, PositiveCount, Seed, Text
from smolsum.config.sections import Config, TaskConfig
from smolsum.errors import UsageError, nearest
from smolsum.llm.batch import BatchClient, Call
from smolsum.llm.client import BadAnswer, find_endpoint
from smolsum.llm.retry import RetryPolicy
from smolsum.tasks.ab_judge.corruption import BY_MODEL, FAULTS, MIN_WORDS, WORD, Corruption, corrupt, names_in
from smolsum.tasks.data import Example, Split

Corruptor = Callable[[Example, random.Random], Corruption | None]
"""a text and what it may draw from, to the corrupted text; None where it cannot be corrupted"""


@dataclass(frozen=True)
class Pairs:
    """Examples whose source is a text, with both samples in their metadata, and how many texts made none."""

    examples: tuple[Example, ...]
    skipped: int


def make_pairs(texts: Sequence[Example], corrupt: Corruptor, *, seed: int) -> Pairs:
    """A pair of each text that can be corrupted; its reference is the letter of the original.

    What is drawn for a text follows from the seed and the text alone, so that a text in two splits is seen to be.
    """
    made = []
    for text in texts:
        rng = random.Random(f"{seed} {text.source}")
        corruption = corrupt(text, rng)
        if corruption is None:
            continue
        better = rng.choice("AB")
        samples = (text.source, corruption.text) if better == "A" else (corruption.text, text.source)
        made.append(
            Example(
                id=text.id,
                source=f"[Sample A]:\n{samples[0]}\n\n[Sample B]:\n{samples[1]}",
                references=(better,),
                metadata={"kind": corruption.kind, "before": corruption.before, "after": corruption.after},
            )
        )
    return Pairs(tuple(made), len(texts) - len(made))


NOTES_TOKENS = "{notes_tokens}"


@dataclass(frozen=True)
class AbJudgeConfig(TaskConfig):
    """What a judgement has to be, and what is judged."""

    system_prompt: str = (
        "You are shown two samples of a text, A and B. One is the original; in the other something was changed for the "
        f"worse. Compare them in notes of {NOTES_TOKENS} tokens, then judge which one is the original. Answer in this "
        "form and add nothing:\n<notes>what you notice</notes>\n<judgement>A or B</judgement>"
    )
    """System message of every prompt; `{notes_tokens}` in it stands for the number."""
    notes_tokens: PositiveCount = 128
    """Length of perfect notes in tokens."""
    notes_width: Positive = 32.0
    """Distance from that length at which the signal `notes_length` has fallen to 0.61."""
    accuracy_power: NonNegative = 4.0
    """Power of the batch's accuracy that a right judgement is worth; 0: always 1."""
    corruptor: Text = "rules"
    """What corrupts the texts: `rules`, or the name of a model behind $OPENAI_BASE_URL."""
    faults: Text = "all"
    """Kinds of fault that the rules may cause, by comma (`swapped,number,name`)."""
    pairs_seed: Seed = 0
    """Seed of the faults and of the order in each pair; that of the run changes neither."""


def settings(config: Config) -> AbJudgeConfig:
    """The task's own part of a configuration."""
    return cast(AbJudgeConfig, config.task)


def rules(config: Config, texts: Split) -> Corruptor:
    """One fault of the kinds in `task.faults`; names come from the texts themselves. UsageError for an unknown kind."""
    kinds, names = _kinds(settings(config).faults), names_in(text.source for text in texts.examples)

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        return corrupt(text.source, rng, kinds=kinds, names=names)

    return corruptor


def _kinds(text: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(FAULTS)
    kinds = tuple(dict.fromkeys(kind.strip() for kind in text.split(",")))
    for kind in kinds:
        if kind not in FAULTS:
            raise UsageError(f"task.faults: no kind of fault {kind!r}", hint=nearest(kind, FAULTS))
    return kinds


PROMPT = (
    "Copy the text below, but make it subtly worse: change a word or two, so that something in it is less exact, less "
    "coherent or no longer true, while it still looks like the original at a glance. Keep its length, its language and "
    'everything else. Answer with JSON: {{"text": "the changed text"}}\n\nText:\n{text}'
)
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
BUDGET, CONCURRENCY = RetryPolicy(wrong=3), 8


def by_model(model: str, texts: Sequence[Example]) -> Corruptor:
    """Asks for every text that is long enough and not decided yet; a text that the model refuses or would not change
    makes no pair, now and ever after, so that a resumed run has the pairs that it began with; but for a model that has
    never done as it was asked.

    UnreachableError where the endpoint does not answer for a text, UsageError where it refuses the key or does not know
    the model. What it did answer is kept.
    """
    endpoint = find_endpoint(model, os.environ, role="corruptor", option="--set task.corruptor=NAME:")
    panel = BatchClient(endpoint, budget=BUDGET, concurrency=CONCURRENCY, wait_s=0.0, decided=True)
    sources = sorted({text.source for text in texts if len(WORD.findall(text.source)) >= MIN_WORDS})
    calls = [_call(source) for source in sources]
    worse = dict(zip(sources, panel.ask(calls), strict=True))

    def corruptor(text: Example, rng: random.Random) -> Corruption | None:
        found = worse.get(text.source)
        return None if found is None else _difference(text.source, str(found))

    return corruptor


def _call(source: str) -> Call:
    def read(found: Mapping[str, Any]) -> str:
        text = found.get("text")
        if not isinstance(text, str) or not _is_subtle(source, text):
            raise BadAnswer(f"not the text with a change: {text!r:.80}")
        return text.strip()

    return Call(PROMPT.format(text=source), SCHEMA, read)


def _is_subtle(source: str, text: str) -> bool:
    """Whether there is a change, and neither much more nor much less text than before."""
    words, before = text.split(), source.split()
    return words != before and 0.5 <= len(words) / len(before) <= 1.5


def _difference(source: str, worse: str) -> Corruption:
    """With all between the first and the last character that differ as what was changed."""
    start = _alike(source, worse)
    end = _alike(source[start:][::-1], worse[start:][::-1])
    return Corruption(worse, BY_MODEL, source[start : len(source) - end], worse[start : len(worse) - end])


def _alike(a: str, b: str) -> int:
    """How many characters are the same from the beginning on."""
    return next((k for k, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
