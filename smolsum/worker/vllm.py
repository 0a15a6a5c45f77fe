"""The engine `vllm`: a real vLLM server, a child process on loopback.

The worker keeps the weights, checks them and gives them to vLLM as files; `inside/smolsum_vllm.py` has vLLM compute
with them. A server that dies is started again, and given the weights that it served.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from smolsum import console
from smolsum.config import LoraConfig
from smolsum.disk import writing
from smolsum.errors import SmolsumError, UsageError
from smolsum.policy.identity import identity
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.served import check_served, served_arrays
from smolsum.worker.child import Child, flags
from smolsum.worker.engine import NEUTRAL, EngineError, Request, Sampled, State, Weights, longest
from smolsum.worker.files import REMEDY, write_adapters, write_weights
from smolsum.worker.install import Installed, installed

MOST_RUNNING = 128
WAITS = (1, 2, 5, 15, 60)
"""seconds before each further attempt to start a server that died"""
STEADY = 300
"""seconds after which a server that dies is started as if it were the first time"""
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
        self._client = httpx.AsyncClient()
        self._loading = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> Weights:
        found = await asyncio.to_thread(installed, self._python)
        self.version, self._cpu = found.version, found.cpu
        weights = await asyncio.to_thread(self._read, found)
        await self._start_child()
        self.state = "ready"
        self._watch = asyncio.create_task(self._keep_up())
        return weights

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self.child is not None:
            await self.child.stop()
        await self._client.aclose()

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
        if on_token is None:
            (choice,) = (await self._post("/v1/completions", body))["choices"]
            return _sampled(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])
        return await self._stream(body | {"stream": True}, on_token)

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
        self._serving = NAME
        await self._client.aclose()
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=self.child.url, timeout=None, limits=limits, trust_env=False)

    async def _keep_up(self) -> None:
        """Whenever the server dies, start it again."""
        failures = 0
        while failures < len(WAITS):
            assert self.child is not None
            since = time.monotonic()
            if self.state == "ready":
                self.last_error = f"vLLM died: {await self.child.ended()}"
                self.state = "restarting"
                failures = 0 if time.monotonic() - since > STEADY else failures
            console.warn(f"{self.last_error}; starting it again in {WAITS[failures]} s")
            await asyncio.sleep(WAITS[failures])
            failures += 1
            try:
                async with self._loading:
                    await self._start_child()
                    if self._loaded is not None:
                        await self._load(self._loaded)
                    self.state = "ready"
            except SmolsumError as error:
                self.last_error = error.message
                continue
            self.restarts += 1
        self.state = "failed"
        console.warn(f"vLLM does not come back: {self.last_error}")

    async def _load(self, weights: Weights) -> None:
        """Have the server compute with these, and see that it does."""
        number = next(self._numbers)
        folder: Path | None = self._folder / f"weights-{number}"
        assert folder is not None
        try:
            with writing(folder, REMEDY):
                folder.mkdir()
            if weights.lora is not None:
                await asyncio.to_thread(write_adapters, weights.arrays, weights.lora, folder)
                await self._swap_adapters(f"{NAME}-{number}", folder)
                folder, self._adapters = self._adapters, folder  # a server may read its adapters again later
            else:
                path = folder / "model.safetensors"
                await asyncio.to_thread(write_weights, weights.arrays, path)
                await self._swap_weights(str(path))
            await self._post("/reset_prefix_cache", None)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    async def _swap_weights(self, path: str) -> None:
        try:
            await self._rpc("smolsum_load", path)
            checked = await self._rpc("smolsum_check", path, COLUMNS)
            if checked["wrong"]:
                raise EngineError(f"vLLM does not serve {checked['wrong'][0]} as it was sent", hint="report this")
        except SmolsumError:
            assert self.child is not None
            await self.child.stop()  # nobody knows what it would serve; it comes back with what it served before
            raise

    async def _swap_adapters(self, name: str, folder: Path) -> None:
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        before, self._serving = self._serving, name
        if before != NAME:
            await self._post("/v1/unload_lora_adapter", {"lora_name": before})

    async def _rpc(self, method: str, *arguments: Any) -> Any:
        answer = await self._post("/collective_rpc", {"method": method, "args": list(arguments)})
        return answer["results"][0] if answer else None

    async def _post(self, path: str, body: Any) -> Any:
        try:
            answer = await self._client.post(path, json=body)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed for a new server
            raise EngineError(f"vLLM went away: {error or type(error).__name__}", hint="ask again later") from error
        if answer.status_code == 400:
            raise UsageError(f"vLLM refuses: {_message(answer.content)}", hint="ask for something else")
        if not answer.is_success:
            raise EngineError(f"vLLM failed: {_message(answer.content)}", hint="see the worker's log")
        with suppress(ValueError):
            return answer.json()
        return None

    async def _stream(self, body: dict[str, Any], on_token: Callable[[int], None]) -> Sampled:
        tokens: list[int] = []
        logprobs: list[float] = []
        reason = "length"
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    raise EngineError(f"vLLM failed: {_message(await answer.aread())}", hint="ask again later")
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    for choice in json.loads(line[6:]).get("choices", []):
                        for token in choice.get("token_ids") or []:
                            tokens.append(token)
                            on_token(token)
                        logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
                        reason = choice["finish_reason"] or reason
        except (httpx.HTTPError, RuntimeError) as error:
            raise EngineError(f"vLLM went away: {error or type(error).__name__}", hint="ask again later") from error
        return _sampled(tokens, logprobs, reason)

    async def _score(self, prompt: list[int], ids: list[int]) -> list[float]:
        body = {"model": self._serving, "prompt": prompt + ids, "max_tokens": 1, "temperature": 0}
        (choice,) = (await self._post("/v1/completions", body | {"prompt_logprobs": 0}))["choices"]
        scored = choice["prompt_logprobs"][len(prompt) :]
        return [place[str(i)]["logprob"] for place, i in zip(scored, ids, strict=True)]

    def _hear(self, line: str) -> None:
        """Tell what a server that is starting says, now and then."""
        if self.state != "ready" and time.monotonic() - self._told > 5:
            self._told = time.monotonic()
            console.narrate(f"vllm: {line}")


def _sampled(tokens: list[int], logprobs: list[float], reason: str) -> Sampled:
    if len(tokens) != len(logprobs) or reason not in ("stop", "length"):
        raise EngineError(f"vLLM returned a rollout that ended by {reason!r}", hint="ask again")
    return Sampled(tuple(tokens), tuple(logprobs), "stop" if reason == "stop" else "length")


def _message(content: bytes) -> str:
    try:
        told = json.loads(content)
        return str((told.get("error") or {}).get("message") or told)
    except (ValueError, AttributeError):
        return content[:300].decode(errors="replace")
