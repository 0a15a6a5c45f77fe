"""What the start of `import smolsum` and of some commands costs: CPU time after Python's own start, best of five.

uv run python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys

RUNS = 5
COMMANDS = ("--version", "--help", "train --help", "train --dry-run --quiet")
TIMED = """
import sys, time
began, before = time.process_time(), set(sys.modules)
{code}
print(1000 * (time.process_time() - began), len(set(sys.modules) - before), file=sys.stderr)
"""


def measure(code: str) -> tuple[float, int]:
    """Return the least CPU time in ms, and the modules that were loaded."""
    command = [sys.executable, "-c", TIMED.format(code=code)]
    ends = [
        subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()[-2:] for _ in range(RUNS)
    ]
    return min(float(ms) for ms, _ in ends), int(ends[0][1])


def main() -> None:
    """Print the table."""
    started = "from smolsum.cli.main import main\nmain({!r})"
    cases = {"import smolsum": "import smolsum"}
    cases |= {f"smolsum {words}": started.format(words.split()) for words in COMMANDS}
    print(f"{'':<32}{'CPU ms':>8}{'modules':>9}")
    for name, code in cases.items():
        ms, modules = measure(code)
        print(f"{name:<32}{ms:>8.0f}{modules:>9}")


if __name__ == "__main__":
    main()
