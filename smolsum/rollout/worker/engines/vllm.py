"""The engine `vllm`: a vLLM server in a child process, behind a Unix socket.

The worker keeps the weights, checks them and passes them to vLLM as files: safetensors, or adapters in PEFT's layout;
`vllm_plugin/smolsum_vllm.py` loads them inside vLLM. A server that dies is started again with the weights it served.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from smolsum import console
from smolsum.config.sections import LoraConfig
from smolsum.errors import MachineError, SmolsumError, UsageError
from smolsum.files import replace, to_json, writing
from smolsum.policy.device_memory import metal_working_set
from smolsum.policy.load import DTYPES, Dtype, Policy, load_policy
from smolsum.policy.sampling import Completion, SampledToken
from smolsum.policy.weights import check_served, identity, served_arrays
from smolsum.rollout.protocol import SampleRequest, SamplingTerms
from smolsum.rollout.worker.engines.base import NEUTRAL, Engine, EngineError, ServedWeights, length_limit
from smolsum.rollout.worker.engines.vllm_process import TIMEOUT_S, SilentError, VllmServer
from smolsum.rollout.worker.engines.vllm_setup import NONE_ADDED, AddedFlags, Installed, flags, installed

PAUSES_S = (1, 2, 5, 15, 60)
"""before each further attempt to start a server that died"""
STEADY_S = 300
"""a server that dies after this long is started again as if for the first time"""
BEAT_S = 10.0
"""between two heartbeats of the server"""
HANG_S = 300.0
"""without a heartbeat, after which the server is ended; it answers between two steps, and on CPUs a step that reads
thousands of prompt tokens takes a while"""
CHECKED_COLUMNS = 16
"""unit vectors that packed weights are checked with after a sync"""
SERVED_NAME = "policy"
PROOF = "The quick brown fox"
"""the prompt that a server has to score when it starts"""
SAFETENSORS_TYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
"""safetensors' names of numpy's types; numpy lacks bfloat16, so its bits are in uint16"""
NUMPY_TYPES = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}
"""numpy's types for the values of a model's types"""
RETRY = "the trainer sends the weights again"
COOL = 0.5
"""the temperature that is compared with temperature 1"""
LIKELIEST = 20
"""tokens that are compared; vLLM's default limit"""
SPREAD = 1e-3
"""mean square distance of log-probs from their mean, in nats², below which temperatures look alike"""
MIN_LOGPROB = -1000.0
"""what vLLM returns for a token that cannot be sampled is below"""


