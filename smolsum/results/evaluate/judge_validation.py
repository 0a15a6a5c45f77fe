"""How well a judge judges: the figures, from its judgements of planted texts, and validation.json, which keeps them in
a folder next to the runs.

An evaluation by the same judge with the same prompts looks for it, and corrects its share of passed completions.
"""

# msgspec copies mutable defaults
# ruff: noqa: RUF012

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from statistics import fmean

import msgspec

from smolsum.errors import SmolsumError
from smolsum.files import finite
from smolsum.results.evaluate.judgements import judge_noise, judged_columns
from smolsum.results.evaluate.planted import DAMAGE, ORIGINAL, PADDED, PARAPHRASE, PlantedText
from smolsum.runs.evaluation_records import Judgement
from smolsum.runs.records import SCHEMA_VERSION, Count, Number, Record
from smolsum.runs.typed_json import read
from smolsum.stats.agreement import cohens_kappa
from smolsum.stats.judged_share import JudgeErrors
from smolsum.tasks.success_rates import independent_samples, interval_of_means
from smolsum.types import COMPOSITE, PASSED, Criterion

VALIDATION = "validation.json"
LEAST_KAPPA = 0.6
"""agreement that Landis and Koch (1977) call substantial; the protocol asks for the figure and sets no bound"""
MOST_BIAS, STABLE, LEAST_RETESTS, LEAST_DATA = 0.10, 0.95, 3, 2
"""bounds of the protocol"""


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


class PairVerdicts(msgspec.Struct, frozen=True):
    """Which of two texts won, shown in both orders: 1 the original, 0 the other, 0.5 neither."""

    kind: str
    original_first: float
    original_second: float

    @property
    def first_wins(self) -> float:
        """How often the text that was shown first won."""
        return (self.original_first + 1 - self.original_second) / 2

    @property
    def original_wins(self) -> float:
        """How often the original won."""
        return (self.original_first + self.original_second) / 2


def figures(
    planted: Sequence[PlantedText],
    criteria: Sequence[Criterion],
    rounds: int,
    judgements: Mapping[str, Sequence[Judgement]],
    pairs: Sequence[PairVerdicts],
) -> JudgeValidation:
    """Return the figures, without what names the judge, the data and the protocol. `judgements` are by the texts' ids,
    those of originals of all rounds. Texts without a verdict, and pairs without both orders, are left out."""
    columns = {
        text.id: judged_columns(criteria, rounds if text.kind == ORIGINAL else 1, judgements.get(text.id, ()))
        for text in planted
    }
    originals = {text.example.id: columns[text.id] for text in planted if text.kind == ORIGINAL}
    first = {key: row["rounds"][PASSED][0] for key, row in columns.items()}

    failed: dict[str, list[float]] = {}
    for text in planted:
        if text.kind in DAMAGE and (verdict := first[text.id]) is not None:
            failed.setdefault(text.example.id, []).append(1 - verdict)
    known = [(text, bool(v)) for text in planted if text.good is not None and (v := first[text.id]) is not None]
    passes = [row["pass_rate"] for row in originals.values() if row["pass_rate"] is not None]
    whole = [[v for v in row["rounds"][PASSED] if v is not None] for row in originals.values()]
    retests = [float(a == b) for verdicts in whole for a, b in combinations(verdicts, 2)]
    padded = [pair for pair in pairs if pair.kind == PADDED]
    damaged = [pair for pair in pairs if pair.kind != PADDED]
    paraphrases = [text for text in planted if text.kind == PARAPHRASE]
    same = [
        float(one == other)
        for text in paraphrases
        if (one := first[text.id]) is not None and (other := first[_original(text)]) is not None
    ]
    # a tie says "not the first" in both orders, so that it is right in one of them
    chosen = [(pair.original_first > 0.5, True) for pair in damaged]
    chosen += [(pair.original_second < 0.5, False) for pair in damaged]
    return JudgeValidation(
        judge="",
        examples=len(originals),
        rounds=rounds,
        sensitivity=measured(passes, rounds),
        specificity=measured([fmean(one) for one in failed.values()], len(DAMAGE)),
        kappa=_kappa([v for _, v in known], [bool(t.good) for t, _ in known], [t.example.id for t, _ in known]),
        pair_kappa=_kappa([a for a, _ in chosen], [b for _, b in chosen], [*range(len(damaged))] * 2),
        first_wins=measured([pair.first_wins for pair in pairs]),
        flipped=measured([float((p.original_first - 0.5) * (p.original_second - 0.5) < 0) for p in pairs]),
        padded_wins=measured([1 - pair.original_wins for pair in padded]),
        same_verdict=measured(same),
        retest=fmean(retests) if retests else None,
        retest_icc=judge_noise([row["rounds"][COMPOSITE] for row in originals.values()])["icc"],
        kinds={
            kind: _kind([text for text in planted if text.kind == kind], criteria, columns)
            for kind in (*DAMAGE, PADDED, PARAPHRASE)
        },
    )


