"""The engine `vllm`: a real vLLM server, a child process behind a Unix socket.

The worker keeps the weights, checks them and gives them to vLLM as files; `inside/smolsum_vllm.py` has vLLM compute
with them. A server that dies is started again, and given the weights that it served.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from smolsum import console
from smolsum.config import LoraConfig
from smolsum.disk import writing
from smolsum.errors import SmolsumError, UsageError
from smolsum.policy.identity import identity
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.served import check_served, served_arrays
from smolsum.worker.api import Api, SilentError
from smolsum.worker.child import PATIENCE, Child, flags
from smolsum.worker.engine import NEUTRAL, EngineError, Request, Sampled, State, Weights, longest
from smolsum.worker.files import HELD, REMEDY, write_adapters, write_weights
from smolsum.worker.install import Installed, installed

MOST_RUNNING = 128
WAITS = (1, 2, 5, 15, 60)
"""seconds before each further attempt to start a server that died"""
STEADY = 300
"""seconds after which a server that dies is started as if it were the first time"""
EVERY = 10.0
"""seconds between two signs of life that are asked of the server"""
HANGS = 300.0
"""seconds after which one that gives none is ended; it gives them between two steps, and on CPUs a step that reads
thousands of tokens of prompts takes a while"""
COLUMNS = 16
"""unit vectors that packed weights are checked with after a sync"""
NAME = "policy"


class VllmEngine:
    """Samples with vLLM; see `smolsum.worker.engine.Engine`."""

    policy: Policy

    def __init__(
        self, model: str, *, dtype: str | None, max_model_len: int | None, python: str, folder: Path, lora_rank: int
    ) -> None:
        self.name, self.version, self.restarts = "vllm", "", 0
        self.most_running, self.max_model_len = MOST_RUNNING, 0
        self.facts: Mapping[str, Any] = {}
        self.state: State = "starting"
        self.last_error: str | None = None
        self._model, self._dtype, self._wanted_len = model, dtype, max_model_len
        self._python, self._folder, self._lora_rank = python, folder, lora_rank
        self._shapes: dict[LoraConfig | None, Policy] = {}
        self._loaded: Weights | None = None
        self._adapters: Path | None = None
        self._serving, self._numbers = NAME, count(1)
        self._told, self._cpu = 0.0, False
        self.child: Child | None = None
        """the server"""
        self._api: Api | None = None
        self._pushed = folder / "smolsum-weights"
        self._loading = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> Weights:
        found = await asyncio.to_thread(installed, self._python)
        shutil.rmtree(self._pushed, ignore_errors=True)  # of a worker that was killed
        self.version, self._cpu = found.version, found.cpu
        weights = await asyncio.to_thread(self._read, found)
        await self._start_child()
        self.state = "ready"
        self._watch = asyncio.create_task(self._keep_up())
        return weights

    async def failed(self) -> None:
        assert self._watch is not None
        await asyncio.shield(self._watch)

    @property
    def api(self) -> Api:
        """That of the server."""
        if self._api is None:
            raise EngineError("vLLM has not started", hint="ask again later")
        return self._api

    async def stop(self) -> None:
        self.state = "stopping"
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._stop_child()

    async def sample(self, request: Request, on_token: Callable[[int], None] | None = None) -> Sampled:
        body = {
            "model": self._serving,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "logprobs": 0,
            "return_token_ids": True,
            # exactly the policy's own, whatever the checkpoint's files say
            "ignore_eos": True,
            "stop_token_ids": sorted(self.policy.eos_ids),
            **NEUTRAL,
        }
        return await self.api.complete(body, on_token)

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        if temperature != 1:
            raise UsageError(f"vLLM scores at temperature 1, not {temperature}", hint="ask for temperature 1")
        return list(await asyncio.gather(*(self._score([*prompt], [*ids]) for prompt, ids in sequences)))

    async def load(self, weights: Weights) -> None:
        await asyncio.to_thread(self._check, weights)
        async with self._loading:
            if self.state != "ready":
                raise EngineError(f"the engine is {self.state}", hint="send the weights again later")
            await self._load(weights)
            self._loaded = weights

    def _read(self, found: Installed) -> Weights:
        """What is needed of the checkpoint, whose weights are then left to vLLM."""
        dtype = self._dtype
        if dtype in (None, "auto"):
            dtype = "float32" if found.cpu else "auto"
        shapes = load_policy(self._model, shapes_only=True)
        if dtype == "auto":
            text = shapes.config.get("text_config", shapes.config)
            dtype = shapes.config.get("dtype") or text.get("torch_dtype") or "bfloat16"
        self._dtype = dtype
        weights = Weights(served_arrays(load_policy(self._model, dtype=dtype)))  # type: ignore[arg-type]
        self.policy = self._shape(None)
        self.max_model_len = longest(self.policy, self._wanted_len)
        self.facts = identity(self.policy)
        return weights

    def _shape(self, lora: LoraConfig | None) -> Policy:
        """The policy without its weights."""
        if lora not in self._shapes:
            self._shapes[lora] = load_policy(self._model, dtype=self._dtype, lora=lora, shapes_only=True)  # type: ignore[arg-type]
        return self._shapes[lora]

    def _check(self, weights: Weights) -> None:
        if weights.lora is None and self._lora_rank:
            raise UsageError("this worker was started for adapters", hint="start it without --lora-rank")
        if weights.lora is not None and weights.lora.rank > self._lora_rank:
            raise UsageError(
                f"vLLM was not started for adapters of rank {weights.lora.rank}",
                hint=f"start the worker with --lora-rank {weights.lora.rank}",
            )
        check_served(self._shape(weights.lora), weights.arrays)
        for name, array in weights.arrays.items():
            if str(array.dtype) != HELD[str(self._dtype)]:
                raise UsageError(f"{name} is of type {array.dtype}, not {self._dtype}", hint="serve what is trained")

    async def _start_child(self) -> None:
        # layers that remember a state and no keys
        stateful = any(isinstance(layer, ArraysCache) for layer in make_prompt_cache(self.policy.model))
        sizes = {"max_model_len": self.max_model_len, "most_running": self.most_running, "lora_rank": self._lora_rank}
        arguments = [
            "--model", str(self.policy.path), "--served-model-name", NAME, "--dtype", str(self._dtype),
            *flags(cpu=self._cpu, stateful=stateful, **sizes),
        ]  # fmt: skip
        self.child = Child(self._python, arguments, self._folder, self._hear)
        await self.child.start()
        self._serving, self._api = NAME, Api(self.child.socket)

    async def _stop_child(self) -> None:
        if self.child is not None:
            await self.child.stop()
        if self._api is not None:
            await self._api.close()

    async def _keep_up(self) -> None:
        """Whenever the server dies or hangs, start it again; SmolsumError where that goes on failing."""
        failures = 0
        while True:
            since = time.monotonic()
            self.last_error, self.state = await self._trouble(), "restarting"
            failures = 0 if time.monotonic() - since > STEADY else failures
            while self.state != "ready":
                if failures == len(WAITS):
                    self.state = "failed"
                    raise EngineError(f"vLLM does not come back: {self.last_error}", hint="see its log above")
                console.warn(f"{self.last_error}; starting it again in {WAITS[failures]} s")
                await self._stop_child()
                await asyncio.sleep(WAITS[failures])
                failures += 1
                try:
                    async with self._loading:
                        await self._start_child()
                        if self._loaded is not None:
                            await self._load(self._loaded)
                        self.state = "ready"
                except Exception as error:  # whatever it was: the next attempt may go better
                    self.last_error = error.message if isinstance(error, SmolsumError) else repr(error)
            self.restarts += 1

    async def _trouble(self) -> str:
        """Wait until the server has died or does nothing any more; which of them."""
        assert self.child is not None
        ended = asyncio.create_task(self.child.ended())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=EVERY)
                if ended.done() or self._loading.locked():  # weights are loaded with a limit of their own
                    continue
                try:
                    await self.api.rpc("smolsum_beat", timeout=HANGS)
                except SilentError:
                    return f"vLLM did nothing for {HANGS:.0f} s"
                except SmolsumError:
                    pass  # it is dying
            return f"vLLM died: {ended.result()}"
        finally:
            ended.cancel()

    async def _load(self, weights: Weights) -> None:
        """Have the server compute with these, and see that it does."""
        folder: Path | None = None
        try:
            with writing(self._pushed, REMEDY):
                self._pushed.mkdir(exist_ok=True)
                folder = Path(tempfile.mkdtemp(dir=self._pushed))
            if weights.lora is not None:
                await asyncio.to_thread(write_adapters, weights.arrays, weights.lora, folder)
                await self._swap_adapters(f"{NAME}-{next(self._numbers)}", folder)
                folder, self._adapters = self._adapters, folder  # a server may read its adapters again later
            else:
                path = folder / "model.safetensors"
                await asyncio.to_thread(write_weights, weights.arrays, path)
                await self._swap_weights(str(path))
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    async def _swap_weights(self, path: str) -> None:
        async with self._half_way():
            await self.api.rpc("smolsum_load", path, timeout=PATIENCE)
            checked = await self.api.rpc("smolsum_check", path, COLUMNS, timeout=PATIENCE)
            if checked["wrong"]:
                raise EngineError(f"vLLM does not serve {checked['wrong'][0]} as it was sent", hint="report this")
            await self.api.post("/reset_prefix_cache", None, PATIENCE)

    async def _swap_adapters(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await self.api.post("/v1/load_lora_adapter", body, PATIENCE)
        async with self._half_way():
            before, self._serving = self._serving, name
            if before != NAME:
                await self.api.post("/v1/unload_lora_adapter", {"lora_name": before}, PATIENCE)
            await self.api.post("/reset_prefix_cache", None, PATIENCE)

    @asynccontextmanager
    async def _half_way(self) -> AsyncIterator[None]:
        """Ends the server where the block fails: nobody knows what it would serve. It comes back with what it served
        before."""
        try:
            yield
        except Exception:
            await self._stop_child()
            raise

    async def _score(self, prompt: list[int], ids: list[int]) -> list[float]:
        body = {"model": self._serving, "prompt": prompt + ids, "max_tokens": 1, "temperature": 0}
        (choice,) = (await self.api.post("/v1/completions", body | {"prompt_logprobs": 0}))["choices"]
        scored = choice["prompt_logprobs"][len(prompt) :]
        return [place[str(i)]["logprob"] for place, i in zip(scored, ids, strict=True)]

    def _hear(self, line: str) -> None:
        """Tell what a server that is starting says, now and then."""
        if self.state != "ready" and time.monotonic() - self._told > 5:
            self._told = time.monotonic()
            console.narrate(f"vllm: {line}")
