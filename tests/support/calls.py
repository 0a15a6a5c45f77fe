"""The type of the fixture `call`, and what a command that ended well owes the user."""

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""From arguments to exit code, stdout and stderr."""


def done(result: tuple[int, str, str], *named: object) -> tuple[str, str]:
    """stdout and stderr of a command that ended well and names each of these on stderr."""
    code, out, err = result
    assert code == 0, err
    assert not (missing := [str(name) for name in named if str(name) not in err]), f"{missing} is not named in: {err}"
    return out, err