class VllmEngine(Engine):
    """Samples with vLLM."""

    name = "vllm"

    def __init__(
        self, model: str, *, dtype: Dtype | None, max_model_len: int | None, python: str, folder: Path, lora_rank: int,
        chat_template: str = "", added: AddedFlags = NONE_ADDED,
    ) -> None:  # fmt: skip
        self._load_policy = partial(load_policy, model, chat_template=chat_template)
        self._dtype, self._wanted_len = dtype, max_model_len
        self._python, self._folder, self._lora_rank = python, folder, lora_rank
        self._added, self.max_running = added, added.max_running
        self._shapes: dict[LoraConfig | None, Policy] = {}
        self._loaded: ServedWeights | None = None
        self._adapters: Path | None = None
        self._serving, self._numbers = SERVED_NAME, count(1)
        self._narrated = 0.0
        self.server: VllmServer | None = None
        self._pushed = folder / "smolsum-weights"
        self._loading = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> ServedWeights:
        self._found = found = await asyncio.to_thread(installed, self._python)
        shutil.rmtree(self._pushed, ignore_errors=True)  # left by a worker that was killed
        self.version = found.name
        weights = await asyncio.to_thread(self._read, found)
        await self._start_server()
        await self._prove(weights)
        self.state = "ready"
        self._watch = asyncio.create_task(self._supervise())
        return weights

    async def failed(self) -> None:
        assert self._watch is not None
        await asyncio.shield(self._watch)

    @property
    def api(self) -> VllmServer:
        """The running server."""
        if self.server is None:
            raise EngineError("vLLM has not started", hint="try again later")
        return self.server

    async def stop(self) -> None:
        self.state = "stopping"
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._stop_server()

    async def sample(
        self, request: SampleRequest, terms: SamplingTerms, on_token: Callable[[SampledToken], None] | None = None
    ) -> Completion:
        body = {
            "model": self._serving,
            "prompt": list(request.prompt_ids),
            "max_tokens": terms.max_new_tokens,
            "temperature": terms.temperature,
            "seed": request.seed,
            "logprobs": terms.likeliest,
            "return_token_ids": True,
            # the policy's own EOS ids and distribution, whatever the checkpoint's files say
            "ignore_eos": True,
            "stop_token_ids": sorted(self.policy.eos_ids),
            **NEUTRAL,
            "top_p": terms.top_p,
        }
        if terms.likeliest:
            body["return_tokens_as_token_ids"] = True  # ids in the place of texts, which may be equal
        return await self.api.complete(body, on_token)

    async def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
    ) -> list[list[float]]:
        if temperature != 1:
            raise UsageError(f"vLLM scores at temperature 1, not {temperature}", hint="ask for temperature 1")
        return list(await asyncio.gather(*(self._score([*prompt], [*ids]) for prompt, ids in sequences)))

    @property
    def reserved_bytes(self) -> int | None:
        size = metal_working_set()
        return None if size is None or not self._found.metal else int(self._added.metal_share() * size)

    async def score_text(self, ids: Sequence[int], wanted: int) -> list[SampledToken]:
        scored = []
        for i, found in zip(ids[1:], (await self._places(ids, wanted))[1:], strict=True):
            likeliest = sorted(((int(key), one["logprob"]) for key, one in found.items()), key=lambda one: -one[1])
            scored.append(SampledToken(i, found[str(i)]["logprob"], tuple(likeliest[:wanted])))
        return scored

    async def load(self, weights: ServedWeights) -> None:
        await asyncio.to_thread(self._check, weights)
        async with self._loading:
            if self.state != "ready":
                raise EngineError(f"the engine is {self.state}", hint="send the weights again later")
            await self._load(weights)
            self._loaded = weights

    def _read(self, found: Installed) -> ServedWeights:
        """Read the checkpoint: shapes, tokenizer and facts; returns the weights that vLLM will serve first."""
        dtype = self._dtype
        if dtype in (None, "auto"):
            dtype = "float32" if found.cpu else "auto"
        shapes = self._load_policy(shapes_only=True)
        if dtype == "auto":
            dtype = type_of(shapes.config)
        self._dtype = dtype
        weights = ServedWeights(served_arrays(self._load_policy(dtype=dtype)))
        self.policy = self._shape(None)
        self.max_model_len = length_limit(self.policy, self._wanted_len)
        self.facts = identity(self.policy)
        return weights

    def _shape(self, lora: LoraConfig | None) -> Policy:
        """Return the policy without its weights."""
        if lora not in self._shapes:
            self._shapes[lora] = self._load_policy(dtype=self._dtype, lora=lora, shapes_only=True)
        return self._shapes[lora]

    def _check(self, weights: ServedWeights) -> None:
        if weights.lora is None and self._lora_rank:
            raise UsageError("this worker was started for adapters", hint="start it without --lora-rank")
        if weights.lora is not None and weights.lora.rank > self._lora_rank:
            raise UsageError(
                f"vLLM was not started for adapters of rank {weights.lora.rank}",
                hint=f"start the worker with --lora-rank {weights.lora.rank}",
            )
        check_served(self._shape(weights.lora), weights.arrays)
        for name, array in weights.arrays.items():
            if str(array.dtype) != NUMPY_TYPES[str(self._dtype)]:
                raise UsageError(f"{name} is of type {array.dtype}, not {self._dtype}", hint="serve what is trained")

    async def _start_server(self) -> None:
        # layers with a recurrent state instead of keys
        stateful = any(isinstance(layer, ArraysCache) for layer in make_prompt_cache(self.policy.model))
        sizes = {"max_model_len": self.max_model_len, "max_running": self.max_running, "lora_rank": self._lora_rank}
        arguments = [
            "--model", str(self.policy.path), "--served-model-name", SERVED_NAME, "--dtype", str(self._dtype),
            *flags(cpu=self._found.cpu, stateful=stateful, **sizes),
        ]  # fmt: skip
        self.server = VllmServer(self._python, self._added.after(arguments), self._folder, self._narrate)
        await self.server.start()
        self._serving = SERVED_NAME
        await self.api.rpc("smolsum_sampler", timeout=TIMEOUT_S)

    async def _prove(self, weights: ServedWeights) -> None:
        """Raise MachineError if the server that has started cannot do what trainers will ask for, and would fail or
        mislead them later: a place for every weight, log-probs of prompts, and those of the temperature it samples at.
        """
        hint = self._found.hint
        if not self._lora_rank and (wrong := await self._misfit(weights.arrays)):
            raise MachineError(wrong, hint=hint)
        prompt = [*self.policy.tokenizer.encode(PROOF), *sorted(self.policy.eos_ids)]  # at least two tokens
        try:
            await self._score(prompt[:1], prompt[1:])
        except EngineError as error:
            raise MachineError(f"vLLM {self.version} does not score prompts: {error.message}", hint=hint) from error
        terms = [SamplingTerms(temperature, 1, likeliest=LIKELIEST) for temperature in (1.0, COOL)]
        warm, cool = [(await self.sample(SampleRequest("proof", tuple(prompt), 0), t)).likeliest[0] for t in terms]
        sharper = slope(dict(warm), dict(cool))
        # the log-probs of two tokens differ by the difference of their logits over the temperature
        if sharper is not None and abs(sharper * COOL - 1) > (1 - COOL) / 2:
            raise MachineError(
                f"vLLM {self.version} returns log-probs of another temperature: at {COOL:g} they differ by "
                f"{sharper:.2f} times what they differ by at 1, not {1 / COOL:g} times",
                hint=hint,
            )

    async def _misfit(self, arrays: Mapping[str, Any]) -> str:
        """Return what keeps the server from taking these weights, in a sentence; empty if nothing does."""
        wrong = await self.api.rpc("smolsum_misplaced", shapes_of(arrays), timeout=TIMEOUT_S)
        return f"vLLM's model cannot take {len(wrong)} weights: {'; '.join(wrong[:2])}" if wrong else ""

    async def _stop_server(self) -> None:
        if self.server is not None:
            await self.server.stop()

    async def _supervise(self) -> None:
        """Whenever the server dies or hangs, start it again. Raises EngineError once the attempts are used up."""
        failures = 0
        while True:
            since = time.monotonic()
            self.last_error, self.state = await self._trouble(), "restarting"
            failures = 0 if time.monotonic() - since > STEADY_S else failures
            while self.state != "ready":
                if failures == len(PAUSES_S):
                    self.state = "failed"
                    raise EngineError(f"vLLM does not come back: {self.last_error}", hint="see its log above")
                console.warn(f"{self.last_error}; starting it again in {PAUSES_S[failures]} s")
                await self._stop_server()
                await asyncio.sleep(PAUSES_S[failures])
                failures += 1
                try:
                    async with self._loading:
                        await self._start_server()
                        if self._loaded is not None:
                            await self._load(self._loaded)
                        self.state = "ready"
                except Exception as error:  # any error: the next attempt may succeed
                    self.last_error = error.message if isinstance(error, SmolsumError) else repr(error)
            self.restarts += 1

    async def _trouble(self) -> str:
        """Wait until the server has died or hangs; returns which."""
        ended = asyncio.create_task(self.api.ended())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=BEAT_S)
                if ended.done() or self._loading.locked():  # loading weights has its own time limit
                    continue
                try:
                    await self.api.rpc("smolsum_beat", timeout=HANG_S)
                except SilentError:
                    return f"vLLM did nothing for {HANG_S:.0f} s"
                except SmolsumError:
                    pass  # it is dying
            return f"vLLM died: {ended.result()}"
        finally:
            ended.cancel()

    async def _load(self, weights: ServedWeights) -> None:
        """Have the server load these weights, and check that it did."""
        folder: Path | None = None
        try:
            with writing(self._pushed, RETRY):
                self._pushed.mkdir(exist_ok=True)
                folder = Path(tempfile.mkdtemp(dir=self._pushed))
            if weights.lora is not None:
                await asyncio.to_thread(write_adapters, weights.arrays, weights.lora, folder)
                await self._swap_adapters(f"{SERVED_NAME}-{next(self._numbers)}", folder)
                folder, self._adapters = self._adapters, folder  # the server may read its adapters again later
            else:
                path = folder / "model.safetensors"
                await asyncio.to_thread(write_weights, weights.arrays, path)
                await self._swap_weights(weights.arrays, str(path))
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    async def _swap_weights(self, arrays: Mapping[str, Any], path: str) -> None:
        async with self._all_or_nothing():
            wrong = await self._misfit(arrays)
            if not wrong:
                await self.api.rpc("smolsum_load", path, timeout=TIMEOUT_S)
                checked = await self.api.rpc("smolsum_check", path, CHECKED_COLUMNS, timeout=TIMEOUT_S)
                if differing := [*checked["wrong"], *checked["unseen"]]:
                    raise EngineError(f"vLLM does not serve {differing[0]} as it was sent", hint="report this")
                await self.api.post("/reset_prefix_cache", None, TIMEOUT_S)
        if wrong:  # nothing was replaced, so the server goes on
            raise EngineError(wrong, hint=self._found.hint)

    async def _swap_adapters(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await self.api.post("/v1/load_lora_adapter", body, TIMEOUT_S)
        async with self._all_or_nothing():
            before, self._serving = self._serving, name
            if before != SERVED_NAME:
                await self.api.post("/v1/unload_lora_adapter", {"lora_name": before}, TIMEOUT_S)
            await self.api.post("/reset_prefix_cache", None, TIMEOUT_S)

    @asynccontextmanager
    async def _all_or_nothing(self) -> AsyncIterator[None]:
        """End the server if the block fails, as it could serve a mixture; it restarts with the weights it served."""
        try:
            yield
        except Exception:  # whatever failed, some weights may be new and some old
            await self._stop_server()
            raise

    async def _score(self, prompt: list[int], ids: list[int]) -> list[float]:
        scored = (await self._places(prompt + ids, 0))[len(prompt) :]
        return [place[str(i)]["logprob"] for place, i in zip(scored, ids, strict=True)]

    async def _places(self, ids: Sequence[int], wanted: int) -> list[dict[str, dict[str, float]]]:
        """Return for each token of a text, by token id, its log-prob and those of the `wanted` likeliest in its place;
        the first one has none."""
        body = {"model": self._serving, "prompt": list(ids), "max_tokens": 1, "temperature": 0}
        (choice,) = (await self.api.post("/v1/completions", body | {"prompt_logprobs": wanted}))["choices"]
        places = choice.get("prompt_logprobs") or []
        if len(places) != len(ids):  # vllm-metal answered [None] before 0.29.0
            raise EngineError(f"vLLM returned log-probs of {len(places)} of {len(ids)} tokens", hint=self._found.hint)
        return places

    def _narrate(self, line: str) -> None:
        """Narrate a line of the server's log now and then while it starts."""
        if self.state != "ready" and time.monotonic() - self._narrated > 5:
            self._narrated = time.monotonic()
            console.narrate(f"vllm: {line}")


def type_of(config: Mapping[str, Any]) -> Dtype:
    """Return the type of a checkpoint's weights by its config.json, which may have it in its `text_config`, under the
    older name `torch_dtype`, or not at all: then bfloat16."""
    records = (config, config.get("text_config") or {})
    named = [record.get(key) for key in ("dtype", "torch_dtype") for record in records]
    return next((known for name in named for known in DTYPES if known == name), "bfloat16")


def write_weights(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays as safetensors. Raises SmolsumError, and leaves no file, if the disk refuses."""
    header, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        dtype = SAFETENSORS_TYPES[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    packed = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    packed += b" " * (-len(packed) % 8)
    with writing(path, RETRY):
        try:
            with path.open("wb") as file:
                file.write(len(packed).to_bytes(8, "little") + packed)
                for array in arrays.values():
                    file.write(np.ascontiguousarray(array).data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write_adapters(arrays: Mapping[str, Any], lora: LoraConfig, folder: Path) -> None:
    """Write mlx-lm's adapters (y += scale * (x A) B) as PEFT's (y += alpha / r * B A x). Raises as `write_weights`."""
    turned = {_peft(name): np.ascontiguousarray(array.T) for name, array in arrays.items()}
    modules = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in arrays})
    facts = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": lora.rank, "lora_alpha": lora.scale * lora.rank}
    facts |= {"target_modules": modules, "bias": "none", "use_dora": False, "use_rslora": False}
    write_weights(turned, folder / "adapter_model.safetensors")
    replace(folder / "adapter_config.json", to_json(facts), RETRY)


def _peft(name: str) -> str:
    """`layers.0.q_proj.lora_a` as `base_model.model.layers.0.q_proj.lora_A.weight`."""
    module, _, kind = name.rpartition(".")
    return f"base_model.model.{module}.{kind.replace('lora_a', 'lora_A').replace('lora_b', 'lora_B')}.weight"


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the shape of each weight, as `smolsum_misplaced` of the plugin takes them."""
    return {name: list(array.shape) for name, array in arrays.items()}


def slope(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Return how many times further apart the second log-probs are than the first, over the tokens that both have, by
    least squares; None where the first are all about the same."""
    both = [(first[i], second[i]) for i in first if i in second and min(first[i], second[i]) > MIN_LOGPROB]
    x, y = np.array(both).reshape(-1, 2).T
    return float(np.polyfit(x, y, 1)[0]) if len(both) and np.var(x) >= SPREAD else None
