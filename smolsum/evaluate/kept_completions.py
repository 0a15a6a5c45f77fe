"""Completions that an evaluation need not make, as another one in the folder of runs made them: by the same model from
the same prompts, with the same settings. They stand where they were made, and are only read.

So a model is sampled once, be it for `smolsum baseline`, `smolsum eval`, or the start of any number of trainings, and
what one evaluation was stopped in the middle of serves the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from smolsum.errors import SmolsumError
from smolsum.evaluate.storage import KEY, ORIGIN, whole_groups
from smolsum.files import digest, json_objects, read_bytes, whole_lines
from smolsum.policy.load import Policy
from smolsum.runs.evaluation_records import GENERATIONS, Generation
from smolsum.runs.paths import LATEST
from smolsum.runs.record_io import read_object
from smolsum.types import Prompt, RolloutGroup


def completions_key(policy: Policy, weights: str, quantize: int, decided_by: Mapping[str, Any]) -> str:
    """Return the fingerprint of all that decides completions: the policy with the fingerprint of its weights, the bits
    that they are quantised to, what else decides them (prompts, decoding), and the version of smolsum. Place, machine
    and engine are no part of it."""
    architecture = [policy.config, sorted(policy.eos_ids), policy.dtype, quantize]
    return digest([weights, architecture, decided_by, version("smolsum")])


def find_kept(
    prompts: Sequence[Prompt], samples: int, *, key: str, runs_dir: Path, but: Path
) -> tuple[list[RolloutGroup], list[Path]]:
    """Return the completions of the prompts that evaluations with this key have, in whole groups, and the folders of
    these evaluations, except `but`. What is damaged or half written counts as missing."""
    found: dict[str, RolloutGroup] = {}
    folders = []
    for folder in _evaluations(runs_dir, key) if key else ():
        missing = [prompt for prompt in prompts if prompt.id not in found]
        if missing and folder.resolve() != but.resolve():
            groups = whole_groups(_readable(folder), missing, samples)
            found |= {group.prompt.id: group for group in groups}
            folders += [folder] if groups else []
    return [found[prompt.id] for prompt in prompts if prompt.id in found], folders


def _evaluations(runs_dir: Path, key: str) -> Iterator[Path]:
    """Yield the folders of evaluations with this key, inside of runs and next to them."""
    for pattern in (f"*/{ORIGIN}", f"*/eval/*/{ORIGIN}"):
        for path in sorted(runs_dir.glob(pattern)):
            if path.relative_to(runs_dir).parts[0] != LATEST:
                with suppress(SmolsumError):
                    if read_object(path).get(KEY) == key:
                        yield path.parent


def _readable(folder: Path) -> Iterator[Generation]:
    """Yield the completions that can be read."""
    content = b""
    with suppress(SmolsumError):
        content = read_bytes(folder / GENERATIONS)
    for row in json_objects(whole_lines(content)):
        with suppress(msgspec.ValidationError, RecursionError):
            yield msgspec.convert(row, Generation)
