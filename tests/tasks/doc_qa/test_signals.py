"""The signals by hand, and with arbitrary text; read by rules."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.documents_of import config, group
from support.refusals import refuses

from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, generated_split
from smolsum.tasks.doc_qa.documents import Question, QuestionSet, asked_of, known_forms, load
from smolsum.tasks.doc_qa.reader import answer, mid_rank, read, share
from smolsum.tasks.doc_qa.task import score_answered, score_ranking, score_word_limit
from smolsum.tasks.facts import statements

CONFIG = config()
FACTS = (
    {"slot": "N", "kind": "name", "forms": ["Noah"], "who": []},
    {"slot": "M", "kind": "name", "forms": ["Sven"], "who": []},
    {"slot": "age", "kind": "age", "forms": ["62"], "who": ["I"]},
    {"slot": "page", "kind": "age", "forms": ["31"], "who": ["Noah", "boyfriend", "he"]},
    {"slot": "A", "kind": "amount", "forms": ["$75"], "who": []},
    {"slot": "C", "kind": "amount", "forms": ["$920"], "who": []},
    {"slot": "L", "kind": "place", "forms": ["Elmhurst"], "who": []},
)


def question(slot: str) -> Question:
    """A question about one of the facts."""
    fact = next(fact for fact in FACTS if fact["slot"] == slot)
    return Question("?", fact["forms"][0], str(fact["kind"]), tuple(fact["forms"]), tuple(fact["who"]))


QUESTIONS = QuestionSet(tuple(map(question, ("N", "age", "A", "L", "page"))), FACTS)
DOCUMENT = Example("d", "I (62) met Noah, 31, …", (), QUESTIONS.as_metadata())


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("", 0), ("Something happened.", 0), ("Noah.", 1), ("noah", 0),  # names have capitals
        ("I am 62 and Noah is 31; it cost $75 in Elmhurst.", 5),
        ("Noah is 62 and I am 31.", 1),  # the name; the ages are those of other people
        ("Noah took $75.", 2), ("Noah took $920.", 1),  # the other sum is no answer to this question
        ("Noah took $75 or $920.", 2), ("Noah took $75 or $80.", 1),  # a guess among sums that the document lacks
        ("Noah Magnus Lena", 0),  # a guess among names
    ],
)  # fmt: skip
def test_questions_answered(text: str, right: int) -> None:
    """By hand: the share of five questions whose expected answer the text states, and nothing foreign."""
    assert score_answered([group(DOCUMENT, [text])], CONFIG) == [[right / 5]]


def test_a_missing_answer_is_no_wrong_one() -> None:
    """The original counted an outage as 0 (mission: 3 right of 5 is 3, and so is 3 right with 2 failures)."""
    assert share((True, True, True, False, False)) == 0.6
    assert share((False,) * 5) == 0.0
    assert share((True, True, True, None, None)) is None
    assert share(()) is None


def test_places_in_a_group() -> None:
    """By hand: shares 0.2, 0.4, 0.4, 1.0 of four summaries are the places 0, 1/2, 1/2 and 1; one alone has 1/2."""
    shares = [0.2, 0.4, 0.4, 1.0]
    assert [mid_rank(own, shares) for own in shares] == [0.0, 0.5, 0.5, 1.0]
    assert mid_rank(0.3, [0.3]) == 0.5
    texts = ["Noah.", "Noah took $75.", "It was $75 that Noah had.", "I am 62 and Noah is 31; it cost $75 in Elmhurst."]
    assert score_ranking([group(DOCUMENT, texts)], CONFIG) == [[0.0, 0.5, 0.5, 1.0]]
    assert score_ranking([group(DOCUMENT, ["Noah."] * 3)], CONFIG) == [[0.5, 0.5, 0.5]]


def test_word_limit_of_rollouts() -> None:
    """PxG, whatever the document."""
    texts = ["a " * 50, "a " * 75, "a " * 1000]
    assert score_word_limit([group(DOCUMENT, texts), group(DOCUMENT, texts[:1])], CONFIG) == [[0.0, -0.5, -1.0], [0.0]]


def test_rules_need_facts() -> None:
    """Questions of other data need a model."""
    bare = Example("d", "x", (), QuestionSet((Question("Who?", "Noah"),)).as_metadata())
    with refuses("facts", "task.reader=MODEL"):
        score_answered([group(bare, ["Noah"])], CONFIG)
    with refuses("facts", "task.reader=MODEL"):  # before anything is sampled
        TASKS["doc-qa"].evaluation.measurer([generated_split("test", [bare])], CONFIG)


def test_posts_answer_their_own_questions() -> None:
    """The ceiling: from the whole post the reader answers nearly all, from another post's nearly none."""
    examples = load(CONFIG, "test").examples
    own = [score_answered([group(e, [e.source])], CONFIG)[0][0] for e in examples]
    pairs = pairwise(examples)
    foreign = [score_answered([group(e, [other.source])], CONFIG)[0][0] for e, other in pairs]
    assert sum(x or 0 for x in own) / len(own) > 0.97
    assert sum(x or 0 for x in foreign) / len(foreign) < 0.03


EXAMPLES = load(CONFIG, "validation").examples[:20]
KNOWN = known_forms(CONFIG.data)
PIECES = st.sampled_from(sorted({form for forms in KNOWN.forms.values() for form in forms}))
TEXTS = st.one_of(st.text(max_size=300), st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=30).map(" ".join))


@pytest.mark.slow
@settings(max_examples=10_000)
@given(TEXTS, st.sampled_from(EXAMPLES))
def test_any_text_has_a_share(text: str, example: Example) -> None:
    """Within [0, 1], the share of the questions, of which a post has three to five; a text with nothing in it answers
    none."""
    ((value,),) = score_answered([group(example, [text])], CONFIG)
    assert value is not None
    assert 0.0 <= value <= 1.0
    asked = asked_of(example.metadata)
    said = statements(text, KNOWN)
    assert value == pytest.approx(sum(read(text, asked.questions, asked.facts, KNOWN)) / len(asked.questions))
    assert said or value == 0.0
    assert all(set(answer(q, said)) <= {s.form for s in said} for q in asked.questions)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(st.lists(TEXTS, min_size=2, max_size=4), st.sampled_from(EXAMPLES))
def test_any_group_has_places(texts: list[str], example: Example) -> None:
    """Within [0, 1], half in the mean, and in the order of the questions answered; the limit within [-1, 0]."""
    (places,), (shares,), (limits,) = (
        score([group(example, texts)], CONFIG) for score in (score_ranking, score_answered, score_word_limit)
    )
    assert all(p is not None and 0.0 <= p <= 1.0 for p in places)
    assert sum(p or 0.0 for p in places) / len(places) == pytest.approx(0.5)
    pairs = [(s, p) for s, p in zip(shares, places, strict=True) if s is not None and p is not None]
    assert all((a[0] < b[0]) <= (a[1] < b[1]) for a in pairs for b in pairs)
    assert all(value is not None and -1.0 <= value <= 0.0 for value in limits)
