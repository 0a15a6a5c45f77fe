"""Step-shaped inputs for the scorers, and machines with and without WordNet."""

import gc
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from smolsum.console import WaitHook, use_hook
from smolsum.rewards import meteor
from smolsum.types import Prompt, Rollout, RolloutGroup


def _group(texts: Sequence[str], references: Sequence[str] = ("the cat sat on the mat",)) -> RolloutGroup:
    prompt = Prompt("p", ({"role": "user", "content": "a post"},), (1,), tuple(references), {})
    return RolloutGroup(prompt, tuple(_rollout(text) for text in texts))


def _rollout(text: str) -> Rollout:
    # one token a word, then EOS
    ids = tuple(range(len(text.split()) + 1))
    return Rollout(ids, (0.0,) * len(ids), "stop", policy_version=0, worker="local", seed=0, text=text)


@pytest.fixture
def group() -> Callable[..., RolloutGroup]:
    """A maker of one prompt's rollouts from their texts, each a token a word long."""
    return _group


# One noun synset and nothing else: enough for nltk's reader, in every file it opens.
_HEADER = "  1 WordNet 3.0 Copyright 2006: a line of the licence\n"
_SYNSET = f"{len(_HEADER):08d} 06 n 02 car 0 auto 0 000 | a vehicle with an engine\n"
_INDEX = "".join(f"{word} n 1 0 1 0 {len(_HEADER):08d}\n" for word in ("auto", "car"))


@pytest.fixture
def database(tmp_path: Path, no_wordnet: None) -> Path:
    """A WordNet database as a system package lays it out, in which "auto" and "car" are synonyms, the only one."""
    directory = tmp_path / "dict"
    directory.mkdir(mode=0o755)
    files = {name: "" if name.endswith(".exc") else _HEADER for name in meteor.DATABASE_FILES}
    files |= {"data.noun": _HEADER + _SYNSET, "index.noun": _HEADER + _INDEX}
    for name, text in files.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o644)  # nltk refuses files that others may write
    return directory


@pytest.fixture
def no_wordnet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without WordNet: no nltk data, no system package, no variable; a test may then add one."""
    nltk_data = importlib.import_module("nltk.data")
    monkeypatch.setattr(nltk_data, "path", [])
    monkeypatch.setattr(meteor, "SYSTEM_DIRECTORIES", ())
    for name in ("WNHOME", "WNSEARCHDIR", "NLTK_DATA"):
        monkeypatch.delenv(name, raising=False)
    found = cache(meteor.find_lexicon.__wrapped__)
    monkeypatch.setattr(meteor, "find_lexicon", found)  # the lexicon of this machine takes seconds to load anew
    gc.freeze()  # so that the collection looks only at what the test makes
    yield
    found.cache_clear()
    with warnings.catch_warnings():
        # nltk's reader keeps its data files open until it is collected
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """The events of the block."""
    found: list[str] = []
    with use_hook(WaitHook(notify=lambda kind, message: found.append(f"{kind}: {message}"))):
        yield found
