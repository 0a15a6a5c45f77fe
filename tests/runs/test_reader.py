"""Files that grow while they are read."""

from pathlib import Path

from smolsum.files import replace
from smolsum.runs.reader import Document, LineCount, Tail
from smolsum.runs.records import Status


def test_only_new_lines(tmp_path: Path) -> None:
    """Each line is read once; one without its end waits for it; a missing file is an empty one."""
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a":')
    assert list(tail.read()) == [{"a": 1}, {"a": 2}]
    assert list(tail.read()) == []
    assert not tail.more()
    with path.open("a") as file:
        file.write(" 3}\n")
    assert list(tail.read()) == [{"a": 3}]
    assert not tail.more()


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n\x00\xff\n[1]\n{"a": 2}\n')
    tail = Tail(path)
    assert list(tail.read()) == [{"a": 1}, {"a": 2}]


def test_a_replaced_file_begins_anew(tmp_path: Path) -> None:
    """A resumed run takes lines back by replacing the file: it is read from its start."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = Tail(path)
    list(tail.read())
    replace(path, b'{"a": 1}\n', "")
    assert tail.more()
    assert tail.restarts == 1
    assert list(tail.read()) == [{"a": 1}]


def test_lines_are_counted_once(tmp_path: Path) -> None:
    """Only what a file has gained is read again; one that was replaced, or another file, is counted anew."""
    path, count = tmp_path / "lines.jsonl", LineCount()
    path.write_bytes(b"{}\n" * 1000)
    assert count.count(path) == 1000
    with path.open("r+b") as file:
        file.write(b" " * 2990)  # lines that a second look at all of it would miss
        file.seek(0, 2)
        file.write(b"{}\n{")
    assert count.count(path) == 1001
    replace(path, b"{}\n", "")
    assert count.count(path) == 1
    (tmp_path / "other.jsonl").write_bytes(b"{}\n{}\n")
    assert count.count(tmp_path / "other.jsonl") == 2


def test_document(tmp_path: Path) -> None:
    """Parsed when it changed; gone or half written, the last value stays."""
    path = tmp_path / "status.json"
    document = Document(path, Status)
    assert not document.refresh()
    path.write_text('{"step": 1}')
    assert document.refresh()
    assert not document.refresh()
    path.write_text('{"step": ')
    assert not document.refresh()
    path.unlink()
    assert not document.refresh()
    assert document.value == Status(step=1)
