"""The rows of the splits `train`, `validation` and `test`: those that the data have, parts of `train` for those that
they lack, and samples.

What happens to a row depends on the seed and on its post alone, by a hash: all rows of a post get into the same split,
and rows that are added later move no other row. One pass with a bounded number of rows in memory draws a sample.
"""

import heapq
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from smolsum.config.hub import FORM, HubName, hub_name
from smolsum.config.sections import DataConfig
from smolsum.errors import UsageError
from smolsum.tasks.data_files import (
    BUILTIN,
    BUILTIN_NAMES,
    LAYOUT,
    SPLITS,
    SUFFIXES,
    FileSource,
    nearest_name,
    open_builtin,
    open_path,
)
from smolsum.tasks.hub_data import HubSource

CUT = ("test", "validation")
"""the splits that may be parts of `train`, in the order in which their shares follow each other"""
_ALIASES = {"validation": ("dev", "val", "valid", "eval"), "test": ("eval", "holdout")}
"""names of splits that may be meant, so that nothing is taken from `train` before the user has said so"""


class PlacedRow(NamedTuple):
    """A row of a split: its place, for error messages, its columns, and its number in the data from 1."""

    where: str
    columns: Mapping[str, Any]
    number: int


def read_split(
    data: DataConfig, split: str, *, post: Callable[[Mapping[str, Any], str], object], texts: Collection[str]
) -> tuple[list[PlacedRow], str]:
    """Return the rows of the split `train`, `validation` or `test`, in the order of the data, and where they are from,
    in words.

    `post` takes a row and its place to what it asks about: rows with equal posts share a split. `texts` is that of
    `FileSource.rows`. Raises UsageError for wrong input, and UnreachableError for a hub that does not answer.
    """
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}", hint=f"choose from {', '.join(SPLITS)}")
    source = open_source(data.path)
    shares = _cut_shares(data, source)
    origin = "train" if split in shares else split
    name, wanted = getattr(data, f"{origin}_split"), getattr(data, f"{split}_rows")
    divided = bool(shares) and split in ("train", *shares)
    every = taken = 0

    def drawn() -> Iterator[tuple[int, int, PlacedRow]]:
        """Yield the rows of the split, each after the lot that its post draws for the sample, and its number."""
        nonlocal every, taken
        for every, (where, columns) in enumerate(source.rows(name, f"data.{origin}_split", texts), start=1):
            key = _key(post(columns, where)) if wanted or divided else ""
            if not divided or _part(_lot("split", data, key), shares) == split:
                taken += 1
                yield _lot("rows", data, key) if wanted else 0, every, PlacedRow(where, columns, every)

    # nsmallest holds no more rows than it returns
    found = heapq.nsmallest(wanted, drawn()) if wanted else drawn()
    rows = sorted((row for _, _, row in found), key=lambda row: row.number)
    # `sorted` has consumed `drawn()`, so that `every` and `taken` count all rows
    place = f"{source.place(name)}: {every:,} rows"
    if not taken:
        raise _nothing(split, shares, place)
    if split in shares:
        place += (
            f", of which {taken:,} by data.{split}_share = {shares[split]:g} and data.split_seed = {data.split_seed}"
        )
    elif split == "train" and shares:
        place += f", of which {taken:,} are left by {' and '.join(reversed(shares))}"
    if 0 < wanted < taken:
        place += f", of which data.{split}_rows = {wanted:,} by data.split_seed = {data.split_seed}"
    return rows, place


def _cut_shares(data: DataConfig, source: FileSource | HubSource) -> dict[str, float]:
    """Return the share of each split that is taken from `train`. Raises UsageError if nothing would be left of it."""
    shares = {}
    others = set(source.splits) - {getattr(data, f"{name}_split") for name in SPLITS}
    for name in CUT:
        share, meant = getattr(data, f"{name}_share"), nearest_name(name, others) or others.intersection(_ALIASES[name])
        renamed = getattr(data, f"{name}_split") != name
        if share and not (renamed or name in source.splits or meant):
            shares[name] = share
    if sum(shares.values()) >= 1:
        settings = " and ".join(f"data.{name}_share = {share:g}" for name, share in shares.items())
        raise UsageError(f"{settings} leave no post to train on", hint=f"--set data.{next(iter(shares))}_share=0.1")
    return shares


def _part(lot: int, shares: Mapping[str, float]) -> str:
    """Return the split that a lot falls into: the shares follow one another, and the rest is `train`."""
    end = 0.0
    for name, share in shares.items():
        end += share
        if lot < end * 2**64:
            return name
    return "train"


def _lot(of: str, data: DataConfig, key: str) -> int:
    """Return a number below 2^64 that a post draws, independently for each purpose."""
    return int(xxhash.xxh3_64_intdigest(f"{of} {data.split_seed} {key}".encode("utf-8", "surrogatepass")))


def _key(post: object) -> str:
    return post if isinstance(post, str) else json.dumps(post, sort_keys=True, default=str)


def _nothing(split: str, shares: Mapping[str, float], place: str) -> UsageError:
    if split in shares:
        return UsageError(
            f"no post falls into {split} ({place}; data.{split}_share = {shares[split]:g})",
            hint=f"--set data.{split}_share with a larger share, --set data.split_seed=1, or more posts",
        )
    return UsageError(
        f"{' and '.join([*shares][::-1])} leave no post to train on ({place})",
        hint=f"--set data.{next(iter(shares))}_share with a smaller share, or more posts",
    )


def open_source(path: str) -> FileSource | HubSource:
    """Return the splits at `data.path`. Raises UsageError for a path without data."""
    if path.startswith(BUILTIN):
        return open_builtin(path.removeprefix(BUILTIN))
    if (hub := _on_hub(path)) is not None:
        return HubSource(hub)
    return open_path(Path(os.path.expanduser(path)))


def _on_hub(path: str) -> HubName | None:
    """Return the parts of a hub id, None for a path on this machine: one that exists, or looks like a path, is never
    looked up on a hub. Raises UsageError for what is neither."""
    if path.startswith(("./", "../", "/", "~")) or path.endswith(SUFFIXES) or Path(path).exists():
        return None
    if (hub := hub_name(path)) is None:
        raise UsageError(
            f"no data at {path!r}: no such file or directory, and not a hub id ({FORM})",
            hint=f"--set data.path=PATH, {LAYOUT}, or {BUILTIN}{BUILTIN_NAMES[0]}",
        )
    return hub
