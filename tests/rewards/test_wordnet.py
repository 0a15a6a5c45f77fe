"""Finding WordNet."""

import os
import shutil
from pathlib import Path

import nltk.corpus
import nltk.data
import pytest

from smolsum.rewards import meteor
from smolsum.rewards.meteor import lexnames

pytestmark = pytest.mark.usefixtures("no_wordnet")


def _words(word: str) -> set[str]:
    return {lemma.name() for synset in meteor.find_lexicon().synsets(word) for lemma in synset.lemmas()}


def test_lexnames_has_the_45_files_in_the_format_of_the_manual() -> None:
    """lexnames(5WN): two-digit number, name, part of speech (noun 1, verb 2, adjective 3, adverb 4)."""
    lines = lexnames().splitlines()
    assert len(lines) == 45
    some = ["00\tadj.all\t3", "02\tadv.all\t4", "03\tnoun.Tops\t1", "29\tverb.body\t2", "44\tadj.ppl\t3"]
    assert [lines[i] for i in (0, 2, 3, 29, 44)] == some


def test_without_a_database_no_word_has_synonyms(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable does not look in the current directory: a folder that happens to be called `dict` is none."""
    monkeypatch.chdir(database.parent)
    lexicon = meteor.find_lexicon()
    assert (lexicon.kind, lexicon.description, lexicon.refused) == ("exact+stem", "exact+stem", ())
    assert lexicon.synsets("car") == ()


@pytest.mark.parametrize(("variable", "below"), [("WNSEARCHDIR", "dict"), ("WNHOME", ""), ("", "dict")])
def test_a_system_database_is_found(variable: str, below: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WNSEARCHDIR names the database directory, WNHOME the one that holds `dict`. One without lexnames, as Debian's
    package ships it, gives synonyms and is named; the words of a data set recur, so their synsets are remembered."""
    if variable:
        monkeypatch.setenv(variable, str(database.parent / below))
    else:
        monkeypatch.setattr(meteor, "SYSTEM_DIRECTORIES", ("/nowhere", str(database)))
    lexicon = meteor.find_lexicon()
    assert lexicon.description == f"wordnet ({database})"
    assert _words("auto") == {"auto", "car"}
    assert lexicon.synsets("auto") is lexicon.synsets("auto")


def test_nltks_own_data_comes_first(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What `python -m nltk.downloader wordnet` installed is used before a system package."""
    corpus = tmp_path / "nltk_data" / "corpora" / "wordnet"
    shutil.copytree(database, corpus)
    for name, text in (("lexnames", lexnames()), ("index.sense", "")):
        (corpus / name).write_text(text)
        (corpus / name).chmod(0o644)
    for directory in (corpus, corpus.parent, corpus.parent.parent):
        directory.chmod(0o755)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])
    monkeypatch.setenv("WNSEARCHDIR", str(database))
    request.addfinalizer(lambda: nltk.corpus.wordnet._unload())
    assert meteor.find_lexicon().description == "wordnet (nltk data)"
    assert _words("auto") == {"auto", "car"}


def test_a_broken_database_is_named_and_passed_over(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an installation is not used in silence: the next place is tried and the reason kept."""
    half = database.parent / "half"
    shutil.copytree(database, half)
    (half / "data.verb").unlink()
    monkeypatch.setattr(meteor, "SYSTEM_DIRECTORIES", (str(half), str(database)))
    lexicon = meteor.find_lexicon()
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
    monkeypatch.setattr(meteor, "SYSTEM_DIRECTORIES", (str(database),))
    lexicon = meteor.find_lexicon()
    assert lexicon.kind == "exact+stem"
    assert problem in lexicon.refused[0]
    assert nltk.data.path == []


def test_an_index_gives_a_whole_lemma_in_each_part_of_speech() -> None:
    """A lemma before, between and after those listed is unknown; an adjective lists its satellites again."""
    nouns = ["dog n 2 1 @ 2 1 00000010 00000020", "dog_days n 1 0 1 0 00000030"]
    index = meteor.LemmaIndex([nouns, ["dog a 3 2 & ! 3 0 00000040 00000050 00000060"], []], {60, 40})
    assert index["dog"] == {"n": [10, 20], "a": [40, 50, 60], "s": [40, 60]}
    assert (index["dog_days"], index["cat"]) == ({"n": [30]}, {})
    assert not any(word in index for word in ("", "cat", "dog_", "do", "dog n", "zebra", "\ud800"))
