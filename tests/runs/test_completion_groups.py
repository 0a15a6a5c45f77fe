"""The rollouts of a step: read, sorted, searched, compared."""

import json
from pathlib import Path

from support.watching import append, make_run

from smolsum.runs.completion_groups import Group, changes, clean, first_group, ordered, read_groups, sort_keys
from smolsum.runs.records import RunSettings, SampledRollout
from smolsum.runs.sample_errors import sample_errors


def test_groups(tmp_path: Path) -> None:
    """Posts and references come from the first row of each group; the EOS is no token of the text."""
    first, second = read_groups(make_run(tmp_path), 60)
    assert [g.prompt_id for g in (first, second)] == ["train-0001", "train-0070"]
    assert first.post.startswith("I share a flat")
    assert first.references == ("The heating in our flat fails and I want to move out.",)
    assert [s.tokens for s in first.samples] == [59, 62, 65, 69]
    assert [s.truncated for s in first.samples] == [False, False, False, True]


def test_missing_and_half_written(tmp_path: Path) -> None:
    """No file, no groups; a last line that is half written is passed over, and so is an older run's lack of posts."""
    paths = make_run(tmp_path)
    assert read_groups(paths, 999) == ()
    rows = [{"prompt_id": "a", "sample": n, "text": "x", "token_ids": [1]} for n in range(2)]
    append(paths.completions(5), rows)
    with paths.completions(5).open("a") as file:
        file.write(json.dumps(rows[0])[:20])
    (group,) = read_groups(paths, 5)
    assert (group.post, group.references, len(group.samples)) == ("", (), 2)


def test_sort(tmp_path: Path) -> None:
    """By any column, the highest first or last; by what is wrong, then by the distance from the target."""
    group = read_groups(make_run(tmp_path), 60)[0]
    settings = RunSettings(target_tokens=64, tolerance_tokens=3)
    assert sort_keys(group) == ["sample", "tokens", "length", "meteor", "reward", "advantage", "error", "worker"]

    def numbers(sort: str, *, backwards: bool = False) -> list[int]:
        return [s.number for s in ordered(group, sort, settings, backwards=backwards)]

    assert numbers("tokens") == [3, 2, 1, 0]
    assert numbers("advantage") == [0, 1, 2, 3]
    assert numbers("meteor") == [2, 0, 3, 1]
    assert numbers("reward", backwards=True) == [3, 1, 2, 0]
    assert numbers("sample", backwards=True) == [3, 2, 1, 0]
    assert numbers("error") == [3, 0, 1, 2]
    assert [sample_errors(s, settings) for s in group.samples] == [["-5 tokens"], [], [], ["cut", "+5 tokens"]]


def test_what_is_missing_is_an_error_and_sorts_last(tmp_path: Path) -> None:
    """A signal without a value, an empty text, a failed check of an evaluation."""
    rewards = [{"length": None}, {"length": 1.0}, {"passed": 0.0}]
    samples = [
        SampledRollout(number=n, text="" if n == 1 else "x", finish_reason="stop", rewards=r, reward=r.get("length"))
        for n, r in enumerate(rewards)
    ]
    group = Group(1, "p", "", (), tuple(samples))
    assert [s.number for s in ordered(group, "reward", RunSettings())] == [1, 0, 2]
    assert [s.number for s in ordered(group, "reward", RunSettings(), backwards=True)] == [1, 0, 2]
    assert [sample_errors(s, RunSettings()) for s in samples] == [["no length"], ["empty"], ["failed"]]


def test_first_rollouts(tmp_path: Path) -> None:
    paths = make_run(tmp_path)
    known, new = read_groups(paths, 60)
    earlier = first_group(paths, known, 1)
    assert earlier is not None
    assert earlier.step == 1
    assert first_group(paths, new, 1) is None


def test_changes() -> None:
    assert changes("a b c", "a x c d") == [("same", "a"), ("gone", "b"), ("new", "x"), ("same", "c"), ("new", "d")]


def test_no_escape_reaches_the_terminal() -> None:
    """A model may sample any character; what a terminal would obey becomes a space."""
    assert clean("a\x1b[31mb\x07\r\n\tc\u202e") == "a [31mb  \n    c "
