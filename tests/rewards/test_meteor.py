"""METEOR's words and synonyms."""

from collections import defaultdict
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from zlib import crc32

import pytest
from nltk.corpus.reader.wordnet import WordNetCorpusReader
from support.refusals import refuses

from smolsum.config.sections import Config, RewardsConfig
from smolsum.errors import MachineError
from smolsum.rewards import meteor as module
from smolsum.rewards.meteor import Lexicon, ensure_meteor, meteor, meteor_tokens, score_meteor, wordnet_problem
from smolsum.types import RolloutGroup

PLAIN = Lexicon("exact+stem", "", (), lambda word: ())


def test_tokens_are_nltks_words_sentence_by_sentence() -> None:
    """Full stops are tokens inside a text too, as with Hugging Face's `evaluate`; "didn't" is two words."""
    tokens = ("She", "did", "n't", "pay", "$", "3.50", ".", "He", "left", ".")
    assert meteor_tokens("She didn't pay $3.50. He left.") == tokens


@pytest.mark.usefixtures("no_wordnet")
def test_synonyms_count_where_there_is_a_wordnet(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it three of three words in one run, 1 - 0.5 / 3^3; without it two apart, 2/3 (1 - 0.5) = 1/3."""
    monkeypatch.setenv("WNSEARCHDIR", str(database))
    with_synonyms = meteor("the auto stopped", ["the car stopped"], matcher=module.find_lexicon())
    assert with_synonyms == pytest.approx(1 - 0.5 / 27)
    assert meteor("the auto stopped", ["the car stopped"], matcher=PLAIN) == pytest.approx(1 / 3)


def test_the_wordnet_of_this_machine_counts_synonyms() -> None:
    """The real database scores real synonyms above plain matching."""
    lexicon = module.find_lexicon()
    if lexicon.kind != "wordnet":
        pytest.skip("no WordNet on this machine")
    text, reference = "the auto halted near a small shop", "the car stopped near a little store"
    assert meteor(text, [reference], matcher=lexicon) > meteor(text, [reference], matcher=PLAIN)


def test_the_wordnet_of_this_machine_is_read_as_nltk_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """nltk's own loading of thousands of index lines gives each lemma the offsets that bisection finds."""
    if not (source := Path(module.find_lexicon().source)).is_absolute():
        pytest.skip("no system WordNet on this machine")
    reader = module._load_database(source)
    satellites, lazy = reader.satellite_offsets, reader._lemma_pos_offset_map
    read = reader.open
    lemmas = {line.split(" ", 1)[0] for part in module.PARTS_OF_SPEECH for line in read(f"index.{part}")} - {""}
    sample = {lemma for lemma in lemmas if crc32(lemma.encode()) % 40 == 0}

    def open_sampled(file: str) -> StringIO:
        return StringIO("".join(line for line in read(file) if line.split(" ", 1)[0] in sample))

    monkeypatch.setattr(reader, "open", open_sampled)
    monkeypatch.setattr(reader, "_lemma_pos_offset_map", defaultdict(dict))
    WordNetCorpusReader._load_lemma_pos_offset_map(reader)
    assert len(sample) > 3000
    assert reader._lemma_pos_offset_map == {lemma: lazy[lemma] for lemma in sample}
    monkeypatch.setattr(reader, "open", read)
    WordNetCorpusReader._scan_satellites(reader)
    assert reader.satellite_offsets == satellites


def test_a_damaged_line_of_wordnet_is_named_when_its_word_is_looked_up() -> None:
    """The words around it are still found."""
    index = module.LemmaIndex([["ant n 1 0 1 0 00000011", "bee n 2 0", "cow n 1 0 1 0 00000033"]], set())
    assert (index["ant"], index["cow"], index["dog"]) == ({"n": [11]}, {"n": [33]}, {})
    with refuses("'bee n 2 0'", "install WordNet again", error=MachineError):
        index["bee"]


@pytest.mark.usefixtures("no_wordnet")
def test_without_wordnet_there_is_a_warning_to_show_with_its_remedy(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain matching is described for run.json, and the caller gets the words of a warning, which says why an installed
    WordNet was not used. With one there is nothing to warn of."""
    assert ensure_meteor(require=False) == module.find_lexicon().description == "exact+stem"
    problem = wordnet_problem()
    assert problem is not None
    assert "no synonyms" in problem.message
    assert "apt-get install wordnet-base" in str(problem.hint)
    monkeypatch.setenv("WNSEARCHDIR", str(database))
    module.find_lexicon.cache_clear()
    assert wordnet_problem() is None
    assert ensure_meteor(require=True) == f"wordnet ({database})"
    (database / "index.adj").unlink()
    module.find_lexicon.cache_clear()
    problem = wordnet_problem()
    assert problem is not None
    assert f"{database}: no index.adj" in problem.message


@pytest.mark.usefixtures("no_wordnet")
def test_required_wordnet_is_an_error_of_the_machine(group: Callable[..., RolloutGroup]) -> None:
    """rewards.require_wordnet turns the warning into an error, before training and in the scorer alike."""
    required = Config(rewards=RewardsConfig(require_wordnet=True))
    with refuses("no synonyms", error=MachineError):
        ensure_meteor(require=True)
    with refuses("no synonyms", error=MachineError):
        score_meteor([group(["the cat"])], required)
