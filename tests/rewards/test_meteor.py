"""METEOR's words and synonyms, and where WordNet is found."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from zlib import crc32

import nltk.corpus
import nltk.data
import pytest
from nltk.corpus.reader.wordnet import WordNetCorpusReader
from support.refusals import refuses

from smolsum.config.sections import Config, RewardsConfig
from smolsum.errors import MachineError
from smolsum.rewards import meteor as module
from smolsum.rewards.meteor import Lexicon, ensure_meteor, meteor, meteor_tokens, score_meteor, wordnet_problem
from smolsum.types import RolloutGroup

PLAIN = Lexicon("exact+stem", "", (), lambda word: ())


def words(word: str) -> set[str]:
    return {lemma.name() for synset in module.find_lexicon().synsets(word) for lemma in synset.lemmas()}


def test_tokens_are_nltks_words_sentence_by_sentence() -> None:
    """Full stops are tokens inside a text too, as with Hugging Face's `evaluate`; "didn't" is two words."""
    tokens = ("She", "did", "n't", "pay", "$", "3.50", ".", "He", "left", ".")
    assert meteor_tokens("She didn't pay $3.50. He left.") == tokens


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


def test_lexnames_has_the_45_files_in_the_format_of_the_manual() -> None:
    """lexnames(5WN): two-digit number, name, part of speech (noun 1, verb 2, adjective 3, adverb 4)."""
    lines = module.lexnames().splitlines()
    assert len(lines) == 45
    some = ["00\tadj.all\t3", "02\tadv.all\t4", "03\tnoun.Tops\t1", "29\tverb.body\t2", "44\tadj.ppl\t3"]
    assert [lines[i] for i in (0, 2, 3, 29, 44)] == some


def test_without_a_database_no_word_has_synonyms(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable does not look in the current directory: a folder that happens to be called `dict` is none."""
    monkeypatch.chdir(database.parent)
    lexicon = module.find_lexicon()
    assert (lexicon.kind, lexicon.description, lexicon.refused) == ("exact+stem", "exact+stem", ())
    assert lexicon.synsets("car") == ()


@pytest.mark.parametrize(("variable", "below"), [("WNSEARCHDIR", "dict"), ("WNHOME", ""), ("", "dict")])
def test_a_system_database_is_found(variable: str, below: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WNSEARCHDIR names the database directory, WNHOME the one that holds `dict`. One without lexnames, as Debian's
    package ships it, gives synonyms and is named; the words of a data set recur, so their synsets are remembered."""
    if variable:
        monkeypatch.setenv(variable, str(database.parent / below))
    else:
        monkeypatch.setattr(module, "SYSTEM_DIRECTORIES", ("/nowhere", str(database)))
    lexicon = module.find_lexicon()
    assert lexicon.description == f"wordnet ({database})"
    assert words("auto") == {"auto", "car"}
    assert lexicon.synsets("auto") is lexicon.synsets("auto")


def test_nltks_own_data_comes_first(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What `python -m nltk.downloader wordnet` installed is used before a system package."""
    corpus = tmp_path / "nltk_data" / "corpora" / "wordnet"
    shutil.copytree(database, corpus)
    for name, text in (("lexnames", module.lexnames()), ("index.sense", "")):
        (corpus / name).write_text(text)
        (corpus / name).chmod(0o644)
    for directory in (corpus, corpus.parent, corpus.parent.parent):
        directory.chmod(0o755)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])
    monkeypatch.setenv("WNSEARCHDIR", str(database))
    request.addfinalizer(lambda: nltk.corpus.wordnet._unload())
    assert module.find_lexicon().description == "wordnet (nltk data)"
    assert words("auto") == {"auto", "car"}


def test_a_broken_database_is_named_and_passed_over(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation is not used in silence: the next place is tried and the reason kept."""
    half = database.parent / "half"
    shutil.copytree(database, half)
    (half / "data.verb").unlink()
    monkeypatch.setattr(module, "SYSTEM_DIRECTORIES", (str(half), str(database)))
    lexicon = module.find_lexicon()
    assert lexicon.source == str(database)
    assert lexicon.refused == (f"{half}: no data.verb",)


@pytest.mark.parametrize("problem", ["data.verb", "damaged index line 'car n 1 0 1 0'"])
def test_a_database_that_cannot_be_used_is_found_out_at_once(
    database: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """nltk will not read a data file that others may write, and an index may be cut short: that must show before
    training, not during it at the look-up of a word, and leave no trace."""
    if problem == "data.verb":
        os.chmod(database / "data.verb", 0o666)
    else:
        index = database / "index.noun"
        index.write_text(index.read_text().rpartition(" ")[0])
    monkeypatch.setattr(module, "SYSTEM_DIRECTORIES", (str(database),))
    lexicon = module.find_lexicon()
    assert lexicon.kind == "exact+stem"
    assert problem in lexicon.refused[0]
    assert nltk.data.path == []


def test_an_index_gives_a_whole_lemma_in_each_part_of_speech() -> None:
    """A lemma before, between and after those listed is unknown; an adjective lists its satellites again."""
    nouns = ["dog n 2 1 @ 2 1 00000010 00000020", "dog_days n 1 0 1 0 00000030"]
    index = module.LemmaIndex([nouns, ["dog a 3 2 & ! 3 0 00000040 00000050 00000060"], []], {60, 40})
    assert index["dog"] == {"n": [10, 20], "a": [40, 50, 60], "s": [40, 60]}
    assert (index["dog_days"], index["cat"]) == ({"n": [30]}, {})
    assert not any(word in index for word in ("", "cat", "dog_", "do", "dog n", "zebra", "\ud800"))


def test_a_damaged_line_of_wordnet_is_named_when_its_word_is_looked_up() -> None:
    """The words around it are still found."""
    index = module.LemmaIndex([["ant n 1 0 1 0 00000011", "bee n 2 0", "cow n 1 0 1 0 00000033"]], set())
    assert (index["ant"], index["cow"], index["dog"]) == ({"n": [11]}, {"n": [33]}, {})
    with refuses("'bee n 2 0'", "install WordNet again", error=MachineError):
        index["bee"]
