"""The data set, and the command line, of the runs in this folder."""

from pathlib import Path

import pytest
from support.calls import Call
from support.training import make_data

from smolsum.cli.main import main


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set, of the numbers of rows that the test file has as `SIZES`."""
    return make_data(tmp_path_factory.mktemp("data") / "posts", **getattr(request.module, "SIZES", {}))


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line; returns exit code, stdout and stderr."""

    def run(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([*args])
        return (code, *capfd.readouterr())

    return run
