"""The command line, called in this process."""

from __future__ import annotations

import pytest
from support.calls import Call

from smolsum.cli import main


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """`smolsum` with arguments: exit code, stdout, stderr."""

    def invoke(*args: object) -> tuple[int, str, str]:
        code = main.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return invoke
