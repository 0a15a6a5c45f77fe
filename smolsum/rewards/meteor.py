"""METEOR (Lavie and Agarwal 2007): words aligned exactly, by stem, then by synonym, as `nltk` computes it.

Tokens are those of nltk's word tokeniser, sentence by sentence, as in Hugging Face's `evaluate`. That one
finds sentences with a downloaded model; here they come from the same Punkt rules untrained, so that nothing
is downloaded and every machine gives the same number. They differ where only training knows better, as after
an abbreviation ("Mr." here is two tokens).

nltk looks up synonyms of words that are already stemmed, so "auto" finds "car" but "automobile" (stem
"automobil") does not. That is kept: the score is nltk's.

WordNet is found among nltk's own data and the system's databases; it is never downloaded.
"""

import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from io import StringIO
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Literal

from smolsum.config.sections import Config
from smolsum.errors import MachineError
from smolsum.rewards.signal import Values, described, score_against_references
from smolsum.types import RolloutGroup

# Where packages put the database files: Debian and Ubuntu, Fedora, the original installer, Homebrew.
SYSTEM_DIRECTORIES = (
    "/usr/share/wordnet",
    "/usr/share/wordnet-3.0/dict",
    "/usr/local/WordNet-3.0/dict",
    "/opt/homebrew/opt/wordnet/dict",
    "/usr/local/opt/wordnet/dict",
)
PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")  # numbered 1 to 4 in lexnames
DATABASE_FILES = tuple(name for part in PARTS_OF_SPEECH for name in (f"data.{part}", f"index.{part}", f"{part}.exc"))
# The 45 lexicographer files in the order that numbers them (WordNet 3.0, lexnames(5WN)).
LEXICOGRAPHER_FILES = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body "
    "noun.cognition noun.communication noun.event noun.feeling noun.food noun.group noun.location "
    "noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession noun.process "
    "noun.quantity noun.relation noun.shape noun.state noun.substance noun.time verb.body verb.change "
    "verb.cognition verb.communication verb.competition verb.consumption verb.contact verb.creation "
    "verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather "
    "adj.ppl"
)


@dataclass(frozen=True)
class Lexicon:
    """Where METEOR looks up synonyms, passed to nltk instead of its corpus reader."""

    kind: Literal["wordnet", "exact+stem"]
    source: str
    """"nltk data", the database's directory, or "" without one."""
    refused: tuple[str, ...]
    """One clause for each database that was there but could not be used."""
    synsets: Callable[[str], Sequence[Any]]
    """nltk's synsets of a word; none for every word when there is no database."""

    @property
    def description(self) -> str:
        """How METEOR matches words on this machine: "wordnet (SOURCE)" or "exact+stem"."""
        return f"{self.kind} ({self.source})" if self.source else self.kind


@cache
def find_lexicon() -> Lexicon:
    """Return the first usable WordNet: nltk's own data, then a system database; else a lexicon without synonyms. Of a
    system database's index files only the first and last lines are checked here.

    Loading takes a tenth of a second and 25 MB, once a process.
    """
    refused: list[str] = []
    for source, load in _candidates(os.environ):
        try:
            return Lexicon("wordnet", source, tuple(refused), _cached_synsets(load()))
        except _NotInstalled:
            continue
        # nltk raises many things for a damaged or forbidden database: name it and look further
        except Exception as error:
            refused.append(f"{source}: {str(error) or type(error).__name__}")
    return Lexicon("exact+stem", "", tuple(refused), lambda word: ())


def lexnames() -> str:
    """Return the `lexnames` file that Debian's package leaves out: number, name, number of the part of speech."""
    numbers = {part: number for number, part in enumerate(PARTS_OF_SPEECH, start=1)}
    return "".join(
        f"{index:02d}\t{name}\t{numbers[name.partition('.')[0]]}\n"
        for index, name in enumerate(LEXICOGRAPHER_FILES.split())
    )


