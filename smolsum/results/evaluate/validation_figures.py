"""The figures of a validated judge, from its judgements of planted texts: how often it is right, what misleads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import fmean

import msgspec

from smolsum.files import finite
from smolsum.results.evaluate.judgements import judge_noise, judged_columns
from smolsum.results.evaluate.planted import DAMAGE, ORIGINAL, PADDED, PARAPHRASE, PlantedText
from smolsum.results.evaluate.validation_record import (
    JudgeValidation,
    KappaFigures,
    KindFigures,
    MeasuredShare,
    ProtocolStep,
)
from smolsum.runs.evaluation_records import Judgement
from smolsum.stats.agreement import cohens_kappa
from smolsum.tasks.success_rates import independent_samples, interval_of_means
from smolsum.types import COMPOSITE, PASSED, Criterion

LEAST_KAPPA = 0.6
"""agreement that Landis and Koch (1977) call substantial; the protocol asks for the figure and sets no bound"""
MOST_BIAS, STABLE, LEAST_RETESTS, LEAST_DATA = 0.10, 0.95, 3, 2
"""bounds of the protocol"""


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
            f"kappa {_shown(kappa.kappa)} of verdicts, {_shown(pairs.kappa)} of pairs; "
            f"raw {_percent(kappa.agreed)} and {_percent(pairs.agreed)}",
            kappa.kappa is not None and least is not None and least >= LEAST_KAPPA,
        ),
        ProtocolStep(
            f"pairs in both orders, position bias below {MOST_BIAS:.2f}",
            f"bias {_shown(bias)}, {_percent(found.flipped.share)} of pairs flip",
            bias is not None and bias < MOST_BIAS,
        ),
        ProtocolStep(
            f"at least {LEAST_RETESTS} rounds, asked anew",
            f"{asked} rounds, {_percent(found.retest)} of pairs of verdicts are the same",
            asked >= LEAST_RETESTS,
        ),
        ProtocolStep(
            f"at least {LEAST_DATA} data sets, with right answers and with preferences",
            f"{data_sets} data set{'' if data_sets == 1 else 's'}, planted faults and pairs in each",
            data_sets >= LEAST_DATA,
        ),
        ProtocolStep(
            f"not stable and biased: above {_percent(STABLE)} the same, and a bias from {MOST_BIAS:.2f}",
            f"{_percent(found.retest)} the same, bias {_shown(bias)}",
            found.retest is not None and not paradox,
        ),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
