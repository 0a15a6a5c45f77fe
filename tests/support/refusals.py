"""What every refusal owes the user: the right class, the name of what is wrong, and something that helps."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smolsum.errors import SmolsumError, UnusedSetting, UsageError


@contextmanager
def refuses(*named: object, error: type[SmolsumError] = UsageError) -> Iterator[pytest.ExceptionInfo[SmolsumError]]:
    """Expect an error of exactly this class that names each of these (a field, a file, a value) and has a remedy. A
    setting that nothing uses is a usage error."""
    with pytest.raises(SmolsumError) as raised:
        yield raised
    refusal = raised.value
    known = (UsageError, UnusedSetting) if error is UsageError else (error,)
    assert type(refusal) in known, f"{type(refusal).__name__}: {refusal}"
    assert refusal.hint, f"no remedy: {refusal}"
    said = f"{refusal.message}\n{refusal.hint}"
    assert not (missing := [str(name) for name in named if str(name) not in said]), f"{missing} is not named in: {said}"


def assert_refused(done: tuple[int, str, str], *named: object, error: type[SmolsumError] = UsageError) -> None:
    """A command ended with the exit code of this class, printed no result, and says what is wrong and what helps."""
    code, out, err = done
    assert (code, out) == (error.exit_code, ""), err
    assert "\nhint: " in f"\n{err}", f"no remedy: {err}"
    assert not (missing := [str(name) for name in named if str(name) not in err]), f"{missing} is not named in: {err}"
