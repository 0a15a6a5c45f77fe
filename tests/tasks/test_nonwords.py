"""Non-words, told from words that the source, the data or WordNet have."""

import pytest

from smolsum.config.resolve import resolve
from smolsum.rewards.meteor import Lexicon, find_lexicon
from smolsum.tasks import TASKS
from smolsum.tasks.nonwords import KnownWords, known_words
from smolsum.tasks.tldr.task import TASK
from smolsum.types import Prompt, Rollout

ENTRIES = {"sell", "sold", "bike", "old", "i", "was", "did", "want", "it"}
LEXICON = Lexicon("wordnet", "a few words", (), lambda word: [word] if word in ENTRIES else [])
ENGLISH = ["I sold the old bike.", "The bike was my sister's.", "She didn't want to sell it."]


def known(*texts: str) -> KnownWords:
    found = known_words(texts, LEXICON)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("I sold my old bike.", 0), ("I sold my old bikeix.", 1 / 5), ("itied itied", 1), ("", None), ("64, 5!", None),
        ("Sister, SISTER", 0),  # from the texts
        ("Petra sold it.", 0), ("petra's old bike", 0), ("Petraix sold it.", 1 / 3),  # Petra is in the source
        ("I didn't sell what they'd sold; can't, won't", 0), ("I didnix't sell", 1 / 3), ("It\u2019s Petra\u2019s.", 0),
        ("'old'bike'", 0),  # quotes join nothing
    ],
)  # fmt: skip
def test_share_of_unknown_words(text: str, share: float | None) -> None:
    """A word is known from the source, the data's texts or the lexicon, in any case, contracted or not."""
    assert known(*ENGLISH).unknown_share(text, "Petra has a bike.") == (share and pytest.approx(share))


def test_data_in_another_language_have_no_measure() -> None:
    """Of a language that WordNet does not know any word would be none."""
    german = ["Ich habe das alte Rad verkauft.", "Es gehörte meiner Schwester.", "Sie wollte es nicht verkaufen."]
    assert known_words(german, LEXICON) is None
    assert known_words([], LEXICON) is not None


def test_without_wordnet_there_is_no_measure() -> None:
    """The data's own texts have too few words to judge by."""
    assert known_words(ENGLISH, Lexicon("exact+stem", "", (), lambda word: ())) is None


def test_the_first_texts_of_many_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's data set of a million posts is not to delay the first step."""
    monkeypatch.setattr("smolsum.tasks.nonwords.READ", 2)
    assert known(*ENGLISH).unknown_share("bike sister want he", "") == 1 / 4
    assert known(*ENGLISH, "he").unknown_share("he", "") == 1


def row(text: str) -> dict[str, object]:
    config = resolve(TASKS, model="tiny").config
    splits = [TASK.prompts.load(config, name) for name in ("validation", "test")]
    example = splits[0].examples[0]
    turn = {"role": "user", "content": example.source}
    prompt = Prompt(example.id, (turn,), (1,), example.references, example.metadata)
    return TASK.evaluation.measurer(splits, config)(prompt, Rollout((1,), (0.0,), "stop", 0, "", 0, text))


@pytest.mark.skipif(find_lexicon().kind != "wordnet", reason="this machine has no WordNet")
@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("Although I slept badly, my sister wrote me two letters.", 0),
        ("How should I talk to her now? I reallyoror, I I have slept slept", 1 / 14),
        ("Petra, who is my sister, thinks I should just let itied.", 1 / 11),
    ],
)
def test_summaries_are_measured(text: str, share: float) -> None:
    """Texts of policies that were paid for a length, with the WordNet of this machine and the built-in posts."""
    assert row(text)["nonwords"] == pytest.approx(share)


def test_nothing_is_looked_up_for_an_empty_text() -> None:
    """A dry run measures one to learn the columns, and is not to wait for WordNet."""
    assert row("")["nonwords"] is None
