"""The records of a run's files: what is read, what is refused, and what a lenient reader keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from smolsum import files
from smolsum.errors import SmolsumError
from smolsum.runs import records, typed_json
from smolsum.runs.evaluation_records import Generation, Judgement, Score, Summary
from smolsum.runs.records import Event, RunInfo, RunSettings, Status

SUMMARY: dict[str, Any] = {
    "schema_version": 1,
    "n": 2,
    "label": "start",
    "step": 0,
    "model": {"path": "builtin:tiny", "weights": "abc"},
    "tokenizer": "def",
    "data": {"test": {"fingerprint": "d1", "prompts": "p1"}},
    "task": {"name": "tldr", "target_tokens": 64, "system_prompt": ""},
    "headlines": [{"metric": "rouge", "title": "ROUGE-L", "text": "0.5"}],
    "judging": {"model": "j", "rounds": 3, "usage": {"dollars": None}, "noise": {"clarity": {"round_sd": 0.1}}},
    "metrics": {"rouge": 0.5, "meteor": None, "tokens": 3},
}
GENERATION = {
    "id": "a", "text": "é", "token_ids": [1, 2], "finish_reason": "stop", "seed": 0, "worker": "local",
    "policy_version": 4,
}  # fmt: skip


def at(value: Any, path: str, put: Any) -> Any:
    """A copy of the value with something else at a dotted path."""
    copy = json.loads(json.dumps(value))
    *folders, last = path.split(".")
    place = copy
    for key in folders:
        place = place[int(key) if isinstance(place, list) else key]
    place[int(last) if isinstance(place, list) else last] = put
    return copy


def test_reads_a_summary(tmp_path: Path) -> None:
    """Known fields are typed, unknown ones are accepted, and the keys of a task's settings stay."""
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(SUMMARY | {"from_a_later_version": [1]}))
    summary = typed_json.read_summary(tmp_path, needs=["n", "metrics"])
    assert summary.metrics == {"rouge": 0.5, "meteor": None, "tokens": 3.0}
    assert (summary.n, summary.model.path, summary.data["test"].fingerprint) == (2, "builtin:tiny", "d1")
    assert summary.task == SUMMARY["task"]
    assert summary.judging is not None
    assert summary.judging.noise["clarity"]["round_sd"] == 0.1
    assert summary.judge is None


