"""A disk that is soon full, and a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.disks import mounted
from support.s3_server import S3Server, serving


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB, a quarter of it in a file that can be removed."""
    with mounted(tmp_path / "disk", 256) as disk:
        (disk / "ballast").write_bytes(bytes(2**16))
        yield disk


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server
