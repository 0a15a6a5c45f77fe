"""How the validation of a judge is shown: a table for each question about it, and the protocol step by step."""

from __future__ import annotations

from collections.abc import Sequence

from smolsum import console
from smolsum.results.evaluate.validation_record import JudgeValidation, MeasuredShare
from smolsum.types import COMPOSITE, Criterion

PROTOCOL = "Minimum Viable Validation Protocol (arXiv 2606.19544)"


def show_validation(found: JudgeValidation, criteria: Sequence[Criterion], *, quiet: bool) -> None:
    """Print the tables, and whether the judge passes the protocol."""
    failed = [step.step for step in found.protocol if not step.met]
    if not quiet:
        rows = [
            ["sensitivity: originals that pass", *_share(found.sensitivity)],
            ["specificity: damaged texts that fail", *_share(found.specificity)],
            ["paraphrases with the verdict of their original", *_share(found.same_verdict)],
            ["pairs in which the first text wins", *_share(found.first_wins)],
            ["pairs whose winner changes with the order", *_share(found.flipped)],
            ["padded texts that win over their original", *_share(found.padded_wins)],
        ]
        title = f"{found.judge} on {found.examples} references of {found.task}, {found.split}"
        console.table(["what", "share", "95 % interval", "examples"], rows, title=title)
        kappas = (("verdicts", found.kappa), ("pairs", found.pair_kappa))
        rows = [
            [name, str(one.n), _percent(one.agreed), _number(one.kappa), f"[{_number(one.low)}, {_number(one.high)}]"]
            for name, one in kappas
        ]
        console.table(["agreement of", "n", "raw", "kappa", "95 % interval"], rows, title="beyond chance")
        names = [*(c.name for c in criteria), COMPOSITE]
        rows = [
            [kind, *_share(one.passed)[:2], _percent(one.lowered.share), *(_signed(one.change.get(n)) for n in names)]
            for kind, one in found.kinds.items()
        ]
        columns = ["kind", "pass", "95 % interval", "scored lower", *names]
        console.table(columns, rows, title="against the original: mean change of each score")
        steps = [["yes" if step.met else "no", step.step, step.found] for step in found.protocol]
        console.table(["met", "asked for", "found"], steps, title=PROTOCOL)
        if found.errors is not None and not found.errors.tells_apart:
            console.warn("it passes damaged texts as often as good ones: its share of passed completions says nothing")
    if found.passes:
        console.narrate(f"{found.judge} passes the {PROTOCOL}")
    else:
        console.warn(f"{found.judge} does not pass the {PROTOCOL}; not met: {'; '.join(failed)}")


def _share(one: MeasuredShare) -> list[str]:
    if one.share is None:
        return ["-", "-", "0"]
    return [_percent(one.share), f"[{_percent(one.low)}, {_percent(one.high)}]", str(one.n)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
