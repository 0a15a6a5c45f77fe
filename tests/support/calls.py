"""The command line, called in this process, and what a command that ended well owes the user."""

from collections.abc import Callable

import pytest

from smolsum.cli import main

Call = Callable[..., tuple[int, str, str]]
"""From arguments to exit code, stdout and stderr."""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """`smolsum` with arguments."""

    def invoke(*args: object) -> tuple[int, str, str]:
        code = main.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return invoke


def done(result: tuple[int, str, str], *named: object) -> tuple[str, str]:
    """stdout and stderr of a command that ended well and names each of these on stderr."""
    code, out, err = result
    assert code == 0, err
    assert not (missing := [str(name) for name in named if str(name) not in err]), f"{missing} is not named in: {err}"
    return out, err
