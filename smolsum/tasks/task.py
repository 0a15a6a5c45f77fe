"""What a task brings to the loop: its prompts, and what it measures on a completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.config import Config
from smolsum.data import Example, Split
from smolsum.rollout.records import Prompt, Rollout

Messages = tuple[dict[str, str], ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """A summary metric that people look at first: its key, its column's title and how a value is shown."""

    metric: str
    title: str
    show: Callable[[float], str]


@dataclass(frozen=True)
class Task:
    """A kind of prompt with its evaluation. The loop, the workers and the report know a task only by this."""

    name: str
    messages: Callable[[Example, Config], Messages]
    """the chat that asks for one example"""
    measurer: Callable[[Sequence[Split], Config], Callable[[Prompt, Rollout], dict[str, Any]]]
    """given all splits, a function from a prompt and its completion to the metrics of that example"""
    summarise: Callable[[Sequence[Row]], dict[str, float | None]]
    """the rows of a split to its summary"""
    headlines: tuple[Headline, ...]
    """the columns of the closing table"""
