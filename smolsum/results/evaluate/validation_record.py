"""validation.json: what is known of how well a judge judges, in a folder next to the runs.

An evaluation by the same judge with the same prompts looks for it, and corrects its share of passed completions.
"""

# msgspec copies mutable defaults
# ruff: noqa: RUF012

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from smolsum.errors import SmolsumError
from smolsum.runs.records import SCHEMA_VERSION, Count, Number, Record
from smolsum.runs.typed_json import read
from smolsum.stats.judged_share import JudgeErrors

VALIDATION = "validation.json"


class MeasuredShare(Record, frozen=True):
    """A share of texts with its exact 95 % interval."""

    share: Number | None = None
    low: Number | None = None
    high: Number | None = None
    n: Count = 0
    """examples that it is of"""
    size: Number = 0
    """independent texts that say as much of it"""


class KindFigures(Record, frozen=True):
    """What a judge made of the texts of one kind."""

    passed: MeasuredShare = MeasuredShare()
    lowered: MeasuredShare = MeasuredShare()
    """share of texts with a lower composite than their original"""
    change: dict[str, Number | None] = {}
    """mean change of each criterion's score, and of the composite, from the original"""


class KappaFigures(Record, frozen=True):
    """Agreement with what is true of the texts."""

    n: Count = 0
    agreed: Number | None = None
    kappa: Number | None = None
    low: Number | None = None
    high: Number | None = None


class ProtocolStep(Record, frozen=True):
    """A step of the protocol of arXiv 2606.19544: what it asks for, what was found, and whether that meets it."""

    step: str
    found: str
    met: bool


class JudgeValidation(Record, frozen=True):
    """validation.json."""

    judge: str
    """its unique name"""
    schema_version: int = SCHEMA_VERSION
    prompts: dict[str, str] = {}
    """fingerprints by criterion"""
    task: str = ""
    split: str = ""
    data: str = ""
    """fingerprint of the split's content"""
    examples: Count = 0
    rounds: Count = 0
    """of the originals"""
    missing: Count = 0
    """questions without an answer"""
    sensitivity: MeasuredShare = MeasuredShare()
    """share of originals that pass"""
    specificity: MeasuredShare = MeasuredShare()
    """share of damaged texts that fail"""
    kappa: KappaFigures = KappaFigures()
    """of what passes"""
    pair_kappa: KappaFigures = KappaFigures()
    """of which of two texts is the original"""
    first_wins: MeasuredShare = MeasuredShare()
    """share of pairs, each shown in both orders, in which the first text wins; ties count half"""
    flipped: MeasuredShare = MeasuredShare()
    """share of pairs whose winner changes with the order"""
    padded_wins: MeasuredShare = MeasuredShare()
    """share of pairs in which the padded text wins over its original"""
    same_verdict: MeasuredShare = MeasuredShare()
    """share of paraphrases with the verdict of their original"""
    retest: Number | None = None
    """share of two rounds of one original with the same verdict"""
    retest_icc: Number | None = None
    """ICC(1,1) of the composite over rounds"""
    kinds: dict[str, KindFigures] = {}
    protocol: list[ProtocolStep] = []

    @property
    def passes(self) -> bool:
        """Whether every step of the protocol is met."""
        return bool(self.protocol) and all(step.met for step in self.protocol)

    @property
    def errors(self) -> JudgeErrors | None:
        """How often the judge is right; None where that is not known."""
        good, bad = self.sensitivity, self.specificity
        if good.share is None or bad.share is None:
            return None
        return JudgeErrors(good.share, good.size, bad.share, bad.size)


def find_validations(runs_dir: Path, judge: str, prompts: Mapping[str, str]) -> Iterator[tuple[Path, JudgeValidation]]:
    """Yield the folders with a validation of a judge, by its unique name and the fingerprints of its prompts; damaged
    ones are left out."""
    for path in sorted(runs_dir.glob(f"*/{VALIDATION}")):
        with suppress(SmolsumError):
            found = read(path, JudgeValidation)
            if found.judge == judge and found.prompts == dict(prompts):
                yield path.parent, found
