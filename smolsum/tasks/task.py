"""What a task brings to the loop: its prompts, and what it measures on a completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.config import Config
from smolsum.data import Example, Split
from smolsum.rollout.records import Prompt, Rollout
from smolsum.tasks.criterion import COMPOSITE, Criterion

Messages = tuple[dict[str, str], ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """A summary metric that people look at first: its key, its column's title and how a value is shown."""

    metric: str
    title: str
    show: Callable[[float], str]


@dataclass(frozen=True)
class Panel:
    """One table of an evaluation: its title, its columns, and how to get them where an evaluation lacks them all."""

    title: str
    headlines: tuple[Headline, ...]
    remedy: str = ""


@dataclass(frozen=True)
class ErrorKind:
    """Something that goes wrong with a completion: its name, what counts as that in words, and how a row shows it."""

    name: str
    meaning: str
    shown: Callable[[Row], bool | None]
    """a row with its metrics, and the judge's where there was one; None where the row cannot tell"""


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
    panels: tuple[Panel, ...]
    """the tables of an evaluation, but for what a judge says"""
    criteria: tuple[Criterion, ...]
    """what a judge is asked; the composite is the sum of their scores"""
    instruct: Callable[[str], str]
    """the system prompt that a baseline's prompt variant (or text) means"""
    baselines: tuple[str, ...]
    """the prompt variants that a baseline is made of unless it is told otherwise"""
    errors: tuple[ErrorKind, ...] = ()
    """the error taxonomy; a completion may have several, or none"""
    score: str = COMPOSITE
    """the column that a report compares configurations by, higher is better"""
