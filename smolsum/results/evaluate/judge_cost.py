"""What the judges of a command cost: shown for all evaluations, agreed to on a terminal, kept within --max-cost."""

from __future__ import annotations

from dataclasses import dataclass

from smolsum import console
from smolsum.errors import InterruptedRun, SmolsumError, UsageError

ASK_AGAIN = 1.25
"""times what was agreed to: later evaluations may have longer texts, and one question for all of them should do"""


@dataclass(frozen=True)
class Estimate:
    """The calls, tokens and US dollars of the missing judgements, at one call each; no dollars without known prices."""

    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None


class CostLimitError(SmolsumError):
    """Judging would cost more than --max-cost, or did."""


class JudgeCost:
    """The cost of judging in one command, over all evaluations and judges.

    `evaluations_left` counts the evaluations to come, with the one under way. They are estimated to cost as much as
    that one; those whose answers are known already cost nothing, so that the estimate is the most it may be.
    """

    def __init__(self, limit: float | None, *, agreed: bool, quiet: bool) -> None:
        self.evaluations_left = 1
        self._limit, self._agreed, self._quiet = limit, agreed, quiet
        self._paid = 0.0
        self._estimated: dict[str, float] = {}
        self._approved: dict[str, float] = {}

    def approve(self, judge: str, estimate: Estimate) -> None:
        """Print the estimate; raise CostLimitError if it passes the limit, UsageError if there is a limit and no price,
        and InterruptedRun where the user declines on a terminal."""
        left = self.evaluations_left
        if not self._quiet:
            tokens = f"about {estimate.input_tokens:,} tokens in and {estimate.output_tokens:,} out"
            console.narrate(f"judge {judge}: {estimate.calls:,} calls, {tokens}, {_price(estimate.dollars)}")
            if left > 1:
                every = _price(estimate.dollars and estimate.dollars * left)
                console.narrate(f"judge {judge}: up to {estimate.calls * left:,} calls in {left} evaluations, {every}")
        self._check_limit(judge, estimate)
        dollars = estimate.dollars or 0.0
        before = self._estimated.get(judge, 0.0)
        total = before + dollars * left
        if total > ASK_AGAIN * self._approved.get(judge, -1.0):
            self._ask()
            self._approved[judge] = total
        self._estimated[judge] = before + dollars

    def pay(self, dollars: float) -> None:
        """Count what an answer cost, in US dollars. Raises CostLimitError once the limit is passed."""
        self._paid += dollars
        if self._limit is not None and self._paid > self._limit:
            raise CostLimitError(
                f"judging stopped: it has cost ${self._paid:.2f}, and --max-cost is {self._limit:g}",
                hint="the answers are kept; the same command with a larger --max-cost asks for the others",
            )

    def _check_limit(self, judge: str, estimate: Estimate) -> None:
        if self._limit is None:
            return
        if estimate.dollars is None:
            raise UsageError(
                f"--max-cost cannot hold: the price of {judge} is not known",
                hint="leave --max-cost out; fewer --rounds ask less",
            )
        most = self._paid + estimate.dollars * self.evaluations_left
        if most > self._limit:
            raise CostLimitError(
                f"judging may cost ${most:.2f} by the last evaluation, and --max-cost is {self._limit:g}",
                hint="--max-cost with more; or fewer --rounds. All metrics that need no judge are saved",
            )

    def _ask(self) -> None:
        if self._agreed or not console.can_ask():
            return
        if not console.agree("continue?"):
            message = "judging cancelled; all metrics that need no judge are saved"
            raise InterruptedRun(message, hint="--judge none evaluates without a judge")


def _price(dollars: float | None) -> str:
    return "price unknown" if dollars is None else f"about ${dollars:.2f}"
