"""What may be shared of a run: the files that its results trace to, as a run directory that reports and tests read.

Left out are the texts of data and completions, users' code, and what tells of the machines: folders, hosts, addresses.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import tomli_w

from smolsum.errors import SmolsumError
from smolsum.files import digest, json_lines, read_jsonl, replace, to_json
from smolsum.runs.evaluation_records import SCORES, SUMMARY
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import has_scores, read, read_object, read_summary

NAMES = ("id", "split", "data", "judge", "task")
"""the keys of a line of scores whose texts are names and fingerprints"""
PRIVATE = {
    "blas", "argv", "endpoint", "dir", "mirror", "urls", "pid", "host", "track", "track_project", "command", "error",
}  # fmt: skip
"""keys of a machine, its network or accounts, in any record; an error may quote an answer"""
FOLDERS = re.compile(r"/(?:[^/()]+/)*")
"""those of WordNet, in the name of METEOR's matcher"""
ADDRESS = re.compile(r" at (https?://[^\s,]+)")
"""that of an endpoint, in the name of a judge"""


def write_evidence(run: RunPaths, step: int, folder: Path, retry: str, warn: Callable[[str], None]) -> RunPaths:
    """Write the run as it was after a step into `folder`, under its name, and return the paths there. `warn` gets a
    sentence on each damaged evaluation, which is left out.

    Raises SmolsumError for any other damaged file, and what `writing` raises, with `retry`.
    """
    made = RunPaths(folder / run.name)
    info = read(run.info, RunInfo, needs=("steps",))
    steps, hub = _until(info.steps, step), info.revisions
    config = read_object(run.config)
    if not isinstance(stages := config.get("stages"), Mapping):
        raise SmolsumError(f"{run.config} is damaged: it has no stages", hint="restore it from a copy")
    config["stages"] = {name: stage for name, stage in stages.items() if name in steps}
    replace(made.config, tomli_w.dumps(public(config, hub)).encode(), retry)
    replace(made.info, to_json(public(read_object(run.info), hub) | {"steps": steps}, indent=2), retry)
    replace(made.status, to_json({"state": "finished", "step": step, "steps": step}, indent=2), retry)
    rows = [row for _, row in json_lines(run.metrics) if row.get("step", step + 1) <= step]
    rows = [{key: value for key, value in row.items() if not key.startswith("workers/")} for row in rows]
    replace(made.metrics, b"".join(map(to_json, rows)), retry)
    for evaluation in sorted(filter(has_scores, run.evaluations.glob("*"))):
        try:
            summary, scores = read_summary(evaluation), read_jsonl(evaluation / SCORES)
            if summary.n != len(scores):
                raise SmolsumError(f"{evaluation} has {len(scores)} scores for {summary.n} examples")
            if yet := summary.so_far:
                raise SmolsumError(f"{evaluation} has {yet} examples yet; {run.resume_command} evaluates the others")
        except SmolsumError as error:
            warn(f"not in the card: {error.message}")
            continue
        if summary.step is not None and summary.step <= step:
            target = made.evaluation(evaluation.name)
            replace(target / SUMMARY, to_json(public(read_object(evaluation / SUMMARY), hub), indent=2), retry)
            replace(target / SCORES, b"".join(to_json(_scores(row, hub)) for row in scores), retry)
    return made


def _until(steps: Mapping[str, int], end: int) -> dict[str, int]:
    """Return the steps of each stage up to `end`."""
    found: dict[str, int] = {}
    for stage, count in steps.items():
        if (left := end - sum(found.values())) > 0:
            found[stage] = min(count, left)
    return found


def _scores(row: Mapping[str, Any], hub: Collection[str]) -> Any:
    """Return a line of scores without texts."""
    return public({key: value for key, value in row.items() if _is_score(key, value)}, hub)


def _is_score(key: str, value: Any) -> bool:
    """Return whether a value of a line of scores is not a text, or one of NAMES."""
    if isinstance(value, list):
        return all(_is_score("", one) for one in value)
    if isinstance(value, Mapping):
        return all(_is_score("", one) for one in value.values())
    return key in NAMES or not isinstance(value, str)


def public(value: Any, hub: Collection[str], key: str = "") -> Any:
    """Return a record of a run without private keys, its paths on this machine as the last of their parts; `hub` has
    the names that are from the hub."""
    if isinstance(value, Mapping):
        return {name: public(one, hub, name) for name, one in value.items() if name not in PRIVATE}
    if isinstance(value, list):
        return [public(one, hub, key) for one in value]
    return _without_places(value, hub, key) if isinstance(value, str) else value


def _without_places(text: str, hub: Collection[str], key: str) -> str:
    if key.endswith(("path", "chat_template", "scores")):
        return text if text in hub else PurePosixPath(text).name or text
    if key.endswith("plugins"):
        return ",".join(PurePosixPath(path).name for path in text.split(","))
    if key == "judge":  # judges of one name at two addresses stay two judges
        return ADDRESS.sub(lambda found: f" at endpoint {digest(found[1])[:8]}", text)
    if key == "source":  # of a memory limit: that of a cgroup names its folder
        return text.partition(" /")[0]
    return FOLDERS.sub("", text) if key == "meteor" else text
