"""The model that workers serve."""

from pathlib import Path

import pytest
from support.models import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "m", "qwen2")
