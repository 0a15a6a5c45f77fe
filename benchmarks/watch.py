"""The cost of the live view on a run of 10,000 steps: time to the first page, CPU while idle, memory.

    uv run python benchmarks/watch.py [--steps 10000] [--seconds 20]

The run is invented (tests/support/watching.py), with as many metrics in each step as a real one. Each measurement is a
separate process on a pseudo-terminal of 120 x 40, which answers what the view asks terminals for. The time to the first
page, with the last step on it, is wall time since `execve`, and CPU time, which other work on the machine changes less.
CPU shares are of one core.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.watching import make_run, row, status

TICKS = os.sysconf("SC_CLK_TCK")
QUESTION, ANSWER = b"\x1b[c", b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62;22c"
"""Device attributes, which the view asks for behind the background's colour, and both answers"""


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for steps in (options.steps // 10, options.steps):
            paths = make_run(Path(folder), f"run{steps}", steps=steps, total=options.steps)
            size = paths.metrics.stat().st_size / 1e6
            print(f"{steps} steps, {len(row(10, 100))} metrics, {size:.1f} MB of metrics.jsonl")
            for state in ("finished", "running"):
                status(paths.root, state, steps, options.steps, heartbeat="2999-01-01T00:00:00.000Z")
                show(measure(paths.root, options.seconds, steps, options.steps))


def show(figures: dict[str, float]) -> None:
    """Print a line of name=value."""
    print("  " + "  ".join(f"{name}={value:.3g}" for name, value in figures.items()), flush=True)


def measure(run: Path, seconds: float, steps: int, total: int) -> dict[str, float]:
    """Return first page, idle CPU share, resident memory, and bytes written to the terminal in a second."""
    master, slave = pty.openpty()
    subprocess.run(["stty", "rows", "40", "cols", "120"], stdin=slave, check=True)
    began = time.perf_counter()
    view = subprocess.Popen(
        [sys.executable, "-m", "smolsum", "watch", str(run), "--readonly"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(slave)
    wanted = re.compile(rf"step {steps}/{total}".encode())
    text, asked = b"", False
    while not wanted.search(text):
        text += _read(master, 60.0)
        if not asked and QUESTION in text:
            asked = os.write(master, ANSWER) > 0
    first, first_cpu = time.perf_counter() - began, _cpu_s(view.pid)
    _drain(master, 3.0)
    before = _cpu_s(view.pid)
    written = _drain(master, seconds)
    cpu = (_cpu_s(view.pid) - before) / seconds
    memory = int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{view.pid}/status").read_text())[0]) / 1e3
    os.write(master, b"q")
    _drain(master, 2.0)
    view.wait(timeout=60)
    os.close(master)
    return {
        "first_page_s": first,
        "first_page_cpu_s": first_cpu,
        "idle_core_share": cpu,
        "rss_mb": memory,
        "bytes_per_s": written / seconds,
    }


def _read(master: int, patience_s: float) -> bytes:
    ready, _, _ = select.select([master], [], [], patience_s)
    if not ready:
        raise TimeoutError("the view writes nothing")
    return os.read(master, 1 << 16)


def _drain(master: int, seconds: float) -> int:
    """Return the number of bytes that arrive in so many seconds."""
    until, count = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([master], [], [], left)
        if ready:
            try:
                count += len(os.read(master, 1 << 16))
            except OSError:
                break
    return count


def _cpu_s(pid: int) -> float:
    """Return user and system time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
