"""The process of `smolsum serve-worker`: engine, socket and HTTP server, from start to end."""

import asyncio
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from smolsum.files import locked
from smolsum.policy.load import Dtype
from smolsum.rollout.worker.engines.base import Engine
from smolsum.rollout.worker.engines.mlx import MlxEngine
from smolsum.rollout.worker.engines.vllm import VllmEngine
from smolsum.rollout.worker.engines.vllm_setup import NONE_ADDED, AddedFlags
from smolsum.rollout.worker.http_server import HttpServer, url
from smolsum.rollout.worker.openai_api import OpenAIApi
from smolsum.rollout.worker.routes import app
from smolsum.rollout.worker.service import Service

STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Settings:
    """The flags of `smolsum serve-worker`."""

    model: str
    """as it was given"""
    path: str
    """what `load_policy` takes"""
    engine: Literal["mlx", "vllm"] = "mlx"
    host: str = "127.0.0.1"
    token: str | None = None
    dtype: Dtype | None = None
    quantize: int = 0
    chat_template: str = ""
    """a file with another template than the model's; empty: none"""
    max_model_len: int | None = None
    vllm_python: str = sys.executable
    lora_rank: int = 0
    """largest rank of adapters that vLLM reserves memory for"""
    work_dir: Path | None = None
    """the only folder that is written to; None: a temporary one"""
    added: AddedFlags = NONE_ADDED
    """flags of vLLM, which the user adds"""


def serve(settings: Settings, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, the normal end. `ready` is called with the URL.

    Raises what the engine raises if it cannot start, KeyboardInterrupt if it was stopped before, UsageError if another
    worker uses the folder, and SmolsumError for a folder that cannot be written to.
    """
    with ExitStack() as stack:
        stack.enter_context(listener)
        folder = settings.work_dir
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="smolsum-worker-")))
        busy, retry = f"--work-dir {folder} is used", "start the worker again, or with another --work-dir"
        hint = "give each worker its own --work-dir, or none"
        stack.enter_context(locked(folder / "worker.lock", busy, retry, hint=hint))
        asyncio.run(_serve(settings, folder, listener, ready))


async def _serve(settings: Settings, folder: Path, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Raises EngineError if the engine cannot be restarted, so that the exit code shows it."""
    engine = make_engine(settings, folder)
    service = Service(engine, model=settings.model)
    loop, here = asyncio.get_running_loop(), asyncio.current_task()
    assert here is not None
    # uvicorn's own handlers would end the process before the engine has stopped
    for number in STOPPING:
        loop.add_signal_handler(number, here.cancel)
    stops: list[asyncio.Task[None]] = []
    try:
        await service.start()
        api = app(service, OpenAIApi(service), token=settings.token)
        server = HttpServer(api, listener, lambda: ready(url(settings.host, listener)))

        failure = loop.create_task(engine.failed())
        failure.add_done_callback(lambda _: setattr(server, "should_exit", True))

        def stop() -> None:
            server.should_exit = True
            stops.append(loop.create_task(engine.stop()))  # which ends open requests with errors

        for number in STOPPING:
            loop.add_signal_handler(number, stop)
        await server.serve()
        if not failure.cancelled() and failure.done():
            failure.result()
        failure.cancel()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        await engine.stop()


def make_engine(settings: Settings, folder: Path) -> Engine:
    """Return the engine of the settings, not started yet."""
    if settings.engine == "mlx":
        return MlxEngine(
            settings.path, dtype=settings.dtype, quantize=settings.quantize, max_model_len=settings.max_model_len,
            chat_template=settings.chat_template,
        )  # fmt: skip
    return VllmEngine(
        settings.path, dtype=settings.dtype, max_model_len=settings.max_model_len, python=settings.vllm_python,
        folder=folder, lora_rank=settings.lora_rank, chat_template=settings.chat_template, added=settings.added,
    )  # fmt: skip
