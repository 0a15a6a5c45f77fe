"""`builtin:tldr-mini` as shipped: size, facts, generator, and what a memorised sentence scores."""

import random
import re
from statistics import mean

import pytest
from make_data import stories
from tldr_mini.compose import Story, facts, reference, summary

from smolsum.config.sections import DataConfig
from smolsum.grpo.setup.prepare import corpus_facts
from smolsum.policy.load import load_policy
from smolsum.rewards.meteor import Lexicon, meteor
from smolsum.rewards.overlap import rouge_l
from smolsum.tasks.data import Split, load_split, overlap
from smolsum.tasks.facts import count_facts, vocabulary

SIZES = {"train": 2000, "validation": 200, "test": 200}
KINDS = {
    "name", "relation", "age", "amount", "item", "occasion", "dish", "pet", "time", "duration", "place",
    "job", "event",
}  # fmt: skip
EXACT = Lexicon(kind="exact+stem", source="", refused=(), synsets=lambda word: ())
"""the same scores on a machine with WordNet and on one without"""


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    return {name: load_split(DataConfig(), name) for name in SIZES}


@pytest.fixture(scope="module")
def generated() -> dict[str, list[Story]]:
    return stories()


def words(text: str) -> int:
    """Words, numbers and marks: about as many as a tokenizer makes of them."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def test_no_post_is_told_twice(splits: dict[str, Split]) -> None:
    """There are at least 2000 posts to train on and 200 each to choose and to judge by; splits share none, and none
    repeats one."""
    train, validation, test = splits.values()
    assert overlap(train, validation) == overlap(train, test) == overlap(validation, test) == []
    for name, split in splits.items():
        assert len({example.source for example in split.examples}) == len(split.examples) >= SIZES[name]


def test_a_row_is_a_plain_post_one_reference_and_facts(splits: dict[str, Split]) -> None:
    """No other column. No slot or bracket of a pattern is left, no blank is doubled, and a sentence ends each text."""
    for split in splits.values():
        for example in split.examples:
            assert list(example.metadata) == ["facts"]
            assert example.metadata["facts"]
            assert len(example.references) == 1
            assert example.id.startswith(split.name)
            for text in (example.source, *example.references):
                assert re.fullmatch(r"[A-Z][\w $.,;?()]*[.?]", text)
                assert "  " not in text


def test_posts_and_references_have_their_lengths(splits: dict[str, Split]) -> None:
    """Posts of about 60 to 250 tokens, references of about 20 to 30."""
    examples = [example for split in splits.values() for example in split.examples]
    posts = [words(example.source) for example in examples]
    references = [words(example.references[0]) for example in examples]
    assert 60 <= min(posts) < max(posts) <= 250
    assert 18 <= min(references) < max(references) <= 35
    assert 20 <= mean(references) <= 30


def test_facts_have_their_keys_and_kinds(splits: dict[str, Split]) -> None:
    """Every fact is slot, kind, forms and who; every kind occurs in every split, and stands in its post, word for word.
    Only an event may be worded otherwise ("denies", "denied")."""
    for split in splits.values():
        column = [(fact, example.source) for example in split.examples for fact in example.metadata["facts"]]
        assert {tuple(fact) for fact, _ in column} == {("slot", "kind", "forms", "who")}
        assert set(vocabulary([[fact for fact, _ in column]]).forms) == KINDS
        assert all(fact["slot"] for fact, _ in column)
        for fact, post in column:
            if fact["kind"] != "event":
                (form,) = fact["forms"]
                assert re.search(rf"(?<![\w$]){re.escape(form)}(?!\w)", post, re.IGNORECASE)


def test_events_and_ages_are_about_people_of_the_post(splits: dict[str, Split]) -> None:
    """Whom an event or an age is about is said: the author, or a name that stands in the post."""
    for example in splits["test"].examples:
        for fact in example.metadata["facts"]:
            assert bool(fact["who"]) == (fact["kind"] in {"event", "age"})
            assert fact["who"] in ([], ["I"]) or fact["who"][0] in example.source


def test_a_phrase_states_one_fact(splits: dict[str, Split]) -> None:
    """ "Two weeks ago" is no duration, and the phone that the author writes on is no thing of the story."""
    for example in splits["train"].examples:
        post = example.source.replace("I am writing this on my phone.", "")
        for fact in (fact for fact in example.metadata["facts"] if fact["kind"] in {"duration", "item"}):
            assert re.search(rf"\b{fact['forms'][0]}\b(?! ago)", post, re.IGNORECASE)


def test_posts_differ_in_everything_that_can_be_copied(splits: dict[str, Split]) -> None:
    """The commonest name, place or sum is in few posts: knowing it by heart helps nowhere else."""
    for kind in ("name", "place", "amount", "item", "age"):
        posts = splits["train"].examples
        forms = [{f["forms"][0] for f in e.metadata["facts"] if f["kind"] == kind} for e in posts]
        commonest = max(sum(form in one for one in forms) for form in set[str]().union(*forms))
        assert commonest <= 0.1 * len(posts)


def test_the_generator_makes_the_shipped_rows(splits: dict[str, Split], generated: dict[str, list[Story]]) -> None:
    """The scripts, run again, give the same posts, references and facts."""
    assert list(generated) == list(splits)
    for name, split in splits.items():
        assert [example.source for example in split.examples] == [story.post for story in generated[name]]
        for example, story in list(zip(split.examples, generated[name], strict=True))[::25]:
            assert example.references == (reference(story),)
            assert example.metadata["facts"] == facts(story)


def test_summaries_are_seeded(generated: dict[str, list[Story]]) -> None:
    """The same seed words a story alike, another one differently."""
    once, again, other = (
        [summary(story, rng) for story in generated["test"][:20]] for rng in map(random.Random, (1, 1, 2))
    )
    assert once == again != other


def scores(texts: list[str], references: list[str]) -> tuple[float, float]:
    """Mean METEOR and mean ROUGE-L of each text against its reference."""
    pairs = list(zip(texts, references, strict=True))
    return (
        mean(meteor(text, [ref], matcher=EXACT) for text, ref in pairs),
        mean(rouge_l(text, [ref]) for text, ref in pairs),
    )


@pytest.fixture(scope="module")
def own(generated: dict[str, list[Story]]) -> tuple[float, float]:
    """The scores of short summaries of the right post in free wording."""
    rng = random.Random(1)
    test = generated["test"]
    return scores([summary(story, rng, 0) for story in test], [reference(story) for story in test])


def test_another_post_s_reference_scores_badly(own: tuple[float, float], splits: dict[str, Split]) -> None:
    """The reference's very wording with the wrong facts gets less than half of what free wording gets."""
    references = [example.references[0] for example in splits["test"].examples]
    other = scores(references[1:] + references[:1], references)
    assert other[0] < own[0] / 2
    assert other[1] < own[1] / 2


