"""Pauses between attempts that are written down and not waited for."""

import asyncio

import pytest


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of every pause of coroutines from now on."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def skip(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", skip)
    return pauses