class _NotInstalled(Exception):
    """There is no database at this place, which is not an error."""


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (source, loader of an nltk corpus reader) pairs in the order of preference."""
    yield "nltk data", _load_nltk_corpus
    named = []
    if directory := environment.get("WNSEARCHDIR"):
        named.append(directory)
    if home := environment.get("WNHOME"):
        named.append(os.path.join(home, "dict"))
    for directory in (*named, *SYSTEM_DIRECTORIES):
        if os.path.isdir(directory):
            yield directory, partial(_load_database, Path(directory))


def _load_nltk_corpus() -> Any:
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError as error:
        if type(error) is not LookupError:  # a KeyError or IndexError comes from inside a damaged corpus
            raise
        raise _NotInstalled from error
    return wordnet


def _load_database(directory: Path) -> Any:
    """Return nltk's reader over a plain WordNet 3.x `dict` directory, with the files it may lack supplied here."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class DatabaseReader(WordNetCorpusReader):  # type: ignore[misc]  # nltk is untyped
        def open(self, file: str) -> Any:
            return StringIO(lexnames()) if file == "lexnames" else super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            """None: the map to other versions serves the multilingual functions and needs index.sense."""

        def _scan_satellites(self) -> None:
            """Find the offsets of the adjective satellites, as nltk does, but ten times as fast."""
            with self.open("data.adj") as file:
                found = re.findall(r"^(\d+)\s+\S+\s+s\s", file.read(), re.MULTILINE)
            self.satellite_offsets = {int(offset) for offset in found}

        def _load_lemma_pos_offset_map(self) -> None:
            """Take the lines of the index files and parse them when asked: nltk parses all of them for seconds."""
            lines = []
            for part in PARTS_OF_SPEECH:
                with self.open(f"index.{part}") as file:
                    lines.append([line for line in file.read().splitlines() if not line.startswith(" ")])
            self._lemma_pos_offset_map = LemmaIndex(lines, self.satellite_offsets)

    if missing := [name for name in DATABASE_FILES if not (directory / name).is_file()]:
        raise FileNotFoundError(f"no {missing[0]}")
    # nltk refuses files outside its data path
    nltk.data.path.append(str(directory))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The multilingual functions are not available")
            reader = DatabaseReader(str(directory), None)
        for part in PARTS_OF_SPEECH:
            # nltk opens these at the first look-up: one that it refuses must show now, not in mid-run
            reader.open(f"data.{part}").close()
        return reader
    except BaseException:  # also Ctrl-C: the path of a database that is not used does not stay
        nltk.data.path.remove(str(directory))
        raise


