"""Who may be at work: many at a time, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Lets up to `most` pass together. Who wants to be alone stops the entry, and waits until those inside have left.

    For one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most, self.inside, self.waiting = most, 0, 0
        self._closed = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Inside with others."""
        self.waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._closed and self.inside < self.most)
                self.inside += 1
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.inside -= 1
            await self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside with nobody else."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._closed)
            self._closed = True
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self.inside == 0)
            yield
        finally:
            self._closed = False
            await self._wake()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
