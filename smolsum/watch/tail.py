"""Files that grow, read from where the last look ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

CHUNK = 1 << 20


class Tail:
    """The whole lines of a JSON Lines file as they come.

    A last line without its end waits for its end; a line that is no JSON object is passed over. A file that
    was replaced or cut (a resumed run takes steps back) is read again from its start: `restarts` goes up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._offset = 0
        self._inode = self._size = self._half = 0

    def more(self) -> bool:
        """Whether there may be new lines; notices a file that began anew."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        if self._inode not in (0, stat.st_ino) or stat.st_size < self._offset:
            self.restarts += 1
            self._offset = self._half = 0
        self._inode, self._size = stat.st_ino, stat.st_size
        return stat.st_size > max(self._offset, self._half)

    def read(self) -> Iterator[dict[str, object]]:
        """Yields the objects of at most a chunk of new lines; none where the file cannot be read."""
        if not self.more():
            return
        content = self._next_lines()
        # a last line that is half written is looked at again once it has grown
        self._half = 0 if content else self._size
        self._offset += len(content)
        for line in content.splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row

    def _next_lines(self) -> bytes:
        """Up to a chunk from the offset to the last line end in it, more only for a line that is longer."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read(CHUNK)
                while b"\n" not in content and (more := file.read(CHUNK)):
                    content += more
        except OSError:
            return b""
        return content[: content.rfind(b"\n") + 1]


class Document:
    """A JSON file that its writer replaces; parsed again only when it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value: dict[str, object] = {}
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> bool:
        """Whether it changed; the last readable value is kept while it is gone or unreadable."""
        try:
            stat = os.stat(self.path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return False
            value = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        self._seen = seen
        if not isinstance(value, dict):
            return False
        self.value = value
        return True
