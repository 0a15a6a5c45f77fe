"""A run that was trained on the data set of the runs in this folder, and the command line."""

from pathlib import Path

import pytest
from support.calls import Call
from support.training import trained

from smolsum.cli.main import main


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """As everywhere, with what the handler of a signal writes, past Python's own streams."""

    def invoke(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        return (code, *capfd.readouterr())

    return invoke


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted, with what the test file has as `SETTINGS`."""
    return trained(data, tmp_path_factory.mktemp("whole"), "whole", **getattr(request.module, "SETTINGS", {}))
