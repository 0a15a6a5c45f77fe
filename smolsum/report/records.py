"""What the files of a run have to look like for the tables to read them; checked once, where they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smolsum.stats.paired import LARGEST

Check = Callable[[Any, str], None]


def _wrong(value: object, where: str, meant: str) -> ValueError:
    return ValueError(f"{where} is {str(value)[:40]!r} and not {meant}")


def text(value: Any, where: str) -> None:
    """Any text."""
    if not isinstance(value, str):
        raise _wrong(value, where, "text")


def whole(value: Any, where: str) -> None:
    """A whole number of at least 0 that a float can hold."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise _wrong(value, where, "a whole number")


def finite(value: Any, where: str) -> None:
    """A number that can be computed with."""
    if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > LARGEST:
        raise _wrong(value, where, "a finite number")


def setting(value: Any, where: str) -> None:
    """What a config.toml of ours holds: tables, lists, texts, finite numbers and booleans."""
    if isinstance(value, dict):
        every(setting)(value, where)
    elif isinstance(value, list):
        each(setting)(value, where)
    elif not isinstance(value, str | bool):
        finite(value, where)


def anything(value: Any, where: str) -> None:
    """Whatever it is: nothing computes with it."""


def maybe(check: Check) -> Check:
    """The same, or null."""

    def checked(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return checked


def each(check: Check) -> Check:
    """A list of such values."""

    def checked(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        for place, one in enumerate(value):
            check(one, f"{where}[{place}]")

    return checked


def every(check: Check) -> Check:
    """An object whose values are all such."""

    def checked(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for key, one in value.items():
            check(one, f"{where}.{key}")

    return checked


def fields(known: Mapping[str, Check], needed: Sequence[str] = ()) -> Check:
    """An object that has what is needed, and whose known fields are as they should be."""

    def checked(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        for key in needed:
            if key not in value:
                raise ValueError(f"{where} has no {key}")
        for key, check in known.items():
            if key in value:
                check(value[key], f"{where}.{key}")

    return checked


_TASK = fields({"name": text, "target_tokens": whole, "tolerance_tokens": whole}, ["name"])
_MODEL = fields({"path": text, "weights": text, "dtype": text}, ["path", "weights"])
_NOISE = every(fields({"round_sd": maybe(finite), "icc": maybe(finite)}))
_JUDGING = fields(
    {
        "model": text,
        "rounds": whole,
        "prompts": every(text),
        "thresholds": every(finite),
        "usage": every(maybe(finite)),
        "missing": maybe(each(anything)),
        "noise": _NOISE,
    }
)
_SIZES = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
_LENGTHS = fields(dict.fromkeys(_SIZES, finite), _SIZES)
_SPLIT = fields({"examples": finite, "posts": _LENGTHS, "references": maybe(_LENGTHS)}, ["examples"])
_SPLITS = ("train", "validation", "test")

_HEADLINES = each(fields({"metric": text, "title": text, "text": text}, ["metric", "title", "text"]))

summary = fields(
    {
        "n": whole,
        "label": maybe(text),
        "command": text,
        "step": maybe(whole),
        "split": text,
        "sampler": text,
        "model": _MODEL,
        "tokenizer": text,
        "data": fields({"test": fields({"fingerprint": text, "prompts": text})}),
        "meteor": maybe(text),
        "task": maybe(_TASK),
        "max_new_tokens": maybe(whole),
        "prompting": each(text),
        "metrics": every(maybe(finite)),
        "score": text,
        "criteria": each(text),
        "headlines": _HEADLINES,
        "panels": each(fields({"title": text, "headlines": _HEADLINES}, ["title", "headlines"])),
        "watched": every(each(text)),
        "errors": every(text),
        "signals": every(fields({"range": text, "meaning": text}, ["range", "meaning"])),
        "judge": maybe(text),
        "judging": _JUDGING,
    },
    ["n", "model", "tokenizer", "metrics"],
)
"""summary.json of an evaluation (`evaluate/scores.py`)"""

status = fields({"state": text, "step": whole})
"""status.json, as far as a report reads it"""

info = fields(
    {
        "argv": each(text),
        "steps": every(whole),
        "model": _MODEL,
        "tokenizer": text,
        "corpus": fields(dict.fromkeys(_SPLITS, _SPLIT), _SPLITS),
        "versions": every(text),
        "machine": every(text),
    },
    ["steps", "model", "tokenizer"],
)
"""run.json, as far as a report reads it"""

config = fields(
    {
        "model": fields({"path": text}, ["path"]),
        "data": fields({"path": text}, ["path"]),
        "task": _TASK,
        "train": fields({"seed": whole}),
        "sampling": fields({"max_new_tokens": whole}),
        "stages": every(fields({"rewards": every(finite), "mix": every(finite)}, ["rewards"])),
    },
    ["model", "data", "task", "stages"],
)
"""the sections of config.toml that are read by name; all others are `setting`s in tables"""


def scores(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """The lines of a scores file: texts are text and numbers finite."""
    for number, row in enumerate(rows, start=1):
        text(row.get("text", ""), f"{where}:{number} text")
        for key, value in row.items():
            if isinstance(value, float):
                finite(value, f"{where}:{number} {key}")


def asked(row: Mapping[str, Any]) -> bool:
    """Whether a line of completions tells a prompt: its messages and the references."""
    try:
        fields(
            {"messages": each(fields({"content": text}, ["content"])), "references": each(text)},
            ["prompt_id", "messages", "references"],
        )(row, "")
    except ValueError:
        return False
    return bool(row["messages"])
