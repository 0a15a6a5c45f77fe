"""Non-words, told from words that the source, the data or WordNet have."""

import pytest

from smolsum.config.resolve import resolve
from smolsum.errors import MachineError
from smolsum.rewards.meteor import Lexicon, find_lexicon
from smolsum.tasks import TASKS
from smolsum.tasks.data import Example, Split
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
        ("I didn`t, didn\u00b4t, didn\u2018t.", 0), ("sell 1st, 3rd, 10k, 3pm", 0), ("old2 2bike sell3itied", 1 / 4),
        ("\u00f2ld b\u00efke", 0), ("the pre-sold", 0), ("dunno, theyd sell", 0),
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


@pytest.mark.parametrize("missing", [False, True])
def test_a_bound_that_nothing_can_measure_is_warned_of(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without WordNet a constraint on non-words bounds nothing."""
    problem = MachineError("no usable WordNet database", hint="apt-get install wordnet-base") if missing else None
    monkeypatch.setattr("smolsum.tasks.tldr.settings.wordnet_problem", lambda: problem)
    config = resolve(TASKS, model="tiny", flags={"grpo.constraints": "nonwords <= 0.002"}).config
    warned = ["a constraint on nonwords bounds nothing without WordNet: apt-get install wordnet-base"]
    assert TASK.check(config) == (warned if missing else [])
    assert TASK.check(resolve(TASKS, model="tiny").config) == []


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


def test_nothing_is_looked_up_for_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run measures one to learn the columns, and is not to wait for WordNet."""
    with monkeypatch.context() as patch:
        patch.setattr("smolsum.tasks.tldr.task.known_words", lambda texts, lexicon: pytest.fail("looked up"))
        assert row("")["nonwords"] is None


@pytest.mark.skipif(find_lexicon().kind != "wordnet", reason="this machine has no WordNet")
def test_the_order_of_splits_makes_no_difference() -> None:
    """A run gives them in another order than an evaluation: the words known are those of the training split."""
    config = resolve(TASKS, model="tiny").config
    splits = [Split(name, (Example(name, f"I sold a bike in {name}ix."),), "") for name in ("train", "test")]
    rollout = Rollout((1,), (0.0,), "stop", 0, "", 0, "A trainix and a testix")
    prompt = Prompt("x", ({"role": "user", "content": "A bike."},), (1,), (), {})
    found = [TASK.evaluation.measurer(some, config)(prompt, rollout)["nonwords"] for some in (splits, splits[::-1])]
    assert found == [0.2, 0.2]
