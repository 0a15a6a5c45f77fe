"""Write what a run is made from, config.toml and run.json, and check it when the run is resumed."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from typing import Any

from smolsum.config.hub import hub_name
from smolsum.config.sections import Config, to_toml
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import read_jsonl, replace
from smolsum.runs.checkpoints import list_checkpoints
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import checked, parse, read, read_object
from smolsum.runs.records import SCHEMA_VERSION, RunInfo, StepRow

FIXED = ("model", "tokenizer", "data", "meteor")
"""Facts that must be the same when a run is resumed."""


def write(
    paths: RunPaths,
    config: Config,
    steps: Mapping[str, int],
    fingerprints: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write both files of a new run: `steps` and `fingerprints` by stage, `provenance` of model, data and machine."""
    info = {
        "schema_version": SCHEMA_VERSION,
        "argv": sys.argv,
        "created": datetime.now().astimezone().isoformat(),
        "steps": dict(steps),
        "fingerprints": dict(fingerprints),
        **provenance,
    }
    replace(paths.config, to_toml(config).encode(), paths.resume_command, durable=True)
    _write_info(paths, info)


def copy_plugins(paths: RunPaths, files: Mapping[str, bytes]) -> None:
    """Keep copies of the users' code that a new run executes, by relative path."""
    for name, content in files.items():
        (paths.plugins / name).parent.mkdir(parents=True, exist_ok=True)
        replace(paths.plugins / name, content, paths.resume_command)


def at_commit(config: Config, paths: RunPaths) -> Config:
    """Return the settings with the hub data set at the commit that the run read, so that a resumed run and its
    evaluations read the same; unchanged where run.json names no commit for it."""
    with suppress(SmolsumError):  # a damaged file is reported where the run is resumed
        commit, name = read(paths.info, RunInfo).revisions.get(config.data.path), hub_name(config.data.path)
        if commit and name:
            path = str(dataclasses.replace(name, revision=commit))
            return dataclasses.replace(config, data=dataclasses.replace(config.data, path=path))
    return config


def base_of(paths: RunPaths) -> str:
    """Return the fingerprint of the weights that the run began with; empty where run.json does not say."""
    with suppress(SmolsumError):
        return read(paths.info, RunInfo).model.weights
    return ""


def recorded_info(paths: RunPaths) -> RunInfo | None:
    """Return what run.json says of a run that is resumed; None where it has none yet. Raises SmolsumError where it is
    damaged."""
    return _read(paths)[1] if paths.info.exists() else None


def check_resume(
    paths: RunPaths, steps: Mapping[str, int], fingerprints: Mapping[str, str], provenance: Mapping[str, Any]
) -> None:
    """Check a resumed run against run.json, and record the new settings of stages that have not begun. UsageError where
    a stage that has begun has other settings or facts now. Raises SmolsumError where run.json is damaged."""
    again = _again(paths)
    info, then = _read(paths)
    for key in FIXED:
        now = json.loads(json.dumps(provenance[key]))
        if info.get(key) != now:
            raise UsageError(
                f"run {paths.name} began with another {key}: {info.get(key)} then, {now} now",
                hint=f"restore it, or {again}",
            )
    settings = json.loads(json.dumps(provenance["settings"]))
    for number, name in enumerate(_begun(paths, then.steps)):
        if list(steps)[number : number + 1] != [name]:
            problem = f"has begun stage {name}, which config.toml no longer has in that place"
        elif fingerprints[name] != then.fingerprints.get(name):
            changed = _differences(then.settings, settings, name)
            problem = f"began stage {name} with other settings{changed and f': {changed}'}"
        else:
            continue
        raise UsageError(
            f"run {paths.name} {problem}",
            hint=f"restore {paths.config}; or, keeping the stages that are the same, {again}",
        )
    now = {"steps": dict(steps), "fingerprints": dict(fingerprints), "settings": settings}
    if any(info.get(key) != value for key, value in now.items()):
        _write_info(paths, info | now)


def _again(paths: RunPaths) -> str:
    return f"start a new run: smolsum train --config {shlex.quote(str(paths.config))} --name OTHER"


def _read(paths: RunPaths) -> tuple[dict[str, Any], RunInfo]:
    """Return run.json as it is, and as a record."""
    hint = f"restore it, or {_again(paths)}"
    info = read_object(paths.info, hint=hint)
    return info, parse(info, RunInfo, str(paths.info), needs=("steps", "fingerprints"), hint=hint)


def _begun(paths: RunPaths, planned: Mapping[str, int]) -> list[str]:
    """The stages that may have left something on the disk: the first, since the start is evaluated with its settings,
    and those that have a step or a checkpoint."""
    rows = [parse(row, StepRow, str(paths.metrics)) for row in read_jsonl(paths.metrics)[-1:]]
    last = [row.step for row in rows] + [checkpoint.step for checkpoint in list_checkpoints(paths)[-1:]]
    starts = accumulate(planned.values(), initial=0)
    return [name for name, start in zip(planned, starts, strict=False) if start < max([*last, 1])]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], stage: str) -> str:
    """The settings of the stage and of all stages that differ, in words; empty where run.json does not have them."""
    keys = [key for key in {**then, **now} if not key.startswith("stages.") or key.startswith(f"stages.{stage}.")]
    changed = [key for key in keys if then.get(key) != now.get(key)] if then else []
    return ", ".join(f"{key} ({then.get(key, 'none')} then, {now.get(key, 'none')} now)" for key in changed)


def _write_info(paths: RunPaths, info: dict[str, Any]) -> None:
    replace(
        paths.info, json.dumps(checked(RunInfo, info), indent=2).encode() + b"\n", paths.resume_command, durable=True
    )
