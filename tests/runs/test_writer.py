"""Writing the files of a run: whole lines and whole files, resumption to the byte, and a disk that refuses."""

import errno
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refuses
from support.training import PATIENCE_S, wait_until

from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.runs.paths import RunPaths, create_run
from smolsum.runs.writer import RunWriter, discard_after


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return create_run(tmp_path, "a")


@pytest.fixture
def writer(paths: RunPaths) -> Iterator[RunWriter]:
    """The writer of its second attempt."""
    with RunWriter(paths, 2) as found:
        yield found


def train(paths: RunPaths, attempt: int, steps: range) -> None:
    """Writes the metrics of some steps, as a deterministic trainer would."""
    with RunWriter(paths, attempt) as writer:
        for step in steps:
            writer.metrics({"step": step, "loss": 1 / (step + 3), "stage": "length", "kl": None})


# what is written


def test_metrics_are_lines_that_can_be_read_at_once(writer: RunWriter, paths: RunPaths) -> None:
    """Each row is on disk when the call returns; the first one carries the schema's version."""
    writer.metrics({"step": 1, "reward": -0.25})
    assert paths.metrics.read_bytes() == b'{"schema_version": 1, "step": 1, "reward": -0.25}\n'
    writer.metrics({"step": 2, "reward": 0.1})
    assert read_jsonl(paths.metrics)[1] == {"step": 2, "reward": 0.1}


def test_what_is_not_finite(writer: RunWriter, paths: RunPaths) -> None:
    """NaN and infinities are null in the file, also deep in a row, the rest is as it was, and an event names them."""
    writer.metrics({"step": 7, "loss": math.nan, "kl": -math.inf, "reward": 0.5})
    writer.completions(2, [{"id": "x", "logprobs": (-0.5, -math.inf), "rewards": {"bleu": math.nan}}])
    assert read_jsonl(paths.metrics) == [{"schema_version": 1, "step": 7, "loss": None, "kl": None, "reward": 0.5}]
    assert read_jsonl(paths.completions(2)) == [{"id": "x", "logprobs": [-0.5, None], "rewards": {"bleu": None}}]
    told = [(event["kind"], event["step"], event["keys"]) for event in read_jsonl(paths.events)]
    assert told == [("warning", 7, ["loss", "kl"]), ("warning", 2, ["logprobs", "rewards"])]


def test_event(writer: RunWriter, paths: RunPaths) -> None:
    writer.event("checkpoint", "step 100 saved", step=100, bytes=5, loss=math.nan)
    [event] = read_jsonl(paths.events)
    written = datetime.fromisoformat(event.pop("time"))
    assert written.utcoffset() is not None
    assert abs((datetime.now(written.tzinfo) - written).total_seconds()) < 60
    known = {"attempt": 2, "kind": "checkpoint", "message": "step 100 saved", "step": 100, "bytes": 5}
    assert event == known | {"loss": None}


def test_status(writer: RunWriter, paths: RunPaths) -> None:
    """The status says who writes the run, and where it stands; the last one is the one that counts."""
    writer.status("starting", step=0, phase="loading", stage="length")
    writer.status("running", step=5, phase="update", stage="meteor", total=100)
    status = json.loads(paths.status.read_bytes())
    expected = {"state": "running", "step": 5, "phase": "update", "stage": "meteor", "attempt": 2, "total": 100}
    assert status | expected | {"pid": os.getpid()} == status
    assert status["host"]
    assert status["heartbeat"].endswith("Z")
    assert not list(paths.root.glob(".*"))


def test_completions_of_a_step_that_is_run_again(writer: RunWriter, paths: RunPaths) -> None:
    """A step's rollouts are one file, which the same step of a later attempt replaces."""
    writer.completions(4, [{"text": "old", "token_ids": (1, 2)}, {"text": "older"}])
    writer.completions(4, ({"text": text} for text in ("naïve 🦜", "half \udc80 pair")))
    assert read_jsonl(paths.completions(4)) == [{"text": "naïve 🦜"}, {"text": "half \udc80 pair"}]
    assert "naïve 🦜".encode() in paths.completions(4).read_bytes()
    assert [path.name for path in paths.completions(4).parent.iterdir()] == ["step-000004.jsonl"]


