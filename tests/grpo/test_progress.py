"""What the display of a run says, on a terminal and elsewhere."""

import functools
import io
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
from support.training import PATIENCE_S, wait_until

from smolsum import console
from smolsum.console import duration
from smolsum.grpo.progress import Progress
from smolsum.rollout.sampling_count import SamplingCount

METRICS = {
    "reward": -0.2134, "reward_std": 0.24, "frac_reward_zero_std": 0.375, "completions/mean_length": 68.94,
    "length/within_tol": 0.41, "grad_norm": 2.4, "perf/step_s": 1.3,
}  # fmt: skip
WATCHED = {"within_tol": ("length/within_tol",)}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    yield
    console.set_plain(False)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the new lines on stderr, having made sure that stdout has none."""
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize(
    ("stages", "every", "metrics", "lines"),
    [
        # pairs in a fixed order, with the time left for all stages
        (
            [("length", 120), ("quality", 120)], 10, {10: METRICS},
            ["stage=length step=10/240 reward=-0.213 std_in_group=0.240 zero_std=0.38 tokens=68.9 within_tol=0.41 "
             "s/step=1.30 eta=4m59s"],
        ),
        # a metric that a step does not have is not invented, and without a timed step there is no eta
        ([("quality", 3)], 1, {1: {"reward": 0.5}}, ["stage=quality step=1/3 reward=0.500"]),
        # a broken run is seen to be broken
        (
            [("quality", 3)], 1, {1: {"reward": float("nan"), "reward_std": float("inf")}},
            ["stage=quality step=1/3 reward=nan std_in_group=inf"],
        ),
        # the first step is reported, every tenth of the run, and the last one of each stage
        (
            [("length", 12), ("quality", 13)], 10, {step: {} for step in range(1, 26)},
            ["stage=length step=1/25", "stage=length step=10/25", "stage=length step=12/25", "stage=quality step=20/25",
             "stage=quality step=25/25"],
        ),
        # the time left comes from the mean of the last twenty steps, so a slow start is forgotten
        (
            [("length", 40)], 30,
            {step: {"perf/step_s": 100.0 if step <= 10 else float(step % 2 + 1)} for step in range(1, 31)},
            ["stage=length step=1/40 s/step=100.00 eta=1h05m", "stage=length step=30/40 s/step=1.00 eta=15s"],
        ),
        # nor does a night that the machine slept through count
        (
            [("length", 40)], 30, {step: {"perf/step_s": 3600.0 if step == 20 else 2.0} for step in range(1, 31)},
            ["stage=length step=1/40 s/step=2.00 eta=1m18s", "stage=length step=30/40 s/step=2.00 eta=20s"],
        ),
    ],
    ids=["whole", "missing", "not finite", "which", "eta", "stopped"],
)  # fmt: skip
def test_lines_of_reports(
    stages: list[tuple[str, int]], every: int, metrics: dict[int, dict[str, float]], lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    progress = Progress(report_every=every)
    progress.plan(stages, WATCHED)
    for step, values in metrics.items():
        progress.step(stages[step > stages[0][1]][0], step, values)
    assert said(capsys) == lines


def test_what_the_task_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """A line has the task's own figure under its name, a validation's, whatever its step, by the name that it has
    there; without a task that watches something it has no figure."""
    progress = Progress(report_every=1)
    progress.plan([("standard", 2)], {"passed": ("json/passed", "passed")})
    progress.step("standard", 1, METRICS | {"json/passed": 0.25})
    progress.validation(1, {"reward": 0.5, "passed": 0.75, "completions/mean_length": 66.0})
    first, second = said(capsys)
    assert "tokens=68.9 passed=0.25 s/step=1.30" in first
    assert second == "validation step=1 reward=0.500 tokens=66.0 passed=0.75"
    progress.plan([("standard", 2)])
    progress.step("standard", 1, METRICS)
    assert "tokens=68.9 s/step=1.30" in said(capsys)[0]


def test_words_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    """Phases, notes and warnings are lines, and the results a table."""
    with Progress() as progress:
        progress.phase("loading builtin:tiny …")
        progress.note("checkpoint step 100 saved")
        progress.warn("no WordNet")
        tables = [("test split", ["stage", "tokens"], [["start", "47.1"]]), ("asked and got", ["stage"], [["start"]])]
        progress.results(tables)
    table = ["test split", "stage  tokens", "start    47.1", "asked and got", "stage", "start"]
    assert said(capsys) == ["loading builtin:tiny …", "checkpoint step 100 saved", "warning: no WordNet", *table]


@pytest.mark.parametrize("on_terminal", [True, False])
def test_quiet_leaves_warnings(
    on_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    if on_terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
    with Progress(quiet=True, report_every=1, heartbeat_s=0.0) as progress:
        progress.phase("loading …")
        progress.plan([("length", 2)])
        progress.step("length", 1, METRICS)
        progress.validation(1, METRICS)
        progress.warn("no WordNet")
        progress.results([("test split", ["stage"], [["start"]])])
    text = terminal.getvalue() if on_terminal else "\n".join(said(capsys))
    assert re.sub(r"\x1b\[[\d;]*m", "", text).strip() == "warning: no WordNet"


def test_heartbeat_breaks_a_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """After half a minute without a line one says what the run is at and since when; speech puts it off."""
    clock = SimpleNamespace(now=100.0)
    progress = Progress(clock=lambda: clock.now)
    progress.phase("loading builtin:tiny …")
    clock.now += 29
    assert progress.beat() == 1
    clock.now += 1
    assert progress.beat() == 30
    progress.plan([("length", 240)])
    progress.step("length", 1, METRICS)
    first = said(capsys)
    clock.now += 20
    progress.note("checkpoint saved")
    clock.now += 29
    assert progress.beat() == 1
    clock.now += 1
    progress.beat()
    assert first[:2] == ["loading builtin:tiny …", 'heartbeat elapsed=30s doing="loading builtin:tiny …"']
    assert said(capsys) == ["checkpoint saved", "heartbeat elapsed=1m20s stage=length step=1/240 eta=5m11s"]


def test_completions_under_way_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each count, the first of its kind once it has taken a moment, the next ones if they take long; a
    heartbeat has the newest count next to the step, and what follows once all are there."""
    clock = SimpleNamespace(now=100.0)
    progress = Progress(clock=lambda: clock.now)
    progress.plan([("length", 240)])

    def count(done: int, seconds: float, **named: str) -> None:
        clock.now += seconds
        progress.counting("sampling", SamplingCount(done, 16, 85.2, 12.0) if done else SamplingCount(0, 16), **named)

    count(0, 0, of="step 1")
    count(3, 2, of="step 1")
    assert said(capsys) == []
    count(5, 2, of="step 1")
    assert said(capsys) == ["sampling step 1: 5/16 completions 85 tok/s eta 12s"]
    count(7, 31, of="step 1")
    progress.beat()
    progress.step("length", 1, {})
    count(0, 1, of="step 2")
    count(3, 9, of="step 2")
    count(5, 1, of="step 2")
    count(9, 31, of="step 2")
    progress.beat()
    count(16, 31, of="step 2", then="update of step 2")
    progress.beat()
    count(0, 1, of="step 3")
    count(16, 11, of="step 3")  # they came all at once: there is nothing to wait for
    progress.counting("update", SamplingCount(0, 4, noun="groups"), of="of step 2")
    clock.now += 5
    progress.counting("update", SamplingCount(1, 4, left_s=15.0, noun="groups"), of="of step 2")
    assert said(capsys) == [
        'heartbeat elapsed=35s now="sampling step 1" 7/16 completions 85 tok/s eta 12s',
        "stage=length step=1/240",
        "sampling step 2: 5/16 completions 85 tok/s eta 12s",
        'heartbeat elapsed=1m17s stage=length step=1/240 now="sampling step 2" 9/16 completions 85 tok/s eta 12s',
        'heartbeat elapsed=1m48s stage=length step=1/240 now="update of step 2"',
        "update of step 2: 1/4 groups eta 15s",
    ]