def test_no_memorised_sentence_scores_well(own: tuple[float, float], splits: dict[str, Split]) -> None:
    """The luckiest of 20 train references, said of every post, stays far below: it shares only grammar."""
    references = [example.references[0] for example in splits["test"].examples[:100]]
    fixed = [example.references[0] for example in splits["train"].examples[:20]]
    found = [scores([sentence] * len(references), references) for sentence in fixed]
    assert max(meteors for meteors, _ in found) < 0.55 * own[0]
    assert max(rouges for _, rouges in found) < 0.55 * own[1]


def test_a_memorised_sentence_states_the_wrong_facts(splits: dict[str, Split]) -> None:
    """What the overlap scores forgive for the grammar, the facts do not."""
    examples = splits["test"].examples
    known = vocabulary(e.metadata["facts"] for split in splits.values() for e in split.examples)
    for sentence in (example.references[0] for example in splits["train"].examples[:5]):
        found = [count_facts(sentence, example.metadata["facts"], known) for example in examples]
        assert sum(c.wrong for c in found) > 0.8 * sum(c.wrong + c.right for c in found)


def test_what_a_run_says_of_a_split() -> None:
    """Sizes, and lengths in the model's own tokens: every length is that of a text."""
    tokenizer = load_policy("builtin:tiny", shapes_only=True).tokenizer
    split = load_split(DataConfig(), "test")
    facts = corpus_facts(split, tokenizer)
    lengths = [len(tokenizer.encode(e.source, add_special_tokens=False)) for e in split.examples]
    assert facts["examples"] == 200
    assert (facts["posts"]["min"], facts["posts"]["max"]) == (min(lengths), max(lengths))
    assert facts["posts"]["mean"] == sum(lengths) / 200
    assert list(facts["references"]) == ["mean", "std", "min", "p50", "p90", "p95", "p99", "max"]
    assert facts["references"]["p50"] == 26
