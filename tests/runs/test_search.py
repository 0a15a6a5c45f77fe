"""The samples of a run: read, sorted, compared and searched."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.training import PATIENCE_S
from support.watching import append, completions, evaluate, make_run

from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunSettings, SampledRollout
from smolsum.runs.samples import Group, changes, clean, first_group, ordered, read_groups, sample_errors, sort_keys
from smolsum.runs.search import MAX_HITS, Hits, Scan, Source, Wanted, list_steps

SETTINGS = RunSettings(target_tokens=64, tolerance_tokens=5)


def searched(paths: RunPaths, text: str = "", *, prompt: str = "") -> Scan:
    scan = Scan(paths, Wanted(text, prompt), SETTINGS)
    scan.follow(PATIENCE_S)
    assert not scan.running
    return scan


def test_every_step_and_evaluation_is_searched(tmp_path: Path) -> None:
    """In any case; each hit says where it is from, and its text is read again from there."""
    paths = make_run(tmp_path)
    evaluate(paths, "start", {"test-1": 'Ask the LANDLORD\nand "leave".', "test-2": "nothing"})
    scan = searched(paths, "landlord")
    hits = scan.hits
    assert [hits.source(n) for n in range(len(hits))] == [1, 1, 60, 60, "start-test"]
    samples = [scan.sample(n) for n in range(len(hits))]
    assert all(sample is not None and "landlord" in sample.text.lower() for sample in samples)
    assert [sample.prompt_id for sample in samples if sample] == [
        "train-0001", "train-0011", "train-0001", "train-0070", "test-1",
    ]  # fmt: skip
    assert (scan.done, scan.files, scan.damaged) == (3, 3, 0)
    assert len(searched(paths, 'and "LEAVE"').hits) == 1
    assert len(searched(paths, "Summarise").hits) == 0, "prompts are not samples"
    assert len(searched(paths, "test-1").hits) == 1, "the id of a prompt"


def test_all_samples_of_a_prompt(tmp_path: Path) -> None:
    """At every step, and in evaluations; an id that another one begins with is another prompt."""
    paths = make_run(tmp_path)
    append(paths.completions(30), [row | {"prompt_id": "train-00011"} for row in completions(30, 80)[:4]])
    append(paths.completions(40), completions(40, 80))
    hits = searched(paths, prompt="train-0001").hits
    assert [(hits.source(span[0]), len(span)) for span in hits.spans()] == [(1, 4), (40, 4), (60, 4)]


@pytest.mark.parametrize(
    ("sort", "backwards", "expected"),
    [
        ("sample", False, [0, 1, 2, 3]), ("sample", True, [3, 2, 1, 0]), ("reward", False, [0, 1, 2, 3]),
        ("reward", True, [2, 1, 0, 3]), ("meteor", False, [2, 0, 1, 3]), ("tokens", False, [3, 0, 1, 2]),
        ("error", False, [3, 2, 0, 1]), ("unknown", False, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_hits_are_sorted(tmp_path: Path, sort: str, backwards: bool, expected: list[int]) -> None:
    paths = make_run(tmp_path, steps=1)
    rows = [
        {"text": "a", "token_ids": [1] * 70, "reward": 3.0, "rewards": {"length": 0.0, "meteor": 0.5}},
        {"text": "a", "token_ids": [1] * 65, "reward": 2.0, "rewards": {"length": 0.0, "meteor": 0.4}},
        {"text": "a", "token_ids": [1] * 50, "reward": 1.0, "rewards": {"length": 0.0, "meteor": 0.9}},
        {"text": "a", "token_ids": [1] * 90, "reward": None, "rewards": {"length": None}, "finish_reason": "length"},
    ]
    paths.completions(1).unlink()
    append(
        paths.completions(1), [{"prompt_id": "p", "sample": n, "finish_reason": "stop"} | r for n, r in enumerate(rows)]
    )
    assert list(searched(paths, "a").hits.order(sort, backwards=backwards)) == expected


def test_damaged_missing_and_empty_files(tmp_path: Path) -> None:
    """What cannot be read is passed over, and counted where it has the text; the rest is found."""
    paths = make_run(tmp_path)
    whole = len(searched(paths, "heating").hits)
    paths.completions(2).write_bytes(b"")
    paths.completions(3).mkdir()
    paths.completions(4).write_bytes(b'\xff\xfe heating\n[1, "heating"]\n{"text": 5, "prompt_id": "heating"}\n')
    (paths.root / "completions" / "notes.txt").write_text("heating")
    with paths.completions(60).open("ab") as file:
        file.write(b'{"text": "heating and hal')
    evaluate(paths, "start", {"a": "heating"}, scored=False)
    scan = searched(paths, "heating")
    assert (len(scan.hits), scan.damaged) == (whole + 2, 3)
    assert list_steps(paths) == [1, 2, 3, 4, 60]
    paths.completions(1).unlink()
    assert scan.sample(0) is None
    assert len(searched(RunPaths(tmp_path / "gone"), "heating").hits) == 0


def test_a_line_without_end(tmp_path: Path) -> None:
    paths = make_run(tmp_path)
    with paths.completions(60).open("ab") as file:
        file.write(b'{"text": "' + b"x" * (10 << 20) + b'"}\n' + json.dumps({"text": "after it"}).encode() + b"\n")
    scan = searched(paths, "after it")
    sample = scan.sample(0)
    assert (len(scan.hits), scan.damaged, sample and sample.text) == (1, 1, "after it")


def test_a_search_follows_the_run(tmp_path: Path) -> None:
    """New steps and new completions of an evaluation are searched, the others not again; half a line waits."""
    paths = make_run(tmp_path)
    evaluate(paths, "start", {"a": "heating"}, scored=False)
    scan = searched(paths, "heating")
    before = len(scan.hits)
    append(paths.completions(61), completions(61, 80))
    made: dict[str, Any] = {"id": "b", "text": "the heating", "token_ids": [], "finish_reason": "stop"}
    line = json.dumps(made)
    path = paths.stage_evaluation("start") / "generations.jsonl"
    with path.open("a") as file:
        file.write(line[:30])
    scan.follow(PATIENCE_S)
    found = len(scan.hits)
    assert found == before + sum("heating" in row["text"].lower() for row in completions(61, 80))
    with path.open("a") as file:
        file.write(line[30:] + "\n")
    scan.follow(PATIENCE_S)
    assert len(scan.hits) == found + 1
    assert (scan.damaged, scan.done) == (0, scan.files)


def test_a_search_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the file that it is in, keeps what was found, and does not go on."""
    paths = make_run(tmp_path)
    content = paths.completions(60).read_bytes()
    for step in range(61, 70):
        paths.completions(step).write_bytes(content)
    scan = Scan(paths, Wanted("the"), SETTINGS)
    take = Scan._take

    def cancelled(scan: Scan, source: Source, offset: int, sample: SampledRollout | None) -> None:
        if source == 62:
            scan.cancel()
        take(scan, source, offset, sample)

    monkeypatch.setattr(Scan, "_take", cancelled)
    scan.follow(PATIENCE_S)
    assert not scan.running
    assert (scan.done, scan.files, scan.hits.sources, scan.complete) == (4, 11, [1, 60, 61, 62], False)
    count = len(scan.hits)
    scan.follow(PATIENCE_S)
    assert len(scan.hits) == count


