"""Real workers: in a thread of this process, or in their own process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import smolsum.policy  # noqa: F401  loads a fast BLAS before MLX

# isort: split
from smolsum.rollout.worker.engines.base import Engine
from smolsum.rollout.worker.engines.mlx import MlxEngine
from smolsum.rollout.worker.http_server import HttpServer, listen
from smolsum.rollout.worker.openai_api import OpenAIApi
from smolsum.rollout.worker.routes import app
from smolsum.rollout.worker.service import Service


def engine_of(folder: Path) -> MlxEngine:
    """An engine with the model of a folder, as it is."""
    return MlxEngine(str(folder), dtype="float32", quantize=0, max_model_len=None)


def refused(answer: httpx.Response, status: int, about: str) -> bool:
    """Whether this is an error with that status and a hint that mentions `about`, in the form of its path."""
    assert answer.status_code == status, answer.text
    error = answer.json()
    if answer.request.url.path in ("/v1/rollouts", "/v1/logprobs", "/v1/weights", "/health", "/metrics"):
        return about in error["error"] and bool(error["hint"])
    assert error["error"].keys() == {"message", "type", "param", "code"}  # as OpenAI's clients read it
    return about in error["error"]["message"] and "hint: " in error["error"]["message"]


@contextmanager
def face(engine: Engine, *, token: str | None = None) -> Iterator[httpx.Client]:
    """The HTTP API of an engine on a free port; yields a client without a token."""
    started: list[Any] = []
    ready = threading.Event()

    async def run() -> None:
        service = Service(engine, model="m")
        try:
            await service.start()
            listener = listen("127.0.0.1", 0, token)
            server = HttpServer(app(service, OpenAIApi(service), token=token), listener, ready.set)
            started[:] = [server, listener.getsockname()[1]]
            await server.serve()
        finally:
            ready.set()
            await engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        ready.wait()  # the engine has its own deadline
        assert started, "the engine did not start"
        with httpx.Client(base_url=f"http://127.0.0.1:{started[1]}", timeout=60) as client:
            yield client
    finally:
        if started:
            started[0].should_exit = True
        thread.join()


@contextmanager
def process(*arguments: str, log: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`smolsum serve-worker` with these arguments on a free port, once it has printed its URL; stderr goes to `log`."""
    command = [sys.executable, "-m", "smolsum", "serve-worker", "--port", "0", *arguments]
    with log.open("w") as stderr:
        worker = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=dict(os.environ) | environment
        )
    try:
        assert worker.stdout is not None
        url = worker.stdout.readline().strip()
        assert url, f"the worker did not start:\n{log.read_text()}"
        with httpx.Client(base_url=url, timeout=120) as client:
            yield worker, client
    finally:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        finally:
            worker.kill()
            worker.stdout.close()
