"""Joins words and patterns into posts, references, facts, and summaries of any length."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import words
from .patterns import ASIDES, DETAILS, FILLERS, INCIDENTS, OUTCOMES, QUESTIONS, Pattern

SLOT = re.compile(r"{(\w+)}")
EVENT = re.compile(r"\[([^]]+)]")
KINDS = {
    "N": "name", "M": "name", "rel": "relation", "mrel": "relation", "page": "age", "age": "age",
    "A": "amount", "B": "amount", "C": "amount", "I": "item", "J": "item", "K": "item",
    "V": "occasion", "F": "dish", "P": "pet", "T": "time", "T2": "time",
    "D": "duration", "W": "duration", "W2": "duration", "L": "place", "L2": "place", "job": "job",
}  # fmt: skip
"""slot -> kind of fact; the other slots (pronouns) state nothing"""
IN_PASSING = {"blamed": (["lost"], "M"), "cost": (["lost"], "author")}
"""pattern -> an event that its texts state besides or instead of the bracketed one, and its agent"""


@dataclass(frozen=True)
class Story:
    """What happened, before it is put into words."""

    slots: dict[str, str]
    gender: str
    other_gender: str
    incident: Pattern
    outcomes: tuple[Pattern, ...]
    details: tuple[Pattern, ...]
    question: Pattern
    post: str

    @cached_property
    def stated(self) -> set[str]:
        """Return the slots whose value a reader of the post can know."""
        return {
            slot for slot, value in self.slots.items()
            if slot in KINDS and re.search(rf"(?<![\w$]){re.escape(value)}(?!\w)", self.post, re.IGNORECASE)
        }  # fmt: skip


def fits(pattern: Pattern, topic: str) -> bool:
    """Return whether an outcome or a question makes sense after an incident of this topic."""
    return pattern.topic == "any" or topic in pattern.topic.split()


def sentence(text: str) -> str:
    """Return the text with a capital and a full stop, unless it already ends in a mark."""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def fill(text: str, slots: dict[str, str]) -> str:
    """Return the pattern with its slots filled and the event brackets removed."""
    return EVENT.sub(r"\1", SLOT.sub(lambda m: slots[m[1]], text))


def draw_slots(rng: random.Random) -> tuple[dict[str, str], str, str]:
    """Return values for every slot, different within a kind, and the genders of the two people."""
    (rel, genders), (mrel, other_genders) = rng.sample(sorted(words.RELATIONS.items()), 2)
    gender, other = rng.choice(genders), rng.choice(other_genders)
    name = rng.choice(words.FEMALE if gender == "f" else words.MALE)
    other_name = rng.choice([n for n in (words.FEMALE if other == "f" else words.MALE) if n != name])
    a, b, c = rng.sample(words.amounts(), 3)
    i, j, k = rng.sample(words.ITEMS, 3)
    times, places, waits = rng.sample(words.TIMES, 2), rng.sample(words.TOWNS, 2), rng.sample(words.WAITS, 2)
    age, page = rng.sample(range(18, 80), 2)
    pronouns = ("she", "her", "her") if gender == "f" else ("he", "him", "his")
    slots = {
        "N": name, "M": other_name, "rel": rel, "mrel": mrel, "age": str(age), "page": str(page),
        "s": pronouns[0], "o": pronouns[1], "p": pronouns[2], "A": a, "B": b, "C": c, "I": i, "J": j, "K": k,
        "V": rng.choice(words.EVENTS), "F": rng.choice(words.FOODS), "P": rng.choice(words.PETS),
        "T": times[0], "T2": times[1], "D": rng.choice(words.DURATIONS), "W": waits[0], "W2": waits[1],
        "L": places[0], "L2": places[1], "job": rng.choice(words.JOBS),
    }  # fmt: skip
    return slots, gender, other


def draw_story(rng: random.Random) -> Story:
    """Compose a story with its post: context, incident, outcome, what followed, a question, and chat between them."""
    slots, gender, other = draw_slots(rng)
    incident = rng.choice(INCIDENTS)
    outcomes = rng.sample([p for p in OUTCOMES if fits(p, incident.topic)], rng.choice((1, 1, 2)))
    question = rng.choice([p for p in QUESTIONS if fits(p, incident.topic)])
    details = rng.sample(DETAILS, rng.randint(4, len(DETAILS)))
    before = [p for p in details if p.topic == "before"]
    after = [p for p in details if p.topic == "after"]
    order = [*before, incident, outcomes[0], *after, *outcomes[1:]]
    sentences = [sentence(fill(rng.choice(p.post), slots)) for p in order]
    for filler in rng.sample(FILLERS, rng.randint(0, 5)):
        sentences.insert(rng.randint(0, len(sentences)), filler)
    sentences.append(sentence(fill(rng.choice(question.post), slots)))
    stated = tuple(p for p in order if p in details)
    return Story(slots, gender, other, incident, tuple(outcomes), stated, question, " ".join(sentences))


def clause(pattern: Pattern, story: Story, rng: random.Random | None) -> str:
    """Return a summary clause of the pattern that says only what the post says; without `rng`, the first one."""
    stated = story.stated
    options = [t for t in pattern.summary if {s for s in SLOT.findall(t) if s in KINDS} <= stated]
    return fill(rng.choice(options) if rng else options[0], story.slots)


def can_state(pattern: Pattern, story: Story) -> bool:
    """Return whether the post covers any of the pattern's summary clauses."""
    return any({s for s in SLOT.findall(t) if s in KINDS} <= story.stated for t in pattern.summary)


