"""What a run was made from: config.toml, and run.json with command line, versions, machine and fingerprints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from itertools import accumulate
from typing import Any

from smolsum.config.sections import Config, to_toml
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import read_jsonl, replace
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths

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
    replace(paths.config, to_toml(config).encode(), paths.resume_command, durable=True)
    _write_info(paths, info)


def take_up(
    paths: RunPaths, steps: Mapping[str, int], fingerprints: Mapping[str, str], provenance: Mapping[str, Any]
) -> None:
    """Take over what a resumed run has of other settings for stages that have not begun. UsageError where what has
    begun would not be what run.json tells of; SmolsumError where that is damaged."""
    again = f"start a new run: smolsum train --config {paths.config} --name OTHER"
    try:
        info = json.loads(paths.info.read_text())
        planned, known = dict(info["steps"]), dict(info["fingerprints"])
    except (ValueError, TypeError, KeyError) as error:
        raise SmolsumError(f"{paths.info} is damaged: {error}", hint=f"restore it, or {again}") from error
    for key in FIXED:
        now = json.loads(json.dumps(provenance[key]))
        if info.get(key) != now:
            raise UsageError(
                f"run {paths.name} began with another {key}: {info.get(key)} then, {now} now",
                hint=f"restore it, or {again}",
            )
    settings = json.loads(json.dumps(provenance["settings"]))
    for number, name in enumerate(_begun(paths, planned)):
        if list(steps)[number : number + 1] != [name]:
            problem = f"has begun stage {name}, which config.toml has no more in its place"
        elif fingerprints[name] != known[name]:
            told = _differences(info.get("settings", {}), settings, name)
            problem = f"began stage {name} with other settings{told and f': {told}'}"
        else:
            continue
        raise UsageError(
            f"run {paths.name} {problem}",
            hint=f"restore {paths.config}; or, keeping the stages that are the same, {again}",
        )
    now = {"steps": dict(steps), "fingerprints": dict(fingerprints), "settings": settings}
    if any(info.get(key) != value for key, value in now.items()):
        _write_info(paths, info | now)


def _begun(paths: RunPaths, planned: Mapping[str, int]) -> list[str]:
    """The stages of which something may be on the disk: the first, as the start is evaluated with its settings, and
    those that have a step or a checkpoint."""
    last = [row["step"] for row in read_jsonl(paths.metrics)[-1:]] + [c.step for c in list_checkpoints(paths)[-1:]]
    starts = accumulate(planned.values(), initial=0)
    return [name for name, start in zip(planned, starts, strict=False) if start < max([*last, 1])]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], stage: str) -> str:
    """The settings of the stage, and those of all stages, that differ; empty where it was not written down."""
    keys = [key for key in {**then, **now} if not key.startswith("stages.") or key.startswith(f"stages.{stage}.")]
    changed = [key for key in keys if then.get(key) != now.get(key)] if then else []
    return ", ".join(f"{key} ({then.get(key, 'none')} then, {now.get(key, 'none')} now)" for key in changed)


def _write_info(paths: RunPaths, info: Mapping[str, Any]) -> None:
    replace(paths.info, json.dumps(info, indent=2).encode() + b"\n", paths.resume_command, durable=True)