@pytest.mark.parametrize(
    ("path", "put", "named"),
    [
        ("n", True, "n is 'True'"),
        ("n", -1, "n is '-1'"),
        ("n", 2**60, "n is '1152921504606846976'"),
        ("step", "x", "step is 'x'"),
        ("model", [1], "model is '[1]'"),
        ("headlines.0", {"metric": "x"}, "headlines[0] has no title"),
        ("metrics.rouge", "x", "metrics.rouge is 'x'"),
        ("metrics.rouge", float("nan"), "metrics.rouge is 'nan'"),
        ("metrics.rouge", 10**400, "metrics.rouge is '1000000000000000000000000000000000000000'"),
        ("headlines.0.text", 5, "headlines[0].text is '5'"),
        ("task.target_tokens", "x", "it is"),
        ("judging.noise.clarity.round_sd", [], "judging.noise.clarity.round_sd is '[]'"),
    ],
)
def test_a_damaged_summary_names_its_field(tmp_path: Path, path: str, put: Any, named: str) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(at(SUMMARY, path, put)))
    with refuses(file, named, f"remove {file} and evaluate again", error=SmolsumError):
        typed_json.read_summary(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with refuses(tmp_path / "run.json", error=SmolsumError):
        typed_json.read(tmp_path / "run.json", RunInfo)
    (tmp_path / "config.toml").write_bytes(b"a = ")
    with refuses(tmp_path / "config.toml", error=SmolsumError):
        typed_json.read(tmp_path / "config.toml", RunSettings)


def test_a_missing_file_and_a_missing_key(tmp_path: Path) -> None:
    with refuses(tmp_path / "status.json", "No such file", error=SmolsumError):
        typed_json.read(tmp_path / "status.json", Status)
    (tmp_path / "status.json").write_text("{}")
    assert typed_json.read(tmp_path / "status.json", Status) == Status()
    with refuses(tmp_path / "status.json", "no state", error=SmolsumError):
        typed_json.read(tmp_path / "status.json", Status, needs=["state"])


def test_lines_name_the_damaged_one(tmp_path: Path) -> None:
    """Line and field, counted from 1; a last line without its end is not there yet."""
    path = tmp_path / "generations.jsonl"
    assert typed_json.read_lines(path, Generation) == []
    path.write_bytes(typed_json.encode(Generation, GENERATION) * 2 + b'{"id"')
    assert [one.token_ids for one in typed_json.read_lines(path, Generation)] == [[1, 2]] * 2
    for put in (-1, "x"):
        damaged = typed_json.encode(Generation, GENERATION) + json.dumps(at(GENERATION, "token_ids.1", put)).encode()
        path.write_bytes(damaged + b"\n")
        with refuses(f"{path}:2", f"token_ids[1] is '{put}'", "remove that line", error=SmolsumError):
            typed_json.read_lines(path, Generation, hint="remove that line")
    path.write_bytes(b"{}\n[]\n")
    with pytest.raises(SmolsumError, match=r"generations\.jsonl:1 .* no id"):
        typed_json.read_lines(path, Generation)


def test_lines_of_a_file_that_does_not_grow(tmp_path: Path) -> None:
    """Empty lines are passed over and counted, and the last one needs no end."""
    path = tmp_path / "scores.jsonl"
    path.write_bytes(b'\n{"id": 1}\n \n{"id": 2}')
    assert list(files.json_lines(path, growing=False)) == [(2, {"id": 1}), (4, {"id": 2})]
    assert list(files.json_lines(tmp_path / "none.jsonl")) == []


def test_the_free_keys_of_a_score_are_its_metrics() -> None:
    """Also one that has the name of a fixed key, if it is a number."""
    row = {"id": 7, "split": "test", "text": "t", "rouge": 0.5, "passed": 1, "judge": 0.25, "rounds": {"a": [1.0]}}
    score = typed_json.parse(row, Score, "scores.jsonl:1")
    assert (score.id, score.split, score.judge, score.rounds) == (7, "test", None, {"a": [1.0]})
    assert score.metrics == {"rouge": 0.5, "passed": 1, "judge": 0.25}
    assert typed_json.encode(Score, row) == json.dumps(row).encode() + b"\n"


def test_a_judgement_has_a_score_between_0_and_1() -> None:
    """Null where the judge failed; a line without the key is damaged."""
    row = {"id": "a", "round": 1, "metric": "m", "judge": "j", "key": "k", "score": None}
    judgement = typed_json.parse(row, Judgement, "")
    assert (judgement.score, judgement.attempts) == (None, 0)
    assert list(typed_json.to_row(judgement)) == list(Judgement.__struct_fields__)
    assert typed_json.parse(row | {"score": 1}, Judgement, "").score == 1.0
    for wrong in (row | {"score": 1.5}, {k: v for k, v in row.items() if k != "score"}, row | {"round": "1"}):
        with pytest.raises(SmolsumError):
            typed_json.parse(wrong, Judgement, "")


def test_salvage_leaves_out_what_is_wrong() -> None:
    """At any depth, and says so; a record without a field that it needs is None."""
    problems: list[str] = []
    wrong = at(at(SUMMARY, "metrics.rouge", "x"), "judging.noise.clarity.round_sd", "x") | {"n": [], "model": 5}
    summary = typed_json.salvage(wrong | {"headlines": [{"metric": 1}, SUMMARY["headlines"][0]]}, Summary, problems)
    assert summary is not None
    assert summary.metrics == {"meteor": None, "tokens": 3.0}
    assert summary.judging is not None
    assert (summary.judging.rounds, summary.judging.noise["clarity"]) == (3, {})
    assert (summary.n, summary.model.path, summary.tokenizer) == (0, "", "def")
    assert [one.title for one in summary.headlines] == ["ROUGE-L"]
    assert [problem.split()[0] for problem in problems] == [
        "n", "model", "headlines[0].metric", "headlines[0]", "headlines[0]", "judging.noise.clarity.round_sd",
        "metrics.rouge",
    ]  # fmt: skip
    assert typed_json.salvage({"stages": {"a": {"rewards": {"x": 1, "y": "z"}}, "b": 5}}, RunSettings) == RunSettings(
        stages={"a": records.StageSettings(rewards={"x": 1.0})}
    )
    assert typed_json.salvage(GENERATION | {"finish_reason": "x"}, Generation) is None
    assert typed_json.salvage([1], Status) is None


def test_encode_keeps_the_keys_as_they_are() -> None:
    """The bytes are those of the row; what could not be read again is an error of the caller."""
    row = {"time": "t", "attempt": 1, "kind": "warning", "message": "é", "more": [1], "hint": None}
    assert typed_json.encode(Event, row) == json.dumps(row, ensure_ascii=False).encode() + b"\n"
    with pytest.raises(TypeError, match="Event"):
        typed_json.encode(Event, row | {"attempt": "x"})
    with pytest.raises(ValueError, match="JSON"):
        typed_json.encode(Event, row | {"more": float("nan")})