def reference(story: Story) -> str:
    """Return the short summary in the reference's wording: what happened, what came of it, the question."""
    act, out, ask = (clause(p, story, None) for p in (story.incident, story.outcomes[0], story.question))
    return sentence(f"{act} and {out}; {ask}")


def summary(story: Story, rng: random.Random, parts: int | None = None) -> str:
    """Return a summary in free wording that states `parts` of the details (a random number without it); half of all end
    with an aside."""
    rest = [p for p in (*story.details, *story.outcomes[1:]) if can_state(p, story)]
    parts = rng.randint(0, len(rest)) if parts is None else min(parts, len(rest))
    chosen = rng.sample(rest, parts)
    if rng.random() < 0.7:
        chosen.sort(key=rest.index)
    act, out = clause(story.incident, story, rng), clause(story.outcomes[0], story, rng)
    lines = [f"{act} and {out}"] if rng.random() < 0.7 else [act, out]
    clauses = [clause(p, story, rng) for p in chosen]
    while clauses:
        lines.append(", and ".join(clauses[:2]) if len(clauses) > 1 and rng.random() < 0.3 else clauses[0])
        clauses = clauses[2:] if lines[-1] != clauses[0] else clauses[1:]
    if rng.random() < 0.85:
        lines.append(clause(story.question, story, rng))
    if rng.random() < 0.5:
        lines.append(rng.choice(ASIDES))
    return " ".join(sentence(t) for t in lines)


def forms(patterns: Sequence[Pattern]) -> list[str]:
    """Return the words in square brackets: how a text may state the event."""
    return sorted({form for p in patterns for text in (*p.post, *p.summary) for form in EVENT.findall(text)})


def filled(story: Story) -> set[str]:
    """Return the slots in the post's sentences; `stated` also sees a value inside chat or a longer phrase."""
    patterns = (story.incident, *story.outcomes, *story.details, story.question)
    texts = [t for p in patterns for t in p.post if sentence(fill(t, story.slots)) in story.post]
    return {slot for t in texts for slot in SLOT.findall(t)}


def facts(story: Story) -> list[dict[str, Any]]:
    """Return what the post states, as `smolsum.tasks.facts` counts it: slot, kind, forms, and whom it is about."""
    s = story.slots
    person = [s["N"], s["rel"], "she" if story.gender == "f" else "he"]
    other = [s["M"], s["mrel"], "she" if story.other_gender == "f" else "he"]
    agents = {"N": person, "M": other, "author": ["I"]}
    who = {"page": person, "age": ["I"]}
    present = filled(story)
    found: list[dict[str, Any]] = [
        {"slot": slot, "kind": kind, "forms": [s[slot]], "who": who.get(slot, [])}
        for slot, kind in KINDS.items() if slot in present
    ]  # fmt: skip
    happened = (story.incident, *story.outcomes, *story.details)
    events = [(p.key, forms([p]), p.agent) for p in happened if forms([p])]
    events += [(p.key, *IN_PASSING[p.key]) for p in happened if p.key in IN_PASSING]
    return found + [{"slot": key, "kind": "event", "forms": said, "who": agents[agent]} for key, said, agent in events]
