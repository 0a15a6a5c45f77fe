"""What may be shared of a run: the files that its results trace to, as a run directory that reports and tests read.

Left out are the texts of data and completions, users' code, and what tells of the machines: folders, hosts, addresses.
"""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

from smolsum.errors import SmolsumError
from smolsum.files import json_lines, replace, to_json
from smolsum.runs.evaluation_records import SCORES, SUMMARY
from smolsum.runs.paths import RunPaths
from smolsum.runs.record_io import has_scores, read, read_object, read_summary
from smolsum.runs.records import RunInfo

NAMES = ("id", "split", "data", "judge", "task")
"""the keys of a line of scores whose texts are names and fingerprints"""
PRIVATE = {"blas", "argv", "endpoint", "dir", "mirror", "urls", "pid", "host"}
"""keys of a machine or its network, in any record"""
FOLDERS = re.compile(r"/(?:[^/()]+/)*")
"""those of WordNet, in the name of METEOR's matcher"""


def write_evidence(run: RunPaths, step: int, folder: Path, remedy: str) -> RunPaths:
    """Write the run as it was after a step into `folder`, under its name, and return the paths there.

    Raises SmolsumError for a damaged file, and errors as of `writing`, with `remedy`.
    """
    made = RunPaths(folder / run.name)
    info = read(run.info, RunInfo, needs=("steps",))
    steps = _until(info.steps, step)
    config = read_object(run.config)
    config["stages"] = {name: stage for name, stage in config["stages"].items() if name in steps}
    replace(made.config, tomli_w.dumps(_public(config)).encode(), remedy)
    replace(made.info, to_json(_public(read_object(run.info)) | {"steps": steps}, indent=2), remedy)
    replace(made.status, to_json({"state": "finished", "step": step, "steps": step}, indent=2), remedy)
    rows = [row for _, row in json_lines(run.metrics) if row.get("step", step + 1) <= step]
    rows = [{key: value for key, value in row.items() if not key.startswith("workers/")} for row in rows]
    replace(made.metrics, b"".join(map(to_json, rows)), remedy)
    for evaluation in sorted(filter(has_scores, run.evaluations.glob("*"))):
        with suppress(SmolsumError):  # a damaged one proves nothing
            if (at := read_summary(evaluation).step) is not None and at <= step:
                _copy_evaluation(evaluation, made.evaluation(evaluation.name), remedy)
    return made


def _until(steps: Mapping[str, int], end: int) -> dict[str, int]:
    """Return the steps of each stage up to `end`."""
    found: dict[str, int] = {}
    for stage, count in steps.items():
        if (left := end - sum(found.values())) > 0:
            found[stage] = min(count, left)
    return found


def _copy_evaluation(source: Path, target: Path, remedy: str) -> None:
    replace(target / SUMMARY, to_json(_public(read_object(source / SUMMARY)), indent=2), remedy)
    rows = (
        {key: value for key, value in row.items() if _is_score(key, value)} for _, row in json_lines(source / SCORES)
    )
    replace(target / SCORES, b"".join(map(to_json, rows)), remedy)


def _is_score(key: str, value: Any) -> bool:
    """Return whether a value of a line of scores is no text, or one of NAMES."""
    if isinstance(value, list):
        return all(_is_score("", one) for one in value)
    if isinstance(value, Mapping):
        return all(_is_score("", one) for one in value.values())
    return key in NAMES or not isinstance(value, str)


def _public(value: Any, key: str = "") -> Any:
    """Return a record without private keys, its paths on this machine as the last of their parts."""
    if isinstance(value, Mapping):
        return {name: _public(one, name) for name, one in value.items() if name not in PRIVATE}
    if isinstance(value, list):
        return [_public(one, key) for one in value]
    return _without_folders(value, key) if isinstance(value, str) else value


def _without_folders(text: str, key: str) -> str:
    if key.endswith("path"):
        return _name(text)
    if key.endswith("plugins"):
        return ",".join(map(_name, text.split(",")))
    if key == "command":
        tokens = (token.rpartition("=") for token in shlex.split(text))
        return shlex.join(f"{before}{sign}{_name(last)}" for before, sign, last in tokens)
    return FOLDERS.sub("", text) if key == "meteor" else text


def _name(path: str) -> str:
    """Return the last part of an absolute path, anything else as it is."""
    return PurePosixPath(path).name if path.startswith(("/", "~")) else path
