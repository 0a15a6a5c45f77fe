"""A vLLM server as a child process: starting and ending it, and calling its HTTP API.

vLLM itself is never imported; it lives in its own environment.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from smolsum.errors import MachineError, UsageError
from smolsum.policy.sampling import Completion, SampledToken
from smolsum.rollout.worker.engines import die_with_owner
from smolsum.rollout.worker.engines.base import EngineError
from smolsum.rollout.worker.engines.vllm_setup import how_to_install

TIMEOUT_S = 900.0
"""that a server may take to start or to load weights; a large model with CUDA graphs needs minutes"""
POLL_S = 0.25
"""between two checks of the process"""
MAX_LOG_LINES, MAX_SHOWN_LINES = 200, 12
"""lines of its log that are kept, and shown in an error"""
MAX_PATH_BYTES = 66
"""bytes of the path of a folder for vLLM's sockets: a Mac allows 103 for a socket, and their names have 36"""
HINTS = (
    ("torchvision::nms", "{python} -m pip uninstall torchvision torchaudio torchcodec: text models do not need them"),
    ("No module named 'vllm'", how_to_install()),
    ("VLLM_CPU_KVCACHE_SPACE", "export VLLM_CPU_KVCACHE_SPACE=1 (GiB), or --max-model-len N with a smaller N"),
    ("not enough Metal memory", "end other programs, or --max-model-len N with a smaller N"),
    ("No available memory for the cache", "--max-model-len N with a smaller N, or end what else uses the GPU"),
    ("larger than the available KV cache memory", "--max-model-len N with a smaller N"),
    ("out of memory", "--max-model-len N with a smaller N, or end what else uses the memory"),
    ("Free memory on device", "end what else uses the GPU"),
    ("are not supported for now", "--engine mlx supports other architectures"),
    ("No space left on device", "free some space, or --work-dir on another disk"),
)
"""text in a log, and the hint"""
HIDDEN_VARIABLES = "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SMOLSUM_WORKER_TOKEN"
"""variables that the child must not inherit"""


class SilentError(EngineError):
    """A server did not answer in time."""