def measured(means: Sequence[float], samples: int | None = None) -> MeasuredShare:
    """Return a share from that of each example, over its `samples`, with its interval; empty without any example."""
    if not means:
        return MeasuredShare()
    size = independent_samples(means, samples)
    return MeasuredShare(fmean(means), *interval_of_means(means, samples), len(means), size)


def _original(text: PlantedText) -> str:
    return f"{text.example.id}/{ORIGINAL}"


def _kappa(verdicts: Sequence[bool], truth: Sequence[bool], clusters: Sequence[str | int]) -> KappaFigures:
    return KappaFigures(**finite(asdict(cohens_kappa(verdicts, truth, clusters))))


def _kind(
    texts: Sequence[PlantedText], criteria: Sequence[Criterion], columns: Mapping[str, Mapping[str, object]]
) -> KindFigures:
    """Return what became of the texts of a kind, in the first round of each and of its original."""

    def changes(name: str) -> list[float]:
        found = []
        for text in texts:
            new, old = (_first(columns[key], name) for key in (text.id, _original(text)))
            if new is not None and old is not None:
                found.append(new - old)
        return found

    verdicts = [verdict for text in texts if (verdict := _first(columns[text.id], PASSED)) is not None]
    return KindFigures(
        passed=measured(verdicts),
        lowered=measured([float(change < -1e-9) for change in changes(COMPOSITE)]),
        change={name: _mean(changes(name)) for name in (*(c.name for c in criteria), COMPOSITE)},
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _first(row: Mapping[str, object], name: str) -> float | None:
    rounds = row["rounds"]
    assert isinstance(rounds, dict)
    value: float | None = rounds[name][0]
    return value


def protocol_steps(found: JudgeValidation, data_sets: int) -> list[ProtocolStep]:
    """Return the five steps of the Minimum Viable Validation Protocol (Norman, Rivera and Hughes 2026, arXiv
    2606.19544) with what was found of each; `data_sets` counts those that this judge was validated on.

    The position bias is the distance of the share of first texts that win from a half, in pairs shown in both orders.
    """
    kappa, pairs = found.kappa, found.pair_kappa
    least = min((one.kappa for one in (kappa, pairs) if one.kappa is not None), default=None)
    bias = None if found.first_wins.share is None else abs(found.first_wins.share - 0.5)
    asked = found.rounds if found.retest is not None else 0
    paradox = (found.retest or 0.0) > STABLE and (bias is None or bias >= MOST_BIAS)
    return [
        ProtocolStep(
            f"agreement beyond chance, at least {LEAST_KAPPA:g}",
            f"kappa {shown(kappa.kappa)} of verdicts, {shown(pairs.kappa)} of pairs; "
            f"raw {shown_percent(kappa.agreed)} and {shown_percent(pairs.agreed)}",
            kappa.kappa is not None and least is not None and least >= LEAST_KAPPA,
        ),
        ProtocolStep(
            f"pairs in both orders, position bias below {MOST_BIAS:.2f}",
            f"bias {shown(bias)}, {shown_percent(found.flipped.share)} of pairs flip",
            bias is not None and bias < MOST_BIAS,
        ),
        ProtocolStep(
            f"at least {LEAST_RETESTS} rounds, asked anew",
            f"{asked} rounds, {shown_percent(found.retest)} of pairs of verdicts are the same",
            asked >= LEAST_RETESTS,
        ),
        ProtocolStep(
            f"at least {LEAST_DATA} data sets, with right answers and with preferences",
            f"{data_sets} data set{'' if data_sets == 1 else 's'}, planted faults and pairs in each",
            data_sets >= LEAST_DATA,
        ),
        ProtocolStep(
            f"not stable and biased: above {shown_percent(STABLE)} the same, and a bias from {MOST_BIAS:.2f}",
            f"{shown_percent(found.retest)} the same, bias {shown(bias)}",
            found.retest is not None and not paradox,
        ),
    ]


def shown(value: float | None) -> str:
    """Return a number as people read it."""
    return "-" if value is None else f"{value:.2f}"


def shown_percent(value: float | None) -> str:
    """Return a share as people read it."""
    return "-" if value is None else f"{100 * value:.1f} %"