def test_heart_beats_by_itself_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread gives the sign of life while the display is open, and has ended when it is closed."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(heartbeat_s=0.01) as progress:
        wait_until(lambda: stream.getvalue().count("heartbeat") >= 3)
        assert progress._heart.is_alive()
    assert not progress._heart.is_alive()
    lines = stream.getvalue()
    progress.close()
    assert stream.getvalue() == lines


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_lines_on_a_terminal(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv(name, value)
    with Progress(report_every=1) as progress:
        progress.plan([("length", 2)])
        progress.step("length", 1, {"reward": 0.5})
    assert terminal.getvalue() == "stage=length step=1/2 reward=0.500\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (302, "5m02s"), (3599.7, "1h00m"), (10980, "3h03m"), (187200, "2d04h")],
)
def test_a_time_shows_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


SESSION = """
import ast, sys
from smolsum.grpo.progress import Progress
metrics = ast.literal_eval(sys.argv[1])
with Progress(report_every=2) as progress:
    progress.phase("loading builtin:tiny")
    progress.plan([("length", 3), ("quality", 2)], {"within_tol": ("length/within_tol",)})
    for step in range(1, 6):
        progress.step("length" if step <= 3 else "quality", step, metrics)
        if step == 2:
            progress.validation(2, {"reward": -0.2})
            progress.warn("no WordNet")
            print("a stray line", file=sys.stderr)
    progress.phase("evaluating")
    progress.results([("test split", ["stage", "tokens"], [["start", "47.1"]])])
"""


