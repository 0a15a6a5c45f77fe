"""LIFEBench: its formulas against values worked out by hand, its words, and which prompts are asked."""

import math
from pathlib import Path
from typing import Any

import pytest
from support.data_files import lines
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split
from smolsum.tasks.suites.lifebench import count_words, length_score, measure, summarise
from smolsum.types import Prompt, Rollout

EN = {
    "id": 1,
    "category": "qa",
    "type": "Why",
    "lang": "en",
    "task": "Why? It must be {word_count_type} {word_count} words.",
}
CN = {"id": 2, "category": "qa", "type": "Why", "lang": "cn", "task": "必须{word_count_type} {word_count}字。"}


def asked(path: Path, *sets: str) -> Split:
    """The prompts of a file."""
    flags = {"task.name": "lifebench", "data.path": str(path)}
    return TASKS["lifebench"].prompts.load(resolve(TASKS, sets=sets, flags=flags).config, "test")


def measured(text: str, method: str, target: int) -> dict[str, Any]:
    """The row of an answer."""
    prompt = Prompt("1", (), (), (), {"method": method, "target": str(target), "lang": "en", "unit": "1"})
    return measure(prompt, Rollout((1,), (0.0,), "stop", 0, "here", 0, text))


@pytest.mark.parametrize(
    ("deviation", "method", "score"),
    [
        (0.0, "equal to", 100.0), (0.1, "equal to", 100 * math.exp(-0.2)), (-0.1, "equal to", 100 * math.exp(-0.5)),
        (-0.1, "at most", 100.0), (0.1, "at most", 100 * math.exp(-0.2)),
        (0.1, "at least", 100.0), (-0.1, "at least", 100 * math.exp(-0.5)), (-1.0, "at least", 100 * math.exp(-5)),
    ],
)  # fmt: skip
def test_length_score(deviation: float, method: str, score: float) -> None:
    """A tenth too few costs more than a tenth too many, and nothing is lost on the side that the method allows."""
    assert length_score(deviation, method) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-known fact, isn't it?", 6), ("", 0), ("...", 0), ("10,000 words", 3), ("苹果很甜", 4),
        ("我有 2 apples。", 4), ("naïve café, 我有2个", 3), ("one\n\ntwo", 2),
    ],
)  # fmt: skip
def test_words_count_as_in_the_benchmark(text: str, words: int) -> None:
    """A Chinese character is a word; what touches one, or has a letter with an accent, is none."""
    assert count_words(text) == words


def test_an_answer_is_measured() -> None:
    """Twelve words for ten: a fifth too many."""
    row = measured("w " * 12, "equal to", 10)
    assert (row["words"], row["deviation"], row["missed"], row["passed"]) == (12, pytest.approx(20.0), "long", 0.0)
    assert row["length_score"] == pytest.approx(100 * math.exp(-0.4))
    assert measured("w " * 12, "at least", 10)["passed"] == 1.0
    assert measured("<think>w w w</think>w w", "equal to", 2)["passed"] == 1.0


def test_a_refusal_is_in_no_score() -> None:
    """At most one word is no answer: missing, and not 0."""
    row = measured("No.", "at most", 10)
    assert (row["length_score"], row["deviation"], row["answered"], row["passed"]) == (None, None, 0.0, 0.0)


def test_scores_are_means_of_the_means_of_lengths() -> None:
    """A length with one answer weighs as much as one with two; the methods are averaged last."""
    rows = [measured("w " * n, "equal to", target) for n, target in ((10, 10), (10, 10), (40, 20))]
    found = summarise([*rows, measured("w", "equal to", 20), measured("w w", "at most", 2)])
    second = 100 * math.exp(-2)
    assert found["equal to/length_score"] == pytest.approx((100 + second) / 2)
    assert found["equal to/deviation"] == pytest.approx((0 + 100) / 2)
    assert found["length_score"] == pytest.approx((found["equal to/length_score"] + 100) / 2)
    assert found["at least/length_score"] is None
    assert (found["10/length_score"], found["2/length_score"]) == (100.0, 100.0)
    # the benchmark has no length of 2, 10 or 20: their answers share a column of the table
    assert found["other/length_score"] == pytest.approx((100 + 100 + second + 100) / 4)
    assert found["answered"] == pytest.approx(4 / 5)


def test_every_unit_is_asked_for_every_length(tmp_path: Path) -> None:
    """In the words of its language; lengths above the limit of tokens are left out, and said."""
    split = asked(lines(tmp_path / "data.jsonl", [EN, CN]), "sampling.max_new_tokens=40", "task.lengths=16,32,64")
    assert len(split.examples) == 2 * 2 * 3
    assert split.examples[0].source == "Why? It must be equal to 16 words."
    assert split.examples[-1].source == "必须至少有 32字。"
    assert "64 words" in split.left_out
    one = asked(
        tmp_path / "data.jsonl", "task.languages=cn", "task.methods=at most", "task.lengths=16", "data.test_rows=1"
    )
    assert [example.id for example in one.examples] == ["2 at most 16"]


@pytest.mark.parametrize(
    ("row", "sets", "named"),
    [
        ({"key": "1", "prompt": "p"}, (), ("data.jsonl:1", "'id'", "key, prompt", "--suite-path")),
        (EN | {"task": "Write 16 words."}, (), ("data.jsonl:1", "{word_count}")),
        (EN | {"id": "x"}, (), ("data.jsonl:1", "'x' as 'id'")),
        (EN, ("task.methods=exactly",), ("task.methods", "exactly", "equal to")),
        (EN, ("task.lengths=0",), ("task.lengths", "'0'")),
        (EN, ("task.lengths=2048",), ("max_new_tokens = 1024", "4096")),
        (EN, ("task.languages=cn",), ("lang cn", "task.languages")),
    ],
)
def test_wrong_input(tmp_path: Path, row: dict[str, Any], sets: tuple[str, ...], named: tuple[str, ...]) -> None:
    path = lines(tmp_path / "data.jsonl", [row])
    with refuses(*named):
        asked(path, *sets)


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    with refuses("data.jsonl:2", "data.jsonl:1"):
        asked(lines(tmp_path / "data.jsonl", [EN, EN]))
