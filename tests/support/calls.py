"""The type of the fixture `call`."""

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]
"""From arguments to exit code, stdout and stderr."""