class LemmaIndex:
    """nltk's map of a lemma to {part of speech: offsets of its synsets} (empty for others), found by bisection.

    `indexes` holds the lines of each index file (wndb(5WN)), `satellites` the offsets of adjective satellites.
    Raises MachineError if the first or last line of a file is damaged, and later for any line that is asked for.
    """

    def __init__(self, indexes: Iterable[list[str]], satellites: Set[int]) -> None:
        self._indexes = [sorted(lines) for lines in indexes if lines]
        self._satellites = satellites
        for lines in self._indexes:
            for line in (lines[0], lines[-1]):
                _parse_index_line(line)

    def __getitem__(self, lemma: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for lines in self._indexes:
            at = bisect_left(lines, f"{lemma} ")
            if at < len(lines) and lines[at].split(maxsplit=1)[0] == lemma:
                part, offsets = _parse_index_line(lines[at])
                found[part] = offsets
        if "a" in found:  # nltk lists the satellites among the adjectives again
            found["s"] = [offset for offset in found["a"] if offset in self._satellites]
        return found

    def __contains__(self, lemma: str) -> bool:
        return bool(self[lemma])


def _parse_index_line(line: str) -> tuple[str, list[int]]:
    """Return the part of speech and the synset offsets from a line of an index file. Raises MachineError if it is
    damaged."""
    try:
        _, part, synsets, pointers, *rest = line.split()
        senses, _, *offsets = rest[int(pointers) :]
        if 0 < int(synsets) == int(senses) == len(offsets):
            return part, [int(offset) for offset in offsets]
    except ValueError:
        pass
    raise MachineError(f"WordNet has a damaged index line {line[:60]!r}", hint="install WordNet again")


def _cached_synsets(reader: Any) -> Callable[[str], Sequence[Any]]:
    """Return `reader.synsets`, remembered (the words of a data set recur) and safe to call from several threads."""
    lock = Lock()

    @lru_cache(maxsize=65_536)
    def synsets(word: str) -> Sequence[Any]:
        with lock:  # the reader seeks in one shared file
            found: list[Any] = reader.synsets(word)
        return found

    return synsets


@cache
def cached_stemmer() -> SimpleNamespace:
    """Return nltk's Porter stemmer with a cache, as METEOR and ROUGE stem the same words again and again."""
    from nltk.stem.porter import PorterStemmer

    return SimpleNamespace(stem=lru_cache(maxsize=65_536)(PorterStemmer().stem))


@cache
def _tokenizers() -> tuple[Any, Any]:
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return PunktSentenceTokenizer(), NLTKWordTokenizer()


@lru_cache(maxsize=4096)  # a reference comes back for each of its G rollouts, and in every epoch
def meteor_tokens(text: str) -> tuple[str, ...]:
    """Return the tokens METEOR compares, case kept (nltk lower-cases them itself)."""
    sentences, words = _tokenizers()
    return tuple(token for sentence in sentences.tokenize(text) for token in words.tokenize(sentence))


def meteor(text: str, references: Sequence[str], *, matcher: Lexicon) -> float:
    """Return METEOR of `text` against its best reference, in [0, 1); 0 for empty text.

    nltk's parameters (alpha 0.9, beta 3, gamma 0.5): even a copy of an n-word reference stays below 1, at
    1 - 0.5 / n^3. `references` holds at least one.
    """
    return _meteor(text, tuple(references), matcher)


@lru_cache(maxsize=1024)  # a step's rewards and what its constraints measure are of the same texts
def _meteor(text: str, references: tuple[str, ...], matcher: Lexicon) -> float:
    from nltk.translate.meteor_score import meteor_score

    return float(
        meteor_score(
            [meteor_tokens(reference) for reference in references],
            meteor_tokens(text),
            stemmer=cached_stemmer(),
            wordnet=matcher,
        )
    )


@described(
    "[0, 1]",
    "unigram precision and recall with stems and synonyms, less for broken order",
    title="METEOR",
    by_reference=True,
)
def score_meteor(groups: Sequence[RolloutGroup], config: Config) -> Values:
    """Return PxG METEOR with the best matching this machine has; None for a prompt without references.

    Raises MachineError if `rewards.require_wordnet` is set and there is no WordNet.
    """
    ensure_meteor(config.rewards.require_wordnet)
    return score_against_references(partial(meteor, matcher=find_lexicon()))(groups, config)


def wordnet_problem() -> MachineError | None:
    """Return why synonyms are not matched, and the hint, to be shown once as a warning; None if they are."""
    lexicon = find_lexicon()
    if lexicon.kind == "wordnet":
        return None
    reasons = "".join(f"; {reason}" for reason in lexicon.refused)
    return MachineError(
        f"no usable WordNet database: METEOR matches words and stems but no synonyms{reasons}",
        hint="uv run python -m nltk.downloader wordnet, or on Debian apt-get install wordnet-base",
    )


def ensure_meteor(require: bool) -> str:
    """Load what METEOR needs, before training starts, and return the lexicon's description for run.json.

    Raises MachineError if `require` is set and there is no WordNet.
    """
    if require and (problem := wordnet_problem()):
        raise problem
    return find_lexicon().description
