"""Programs in a terminal of their own, for what only a terminal shows."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PATIENCE_S = 900.0


class Terminal:
    """`smolsum` with these arguments on a pseudo-terminal of 100 x 30; `text` is what it writes, without colours."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        subprocess.run(["stty", "rows", "30", "cols", "100"], stdin=slave, check=True)
        # Ctrl-C must reach it as it would from a shell, even where this process ignores it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smolsum", *arguments], stdin=slave, stdout=slave, stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **(environ or {})},
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(slave)
        self._written = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def send(self, keys: str) -> None:
        """Types."""
        os.write(self._master, keys.encode())

    def until(self, wanted: str) -> None:
        """Reads until it has written this."""
        end = time.monotonic() + PATIENCE_S
        while wanted not in self.text:
            assert time.monotonic() < end, f"no {wanted!r} in {self.text!r}"
            assert self._read(), f"it ended without {wanted!r}: {self.text!r}"

    def code(self) -> int:
        """Reads to the end and returns the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        """Takes what it writes next; False at its end."""
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        assert ready, f"nothing is written any more after {self.text!r}"
        try:
            content = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the last writer is gone
            return False
        self._written += content.decode("utf-8", "replace")
        return bool(content)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._written)


def _own_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
