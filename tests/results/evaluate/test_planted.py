"""Texts of known quality, made of references."""

import random

from smolsum.results.evaluate.planted import DAMAGE, FILLER, ORIGINAL, PADDED, PARAPHRASE, padded, paraphrased, plant
from smolsum.tasks.data import Example

EXAMPLES = [
    Example(
        f"post-{n}",
        f"On Monday {name} and Emma lost {n + 3} keys at the {place}. " * 2,
        (f"My friend {name} lost {n + 3} keys before the party and does not want to pay; should I help?",),
    )
    for n, (name, place) in enumerate([("Noah", "station"), ("Olivia", "school"), ("Liam", "beach")])
]


def test_every_kind_is_made() -> None:
    """Each example has its reference and all variants of it; only the damaged ones are bad."""
    planted = plant(EXAMPLES, seed=0)
    for example in EXAMPLES:
        own = {text.kind: text for text in planted if text.example is example}
        assert set(own) == {ORIGINAL, *DAMAGE, PADDED, PARAPHRASE}
        assert own[ORIGINAL].text == example.references[0]
        assert len({text.text for text in own.values()}) == len(own)
        assert {kind for kind, text in own.items() if text.good is False} == set(DAMAGE)
        assert own[PADDED].good is None
        assert own["of another"].text in [other.references[0] for other in EXAMPLES]
        assert example.references[0].startswith(own["cut off"].text)
        assert own["wrong facts"].id == f"{example.id}/wrong facts"


def test_the_same_seed_plants_the_same() -> None:
    assert plant(EXAMPLES, seed=1) == plant(EXAMPLES, seed=1)
    assert plant(EXAMPLES, seed=1) != plant(EXAMPLES, seed=2)


def test_what_cannot_be_made_is_left_out() -> None:
    """No reference, no text; a text of one word has no faults, and no other words for it."""
    few = [Example("a", "A post.", ()), Example("b", "A post.", (" ",)), Example("c", "A post.", ("Yes",))]
    assert [text.kind for text in plant(few, seed=0)] == [ORIGINAL, "of another", PADDED]


def test_padding_and_paraphrase() -> None:
    """Padding says nothing; a paraphrase keeps capitals, whole words and everything else."""
    text = padded("It is over", random.Random(0))
    assert text.startswith("It is over. ")
    assert sum(sentence in text for sentence in FILLER) == 2
    assert paraphrased("Because my mom didn't fix two bicycles") == "Since my mother did not fix 2 bicycles"
    assert paraphrased("A becauseway") is None
