"""What tells runs apart: the settings that differ, and groups of runs that differ in their seed alone."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from smolsum.files import digest

SEED = "train.seed"
PLACE = "run"
"""the table of settings that say where a run is kept, and differ always"""
LEFT_OUT = re.compile(rf"{PLACE}\..*|stages\.[^.]*\.(steps|rewards\..*)")
"""what differs always, and what is said of all stages together"""
ABSENT = "-"
T = TypeVar("T")


def differing(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the settings that are not the same in all runs, each with its value in every run as text, `-` where a run
    has none. A run is given as its settings by dotted key. Those of a stage are compared between the runs that have it;
    the stages, their steps and what they are rewarded for come first."""
    stages = [[*dict.fromkeys(key.split(".")[1] for key in run if key.startswith("stages."))] for run in runs]
    settings = [{**_by_stage(run, own), **run} for run, own in zip(runs, stages, strict=True)]
    found = {}
    for key in dict.fromkeys(key for one in settings for key in one if not LEFT_OUT.fullmatch(key)):
        section, _, rest = key.partition(".")
        having = [
            one.get(key)
            for one, own in zip(settings, stages, strict=True)
            if section != "stages" or not rest or rest.split(".")[0] in own
        ]
        if any(value != having[0] for value in having):
            found[key] = [_text(one[key]) if key in one else ABSENT for one in settings]
    return found


def told_apart(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return a few of the settings that differ, in the form of `differing`: enough to tell as many of the runs apart as
    all of them do. The seed is left out."""
    columns = {key: cells for key, cells in differing(runs).items() if key != SEED}
    named: list[str] = []

    def apart(*keys: str) -> int:
        return len(set(zip(*(columns[key] for key in keys), strict=True)))

    while apart(*named) < apart(*columns):
        named.append(max(columns, key=lambda key: apart(*named, key)))
    return {key: columns[key] for key in named}


def _by_stage(run: Mapping[str, Any], stages: Sequence[str]) -> dict[str, str]:
    """What a run says of all its stages, in their order."""
    each = {
        "stages": stages,
        "steps": [str(run.get(f"stages.{name}.steps", ABSENT)) for name in stages],
        "rewarded for": [rewarded(_weights(run, name)) for name in stages],
    }
    return {key: " > ".join(texts) for key, texts in each.items()}


def _weights(run: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """The signals of a stage with their weights."""
    begin = f"stages.{stage}.rewards."
    return {key.removeprefix(begin): value for key, value in run.items() if key.startswith(begin)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def rewarded(weights: Mapping[str, Any]) -> str:
    """Return the signals of a stage, with the weights that are not 1."""
    odd = {name: weight for name, weight in weights.items() if weight != 1 and isinstance(weight, int | float)}
    return "+".join(f"{odd[name]:.3g} {name}" if name in odd else name for name in weights)


def group_seeds(items: Iterable[tuple[T, Mapping[str, Any] | None]]) -> list[list[T]]:
    """Return the items in groups whose configurations differ only in name, place and seed. Items without a
    configuration, and those of a group in which a seed occurs twice, stay alone."""
    groups: dict[str, list[tuple[T, Any]]] = {}
    for number, (item, config) in enumerate(items):
        # its number makes an item without a configuration differ from all others
        settings = {key: value for key, value in (config or {"alone": number}).items() if key != PLACE}
        train = dict(settings.get("train", {}))
        seed = train.pop("seed", None)
        groups.setdefault(digest(settings | {"train": train}), []).append((item, seed))
    found = []
    for group in groups.values():
        alike = [item for item, _ in group]
        found += [alike] if len({seed for _, seed in group}) == len(group) else [[item] for item in alike]
    return found
