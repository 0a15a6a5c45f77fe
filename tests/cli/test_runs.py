"""`smolsum runs`: which runs, in which order, what they differ in, and how they are deleted."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from support.calls import Call, done
from support.disks import mounted
from support.refusals import assert_refused
from support.terminals import Terminal
from support.watching import evaluate, make_run, status

from smolsum.runs.paths import RunPaths, acquire


@pytest.fixture
def call(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(tmp_path))
    return partial(call, "runs")


@pytest.fixture
def three(tmp_path: Path) -> list[RunPaths]:
    """A finished run, one that failed, and another finished one with other settings."""
    found = [make_run(tmp_path, name, state=state) for name, state in (("a-1", "finished"), ("a-2", "failed"))]
    found.append(make_run(tmp_path, "b-1", state="finished", steps=30))
    config = found[2].config.read_text()
    found[2].config.write_text(config.replace("target_tokens = 64", "target_tokens = 32"))
    return found


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_selected_by_name_and_state(call: Call, three: list[RunPaths]) -> None:
    assert sorted(names(call()[1])) == ["a-1", "a-2", "b-1"]
    assert sorted(names(call("a-*")[1])) == ["a-1", "a-2"]
    assert names(call("--state=failed")[1]) == ["a-2"]
    assert names(call("b-*", "--state=FINISHED", "a-1")[1]) != ["a-2"]
    assert names(call("--sort=step")[1])[0] == "b-1"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["c-*"], "no run 'c-*'"),
        (["--state=gone"], "no run is in the state 'gone'"),
        (["--sort=metoer"], "no column 'metoer' to sort by"),
        (["--settings", "a-1"], "fewer than two are selected"),
        (["--since=yesterday"], "'yesterday' is no time with its zone"),
        (["--since=2026-11-20T09:00:00Z", "--delete", "a-1"], "--since and --delete cannot be combined"),
        (["--delete"], "would delete everything"),
        (["--delete", "a-1"], "--delete asks before it deletes 1 folder\n"),
        (["--delete", "a-*"], "--delete asks before it deletes 2 folders"),
    ],
)
def test_requests_without_a_meaning(flags: list[str], says: str, call: Call, three: list[RunPaths]) -> None:
    """One error; nothing is deleted."""
    refused = call(*flags)
    assert_refused(refused, says)
    assert refused[2].count("error:") == 1
    assert all(run.root.is_dir() for run in three)


def test_settings_that_differ(call: Call, three: list[RunPaths]) -> None:
    """A row for each, a column for each run; the same settings are said in a sentence."""
    out, _ = done(call("--settings"))
    assert "task.target_tokens" in names(out)
    assert call("a-*", "--settings")[2] == "these 2 runs have the same settings\n"


def test_deleting(call: Call, three: list[RunPaths], tmp_path: Path) -> None:
    """What is named goes, evaluations with their run; a run that is being trained stays, and so does all else."""
    evaluate(three[0], "start", {"test-1": "x"})
    with acquire(three[2]):
        assert_refused(call("--delete", "--yes", "b-1", "a-1"), "run 'b-1' is being trained")
    assert all(run.root.is_dir() for run in three)
    assert done(call("--delete", "--yes", "--state=failed"))[0] == f"{three[1].root}\n"
    assert [run.root.is_dir() for run in three] == [True, False, True]


def test_names_go_before_patterns_and_links_stay(call: Call, three: list[RunPaths], tmp_path: Path) -> None:
    """A run whose name looks like a pattern is meant by it alone, and a link is not followed."""
    three[1].root.rename(tmp_path / "b[-]1")
    assert call("--delete", "--yes", "b[-]1")[1] == f"{tmp_path / 'b[-]1'}\n"
    assert three[2].root.is_dir()
    (tmp_path / "alias").symlink_to(three[0].root)
    assert_refused(call("--delete", "--yes", "alias"), "alias", "is a link")
    assert three[0].root.is_dir()


def test_what_cannot_be_deleted_is_named(call: Call, three: list[RunPaths]) -> None:
    """In one error, after what was deleted."""
    with mounted(three[1].root / "held", 64):
        code, out, err = call("--delete", "--yes", "a-1", "a-2")
    assert (code, out) == (1, f"{three[0].root}\n"), err
    assert f"cannot delete all of {three[1].root}: " in err


def test_deleting_asks_first(three: list[RunPaths], tmp_path: Path) -> None:
    """On a terminal; only yes is yes."""
    for answer, deleted in (("\n", False), ("n\n", False), ("y\n", True)):
        with Terminal(["runs", "--delete", "a-1", f"--runs-dir={tmp_path}"]) as terminal:
            terminal.until("[y/N]")
            terminal.send(answer)
            assert terminal.code() == (0 if deleted else 130)
        assert three[0].root.is_dir() is not deleted


def test_what_changed_since_a_time(call: Call, three: list[RunPaths]) -> None:
    """Only that, and what is STALE, which changes no file. The answer has the time for the next question."""
    status(three[1].root, "running", 60, 80)
    for path in three[0].root.parent.rglob("*"):
        os.utime(path, (0, 0))
    now = json.loads(call("--json")[1])["now"]
    assert names(call(f"--since={now}")[1]) == ["a-2"]
    three[2].events.touch()
    found = json.loads(call("--json", f"--since={now}")[1])
    assert sorted(one["name"] for one in found["runs"]) == ["a-2", "b-1"]
    assert found["now"] > now
    three[2].events.unlink()
    assert call("a-1", f"--since={now}")[1:] == ("", f"nothing changed since {now}\n")