class VllmServer:
    """One vLLM server, from its start to its end.

    Every method that asks it raises UsageError for a request that it refuses, and EngineError if it fails, is gone, or
    does not answer in time.

    It listens on a Unix socket in a folder that only this user can read: its API has no token, and lets clients write
    files and load modules.
    """

    def __init__(self, python: str, arguments: Sequence[str], folder: Path, on_line: Callable[[str], None]) -> None:
        self.python, self.arguments, self.folder, self._on_line = python, arguments, folder, on_line
        self.socket = _temporary(folder) / "vllm.sock"
        # no timeout for rollouts: the engine ends a server that hangs, and with it the connections
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), limits=httpx.Limits(max_connections=None))
        self._client = httpx.AsyncClient(base_url="http://vllm", transport=transport, timeout=None)
        self._lines = deque[str](maxlen=MAX_LOG_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it and wait until it answers. Raises MachineError with the end of its log and a hint."""
        self.socket.unlink(missing_ok=True)  # left by a server that was killed
        server = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--uds", str(self.socket)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(die_with_owner.__file__), *server, *self.arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            cwd=self.folder, env=environment(self.folder), start_new_session=True, limit=1 << 20,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            if self._process.returncode is not None:
                await self.stop()
                raise self._error("vLLM did not start")
            with suppress(httpx.HTTPError):
                if (await self._client.get("/health", timeout=5)).is_success:
                    return
            await asyncio.sleep(POLL_S)
        await self.stop()
        raise self._error(f"vLLM did not answer within {TIMEOUT_S:.0f} s")

    async def ended(self) -> str:
        """Wait for its end; returns the line of its log that explains it."""
        await self._exited()
        await self.stop()
        return self.last_words()

    async def stop(self) -> None:
        """End it and all processes that it started; requests under way fail. May be called again, also concurrently."""
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
            await asyncio.wait_for(self._exited(), 2 * die_with_owner.KILL_AFTER_S)
        with suppress(ProcessLookupError):  # a watchdog that was killed left the others running
            os.killpg(process.pid, signal.SIGKILL)
        await self._exited()
        await asyncio.wait({self._reading}, timeout=die_with_owner.KILL_AFTER_S)
        self._reading.cancel()
        await self._client.aclose()

    async def _exited(self) -> None:
        """Wait for the end of the watchdog alone; `Process.wait` also waits for all that hold its pipes."""
        assert self._process is not None
        while self._process.returncode is None:
            await asyncio.sleep(POLL_S)

    def last_words(self) -> str:
        """Return the line of the log that best explains its end: the last error, else the last line."""
        errors = [line for line in self._lines if " ERROR " in line]
        return (errors or list(self._lines) or ["nothing"])[-1].strip()

    def _error(self, what: str) -> MachineError:
        log = "\n".join(self._lines)
        hint = next((text for sign, text in HINTS if sign in log), "run the command above by hand")
        tail = "\n  ".join(list(self._lines)[-MAX_SHOWN_LINES:])
        command = f"{self.python} -m vllm.entrypoints.openai.api_server {' '.join(self.arguments)}"
        return MachineError(f"{what}; {command} ended with:\n  {tail}", hint=hint.format(python=self.python))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await _line(process.stdout):
            self._lines.append(line.decode(errors="replace").rstrip())
            self._on_line(self._lines[-1])

    async def rpc(self, method: str, *arguments: Any, timeout: float) -> Any:
        """Call a method of the plugin; returns its result. `timeout` in seconds."""
        answer = await self.post("/collective_rpc", {"method": method, "args": list(arguments)}, timeout)
        return answer["results"][0] if answer else None

    async def complete(self, body: Mapping[str, Any], on_token: Callable[[SampledToken], None] | None) -> Completion:
        """Sample the body of a /v1/completions request; `on_token` gets each token."""
        if on_token is not None:
            return await self._stream({**body, "stream": True}, on_token)
        (choice,) = (await self.post("/v1/completions", body))["choices"]
        return _completion(_tokens(choice, body["logprobs"]), choice["finish_reason"])

    async def post(self, path: str, body: Any, timeout: float | None = None) -> Any:
        """Return the JSON of the answer, or None."""
        try:
            answer = await self._client.post(path, json=body, timeout=timeout)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed for a new server
            raise _lost(error) from error
        if answer.status_code == 400:
            raise UsageError(f"vLLM refuses: {_message(answer.content)}", hint="change the request")
        if not answer.is_success:
            raise EngineError(f"vLLM failed: {_message(answer.content)}", hint="see the worker's log")
        with suppress(ValueError):
            return answer.json()
        return None

    async def _stream(self, body: dict[str, Any], on_token: Callable[[SampledToken], None]) -> Completion:
        tokens: list[SampledToken] = []
        reason = "length"
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    raise EngineError(f"vLLM failed: {_message(await answer.aread())}", hint="try again later")
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    for choice in json.loads(line[6:]).get("choices", []):
                        for token in _tokens(choice, body["logprobs"]):
                            tokens.append(token)
                            on_token(token)
                        reason = choice["finish_reason"] or reason
        except (httpx.HTTPError, RuntimeError) as error:
            raise _lost(error) from error
        return _completion(tokens, reason)


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than any useful line
        return b"(a line that is too long)\n"


def environment(folder: Path) -> dict[str, str]:
    """Return the child's environment: files stay in the folder, no network access, and the plugin is importable."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    cache = folder / "cache"
    return {
        # read by the CPU build alone, which would take half the memory by default; the user's own value wins
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **kept,
        "PYTHONPATH": str(Path(__file__).parents[1] / "vllm_plugin"),
        "VLLM_SERVER_DEV_MODE": "1",  # else there is no /collective_rpc, by which the plugin is called
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # else adapters are fixed when the server starts
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
    """Return the folder of the child's sockets, which no other user can read."""
    path = folder / "tmp"
    if len(str(path)) > MAX_PATH_BYTES:
        raise UsageError(
            f"--work-dir {folder}: the path is too long for sockets", hint="--work-dir with a shorter path"
        )
    path.mkdir(exist_ok=True)
    path.chmod(0o700)  # the work folder itself may be readable by others
    return path


def _lost(error: Exception) -> EngineError:
    if isinstance(error, httpx.TimeoutException):
        return SilentError("vLLM does not answer", hint="try again later")
    return EngineError(f"vLLM went away: {error or type(error).__name__}", hint="try again later")


def _tokens(choice: Mapping[str, Any], wanted: int) -> list[SampledToken]:
    """Return the tokens of a choice, or of a piece of one. Raises EngineError for tokens without log-probs."""
    ids, given = choice.get("token_ids") or [], choice.get("logprobs") or {}
    logprobs = given.get("token_logprobs") or []
    if len(ids) != len(logprobs):
        raise EngineError(f"vLLM returned {len(logprobs)} log-probs for {len(ids)} tokens", hint="try again")
    tops = [_likeliest(top)[:wanted] for top in given.get("top_logprobs") or []] if wanted else [()] * len(ids)
    return [SampledToken(*each) for each in zip(ids, logprobs, tops, strict=True)]


def _likeliest(top: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Return token ids with log-probs, the likeliest first, from vLLM's `{"token_id:5": -0.3}`."""
    found = [(int(key.removeprefix("token_id:")), value) for key, value in (top or {}).items()]
    return tuple(sorted(found, key=lambda one: -one[1]))


def _completion(tokens: list[SampledToken], reason: str) -> Completion:
    if reason not in ("stop", "length"):
        raise EngineError(f"vLLM returned a rollout that ended by {reason!r}", hint="try again")
    ids, logprobs, likeliest = zip(*tokens, strict=True) if tokens else ((), (), ())
    return Completion(ids, logprobs, "stop" if reason == "stop" else "length", likeliest if any(likeliest) else ())


def _message(content: bytes) -> str:
    try:
        answer = json.loads(content)
        return str((answer.get("error") or {}).get("message") or answer)
    except (ValueError, AttributeError):
        return content[:300].decode(errors="replace")
