"""Python in a process of its own, with what it prints."""

import os
import subprocess
import sys
from pathlib import Path

from support.training import PATIENCE_S


def python(
    *arguments: object, cwd: Path | None = None, environ: dict[str, str] | None = None, **more: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `python` with these arguments, in this process's environment or another, and
    with further variables."""
    run = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env={**(os.environ if environ is None else environ), **more},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    return run.returncode, run.stdout, run.stderr