def test_memory_is_bounded() -> None:
    """A hit is some sixty bytes; above the limit hits are counted only."""
    hits = Hits()
    sample = SampledRollout(rewards={"length": 1.0, "meteor": 0.5}, reward=1.5)
    for n in range(MAX_HITS + 5):
        hits.add(n // 32, n, sample, 0.0)
    assert (len(hits), hits.count) == (MAX_HITS, MAX_HITS + 5)
    columns = (hits.rewards, hits.tokens, hits.errors, hits._sources, hits._offsets, *hits.signals.values())
    assert sum(column.itemsize * len(column) for column in columns) <= 64 * MAX_HITS


def test_groups(tmp_path: Path) -> None:
    """Posts and references come from the first row of each group; the EOS is no token of the text. The first rollouts
    of a prompt are of the earliest step with it; a prompt that is new has none."""
    paths = make_run(tmp_path)
    first, second = read_groups(paths, 60)
    assert [g.prompt_id for g in (first, second)] == ["train-0001", "train-0070"]
    assert first.post.startswith("I share a flat")
    assert first.references == ("The heating in our flat fails and I want to move out.",)
    assert [s.tokens for s in first.samples] == [59, 62, 65, 69]
    assert [s.truncated for s in first.samples] == [False, False, False, True]
    earlier = first_group(paths, first, 1)
    assert earlier is not None
    assert (earlier.step, earlier.prompt_id) == (1, first.prompt_id)
    assert first_group(paths, second, 1) is None


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


def test_changes() -> None:
    assert changes("a b c", "a x c d") == [("same", "a"), ("gone", "b"), ("new", "x"), ("same", "c"), ("new", "d")]


def test_no_escape_reaches_the_terminal() -> None:
    """A model may sample any character; what a terminal would obey becomes a space."""
    assert clean("a\x1b[31mb\x07\r\n\tc\u202e") == "a [31mb  \n    c "
