"""What a run was made from: config.toml, and run.json with command line, versions, machine and fingerprints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from smolsum.config import Config, to_toml
from smolsum.disk import replace
from smolsum.errors import SmolsumError, UsageError
from smolsum.runs import RunPaths

FIXED = ("model", "tokenizer", "data", "meteor")
"""what a resumed run must find as it was"""


def write(
    paths: RunPaths,
    config: Config,
    steps: Mapping[str, int],
    fingerprints: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write both files: `steps` and `fingerprints` by stage, `provenance` as `materials.gather` found it."""
    info = {
        "schema_version": 1,
        "argv": sys.argv,
        "created": datetime.now().astimezone().isoformat(),
        "steps": dict(steps),
        "fingerprints": dict(fingerprints),
        **provenance,
    }
    remedy = paths.resume_command
    replace(paths.config, to_toml(config).encode(), remedy, durable=True)
    replace(paths.info, json.dumps(info, indent=2).encode() + b"\n", remedy, durable=True)


def compare(paths: RunPaths, provenance: Mapping[str, Any]) -> None:
    """UsageError where a resumed run would not be what run.json tells of; SmolsumError where that is damaged."""
    try:
        info = dict(json.loads(paths.info.read_text()))
    except ValueError as error:
        raise SmolsumError(
            f"{paths.info} is damaged: {error}",
            hint=f"restore it, or start a new run: smolsum train --config {paths.config}",
        ) from error
    for key in FIXED:
        now = json.loads(json.dumps(provenance[key]))
        if info.get(key) != now:
            raise UsageError(
                f"run {paths.name} began with another {key}: {info.get(key)} then, {now} now",
                hint=f"restore it, or start a new run: smolsum train --config {paths.config}",
            )
