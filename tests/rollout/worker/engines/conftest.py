"""A folder for the sockets of a server."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for sockets; pytest's own may be too deep."""
    with TemporaryDirectory() as folder:
        yield Path(folder)