@functools.cache
def on_terminal(columns: int) -> list[list[str]]:
    """Returns what a terminal of that width shows while `SESSION` runs in it, after each line or erasure."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    # the environment is given, as readline in this process may have set COLUMNS unseen by os.environ
    command = [sys.executable, "-c", SESSION, str(METRICS)]
    session = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=dict(os.environ))
    os.close(follower)
    sent = b""
    try:
        while chunk := os.read(leader, 4096):
            sent += chunk
    except OSError:
        pass  # Linux reports the end of the other side as an error
    os.close(leader)
    assert session.wait(timeout=PATIENCE_S) == 0
    return replay(sent.decode())


def replay(sent: str) -> list[list[str]]:
    """Returns the screens that a terminal goes through, for the few controls that a bar needs."""
    lines, row, column, screens = [""], 0, 0, []
    for token in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[^\x1b]", sent):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token == "\x1b[1A":
            row -= 1
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token.startswith("\x1b"):
            assert token.endswith("m") or token in ("\x1b[?25l", "\x1b[?25h"), token
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
        if token in ("\n", "\x1b[2K"):
            screens.append([line.rstrip() for line in lines])
    return [*screens, [line.rstrip() for line in lines]]


def test_terminal_keeps_rows_and_drops_the_bar() -> None:
    """A terminal ends with the table's rows under one head, all that was said, and no trace of the bar. No line that
    was said is taken back or moved."""
    expected = [
        "loading builtin:tiny",
        "stage       step  reward  std_in_group  zero_std  tokens  within_tol  s/step",
        "length       1/5  -0.213         0.240      0.38    68.9        0.41    1.30",
        "length       2/5  -0.213         0.240      0.38    68.9        0.41    1.30",
        "validation     2  -0.200             -         -       -           -       -",
        "warning: no WordNet",
        "a stray line",
        "length       3/5  -0.213         0.240      0.38    68.9        0.41    1.30",
        "quality      4/5  -0.213         0.240      0.38    68.9        0.41    1.30",
        "quality      5/5  -0.213         0.240      0.38    68.9        0.41    1.30",
        "evaluating",
        "test split",
        "┏━━━━━━━┳━━━━━━━━┓",
        "┃ stage ┃ tokens ┃",
        "┡━━━━━━━╇━━━━━━━━┩",
        "│ start │   47.1 │",
        "└───────┴────────┘",
        "",
    ]
    screens = on_terminal(80)
    assert screens[-1] == expected
    rows = [[line for line in screen if line.startswith(("length ", "quality ", "validation "))] for screen in screens]
    assert all(after[: len(before)] == before for before, after in pairwise(rows))


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_bar_is_one_line_that_fits(columns: int) -> None:
    """There is never a second bar, nothing is wider than the terminal, and the cursor comes back."""
    bars = []
    for screen in on_terminal(columns):
        assert max(map(len, screen)) <= columns
        shown = [line for line in screen if re.match(r"[-\\|/ ] (length|quality)", line)]
        assert len(shown) <= 1
        bars += shown
    heads = [line.split() for line in on_terminal(columns)[-1] if line.startswith("stage ")]
    assert [head[-1] for head in heads] == [{40: "std_in_group", 80: "s/step", 120: "grad_norm"}[columns]]
    last = bars[-1]
    assert "5/5  eta    0s" in last
    assert ("reward -0.213" in last, "tokens" in last) == (columns > 40, columns > 80)
    assert last.count("━") > 5
