"""Sweeps: `--set KEY=A,B` and `--seeds N` stand for several runs each, crossed with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_origin

from smolsum.config.fields import base_type
from smolsum.config.resolve import Schema, find_schema, resolve
from smolsum.errors import UsageError
from smolsum.runs.paths import safe_name
from smolsum.tasks import TASKS


@dataclass(frozen=True)
class Variant:
    """One combination of a sweep: its `--set` values, and what makes its runs' names differ."""

    sets: tuple[str, ...]
    suffix: str


def variants(seeds: int | None, *, sets: Sequence[str], **layers: Any) -> list[Variant]:
    """Return every combination of the values of `sets`, for each of so many seeds, from the run's own on. `layers` are
    the other arguments of `resolve`. Raises UsageError for an empty or repeated value."""
    schema = find_schema(TASKS, config_file=layers["config_file"], sets=sets, flags=layers["flags"])
    choices = [_values(text, schema) for text in sets]
    keys = [text.partition("=")[0].strip() for text in sets]
    for key, among in zip(keys, choices, strict=True):
        if len(among) > 1 and keys.count(key) > 1:
            raise UsageError(f"--set {key} has several values and is given twice", hint="give all values once")
    if seeds is not None and "train.seed" in keys:
        raise UsageError("--seeds and --set train.seed contradict each other", hint="--seed N --seeds M")
    if seeds is not None and seeds > 1:
        first = [texts[0] for texts in choices if not texts[0].startswith("stages.")]  # not all runs have that stage
        start = resolve(TASKS, sets=first, **layers).config.train.seed
        choices.append([f"train.seed={seed}" for seed in range(start, start + seeds)])
    return [
        Variant(texts, "".join(_label(text) for text, among in zip(texts, choices, strict=True) if len(among) > 1))
        for texts in product(*choices)
    ]


def _values(text: str, schema: Schema) -> list[str]:
    """Return one `KEY=VALUE` for each value of a `--set`: several are separated by commas, except in a setting that is
    any text (a path may have a comma) and in a TOML value with brackets or quotes."""
    key, equals, right = text.partition("=")
    hint = schema.expected(key.strip())
    free = hint is None or hint is dict or (base_type(hint) is str and get_origin(hint) is not Literal)
    if "," not in right or free or any(mark in right for mark in "[{\"'"):
        return [text]
    values = [value.strip() for value in right.split(",")]
    if not all(values):
        raise UsageError(f"--set {text} has an empty value", hint=f"--set {key}=A,B trains a run for each value")
    if len(set(values)) < len(values):
        raise UsageError(f"--set {text} has a value twice", hint="give each value once")
    return [f"{key}{equals}{value}" for value in values]


def _label(text: str) -> str:
    """Return a setting as the end of a run's name: its key's last part and its value."""
    key, _, value = (part.strip() for part in text.partition("="))
    between = "" if value[:1].isdigit() else "-"
    return "-" + safe_name(f"{key.rpartition('.')[2]}{between}{value}")
