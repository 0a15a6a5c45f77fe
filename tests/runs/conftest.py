"""A disk that is soon full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB, a quarter of it in a file that can be removed."""
    with mounted(tmp_path / "disk", 256) as disk:
        (disk / "ballast").write_bytes(bytes(2**16))
        yield disk
