"""A file that one process at a time holds. The kernel lets go when the process ends, however that comes."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smolsum.disk import writing
from smolsum.errors import UsageError


@contextmanager
def locked(path: Path, busy: str, remedy: str) -> Iterator[None]:
    """Holds the file, which says who does, while the block runs. UsageError that begins with `busy` where another
    process holds it; errors as of `disk.writing` with `remedy`."""
    with writing(path, remedy):
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()} on {platform.node()}")
            file.flush()
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read()  # empty for the moment between the other's lock and its line
            file.close()
            who = f"process {holder}" if holder else "another process"
            stop = f", or end it with a checkpoint: kill -INT {holder.split()[0]}" if holder else ""
            raise UsageError(f"{busy} by {who}", hint=f"wait until it ends{stop}") from error
        except OSError:
            file.close()
            raise
    with file:
        yield
