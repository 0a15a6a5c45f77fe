"""A disk that is really small, to fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, kilobytes: int) -> Iterator[Path]:
    """Gives a file system in memory, mounted on `directory`; skips the test where only root may mount."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(directory)]
    try:
        subprocess.run(mount, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"cannot mount a small disk: {error.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