def test_log(writer: RunWriter, paths: RunPaths) -> None:
    writer.log("Traceback:\n  boom\n")
    writer.log("bye")
    first, second, third = paths.log(2).read_text().splitlines()
    assert (first[23:], second, third[23:]) == ("Z Traceback:", "  boom", "Z bye")


def test_half_a_line_is_removed_before_the_next(paths: RunPaths) -> None:
    paths.events.write_bytes(b'{"kind": "a"}\n{"kind": "b", "mess')
    with RunWriter(paths, 2) as writer:
        writer.event("c", "whole")
    assert [event["kind"] for event in read_jsonl(paths.events)] == ["a", "c"]


def test_a_copy_without_empty_directories(paths: RunPaths) -> None:
    for directory in ("logs", "completions"):
        (paths.root / directory).rmdir()
    with RunWriter(paths, 1) as writer:
        writer.log("x")
        writer.completions(1, [])
    assert paths.completions(1).read_bytes() == b""


# what is read


@given(
    st.lists(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.floats(allow_nan=False))),
    st.floats(0, 1),
)
def test_any_truncation_reads_as_the_rows_before_it(rows: list[dict[str, Any]], share: float) -> None:
    """However many bytes of a file are there, the rows with a complete line are read, without an error."""
    lines = [json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n" for row in rows]
    content = b"".join(lines)[: round(share * sum(map(len, lines)))]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.jsonl")
        path.write_bytes(content)
        assert read_jsonl(path) == [json.loads(line) for line in lines[: content.count(b"\n")]]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff", b"\0\0", b"", b"[" * 100_000])
def test_damage_before_the_end_is_an_error(line: bytes, tmp_path: Path) -> None:
    """A whole line that is no object is damage: the error has file and line. So has what cannot be read, which is never
    taken for an empty file, as one that is not there is."""
    path = tmp_path / "metrics.jsonl"
    assert read_jsonl(path) == []
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with refuses("metrics.jsonl:2", "not a JSON object", error=SmolsumError):
        read_jsonl(path)
    with refuses(tmp_path, error=SmolsumError):
        read_jsonl(tmp_path)


def test_concurrent_reader_sees_whole_files(writer: RunWriter, paths: RunPaths) -> None:
    """A reader at any moment gets a complete status, complete completions and complete metrics lines."""
    rows, enough = [{"id": n, "text": "x" * 5000} for n in range(20)], threading.Event()

    def write() -> None:
        for step in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            writer.status("running", step=step, phase="update", stage="s", pad="y" * (step * 97 % 9000))
            writer.completions(1, rows[: 1 + step % 20])
            writer.metrics({"step": step, "text": "z" * 3000})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_until(lambda: paths.metrics.exists() and len(read_jsonl(paths.metrics)) > 1)
        for _ in range(60):
            assert json.loads(paths.status.read_bytes())["state"] == "running"
            found = read_jsonl(paths.completions(1))
            assert found == rows[: len(found)] != []
            steps = [row["step"] for row in read_jsonl(paths.metrics)]
            assert steps == list(range(len(steps)))
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize(
    ("error", "state", "said", "hint"),
    [
        (SmolsumError("no room", hint="make room"), "failed", "no room", "make room"),
        (KeyboardInterrupt(), "interrupted", "interrupted by the user", ""),
        (ZeroDivisionError(), "failed", "ZeroDivisionError", ""),
    ],
)
def test_how_an_attempt_ended(
    error: BaseException, state: str, said: str, hint: str, writer: RunWriter, paths: RunPaths
) -> None:
    """An error keeps its words and its hint; a Ctrl-C is what people call it, and no name of a class."""
    writer.failure(error, 3)
    status = json.loads(paths.status.read_bytes())
    assert (status["state"], status["error"], status["hint"]) == (state, said, hint or paths.resume_command)
    assert read_jsonl(paths.events)[-1]["message"] == said


# resuming


@pytest.mark.parametrize(("killed", "checkpoint", "taken_back"), [(14, 10, 4), (4, -1, 4)])
def test_resumed_metrics_are_those_of_an_uninterrupted_run(
    tmp_path: Path, killed: int, checkpoint: int, taken_back: int
) -> None:
    """After a kill past the checkpoint, in the middle of a line, the metrics end up the same to the byte; without a
    checkpoint the run starts over, its schema version again on the first line."""
    whole, broken = create_run(tmp_path, "whole"), create_run(tmp_path, "broken")
    train(whole, 1, range(1, 21))
    train(broken, 1, range(1, killed))
    with broken.metrics.open("ab") as file:
        file.write(b'{"step": %d, "lo' % killed)
    after = broken.metrics.read_bytes().splitlines(keepends=True)[max(checkpoint, 0) :]

    assert discard_after(broken, checkpoint) == taken_back
    assert broken.discarded(1).read_bytes() == b"".join(after) + b"\n"
    train(broken, 2, range(max(checkpoint, 0) + 1, 21))
    assert broken.metrics.read_bytes() == whole.metrics.read_bytes()


def test_what_is_discarded_adds_up(paths: RunPaths) -> None:
    """A run stopped at its checkpoint loses nothing; two resumptions of one attempt keep what each of them took back;
    events are history and stay."""
    assert discard_after(paths, 5) == 0
    train(paths, 1, range(1, 6))
    with RunWriter(paths, 1) as writer:
        writer.event("worker", "down", step=9)
    before = paths.metrics.read_bytes()
    assert discard_after(paths, 5) == 0
    assert paths.metrics.read_bytes() == before
    assert not paths.discarded(1).exists()
    assert discard_after(paths, 4) == 1
    assert discard_after(paths, 2) == 2
    assert [row["step"] for row in read_jsonl(paths.discarded(1))] == [5, 3, 4]
    assert len(read_jsonl(paths.events)) == 1


# a disk that refuses

LIMITED = """
import resource, sys
from pathlib import Path
from smolsum.errors import SmolsumError
from smolsum.runs.writer import RunWriter
from smolsum.runs.paths import RunPaths
paths = RunPaths(Path(sys.argv[1]))
with RunWriter(paths, 1) as writer:
    writer.metrics({"step": 1})
    writer.completions(1, [{"text": "kept"}])
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    for attempt in (
        lambda: writer.metrics({"step": 2, "x": "x" * 800}),
        lambda: writer.completions(1, [{"text": "x" * 800}]),
    ):
        try:
            attempt()
        except SmolsumError as error:
            print(error.exit_code, error.message, error.hint, sep="|")
    writer.metrics({"step": 2})
"""


def test_write_that_fails_midway_leaves_what_was_there(paths: RunPaths) -> None:
    """When the system takes only a part (here, a limit on file size), that part is taken back."""
    command = [sys.executable, "-c", LIMITED, str(paths.root)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.splitlines()
    for line, path in zip(out, (paths.metrics, paths.completions(1)), strict=True):
        code, message, hint = line.split("|")
        assert (code, str(path) in message, os.strerror(errno.EFBIG) in message) == ("1", True, True)
        assert f"smolsum train --resume {paths.root}" in hint
    assert [row["step"] for row in read_jsonl(paths.metrics)] == [1, 2]
    assert read_jsonl(paths.completions(1)) == [{"text": "kept"}]
    assert [path.name for path in paths.completions(1).parent.iterdir()] == ["step-000001.jsonl"]


def test_full_disk(small_disk: Path) -> None:
    """On a full disk each write fails with the remedy, and what was written before can all be read."""
    paths = create_run(small_disk, "a")
    rows: list[Mapping[str, Any]] = [{"text": "x" * 1000}] * 40
    with RunWriter(paths, 1) as writer:
        with refuses("full", paths.root, "free space", f"--resume {paths.root}", error=SmolsumError):
            for step in range(10_000):
                writer.metrics({"step": step, "text": "x" * 700})
        with refuses("full", paths.completions(1), error=SmolsumError):
            writer.completions(1, rows)
        steps = [row["step"] for row in read_jsonl(paths.metrics)]
        assert steps == list(range(len(steps)))
        assert list(paths.completions(1).parent.iterdir()) == []
        (small_disk / "ballast").unlink()
        writer.metrics({"step": len(steps), "text": "goes on"})
        writer.completions(1, rows)
    assert read_jsonl(paths.metrics)[-1]["text"] == "goes on"
    assert len(read_jsonl(paths.completions(1))) == 40


def test_a_damaged_metrics_line_is_named(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.metrics.write_text('{"step": 1}\n{"step": "two"}\n')
    with refuses("metrics.jsonl:2", error=SmolsumError):
        discard_after(paths, 0)
