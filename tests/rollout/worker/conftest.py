"""The model that workers serve, and a worker for tests that leave it as it is."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.models import write
from support.serving import engine_of, face

from smolsum.rollout.worker.engines.mlx import MlxEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return write(tmp_path_factory.mktemp("models") / "m", "qwen2")


@pytest.fixture(scope="module")
def engine(folder: Path) -> MlxEngine:
    return engine_of(folder)


@pytest.fixture(scope="module")
def worker(engine: MlxEngine) -> Iterator[httpx.Client]:
    with face(engine) as client:
        yield client
