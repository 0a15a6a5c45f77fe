"""The order in which a stage takes its prompts: shuffled, mixed by kind, or mixed by what each kind has taught."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import exp
from statistics import fmean
from typing import Any

import numpy as np

from smolsum.config.sections import Config
from smolsum.config.stages import epoch_counts, kinds_by_place, mean_mix
from smolsum.grpo.stateful import Sampled, Stateful
from smolsum.types import Prompt

MOST_SKIPPED = 0.95
"""the largest probability of skipping a prompt, so that each one is looked at again"""
SHARPNESS = 4.0
"""exponent by which a kind that teaches all there is to teach outweighs one that teaches nothing: about 50 to 1"""


class PromptOrder(Stateful):
    """The order in which a stage takes its prompts: reshuffled every epoch from the run's seed.

    Where the stage mixes kinds of prompts, every epoch draws its own prompts of each kind, as many as the mix allows.
    Where the mix changes from step to step, each kind has its own epochs, and each place of a step has a kind.
    """

    name = "order"

    def __init__(
        self,
        prompts: Sequence[Prompt],
        config: Config,
        stage: str,
        kinds: Sequence[str] = (),
        *,
        steps: int = 0,
        ask: Callable[[Prompt, int], Prompt] | None = None,
    ) -> None:
        """`kinds` are those of the prompts, needed where the stage has a mix; `steps` is how many the stage has, needed
        where the mix changes; `ask` writes a prompt anew for a step, as `PromptWriter.at_steps` returns it."""
        self._ask = ask
        self.prompts, self.seed, self._stage_number = prompts, config.train.seed, list(config.stages).index(stage)
        self.size = config.train.prompts_per_step * config.train.accumulation_steps
        mix = config.stages[stage].mix
        self._counts = epoch_counts(stage, mix, kinds) if mix else {}
        self._rows = {kind: [n for n, own in enumerate(kinds) if own == kind] for kind in self._counts}
        self._epoch = sum(self._counts.values()) or len(prompts)
        self._shuffles: dict[str, tuple[int, Any]] = {}
        """the last epoch that was shuffled, by kind"""
        self._kinds: list[tuple[str, int]] = []
        """of each place, where the mix changes, with the number of places before that have it"""
        if config.stages[stage].mix_end:
            mean_mix(stage, config.stages[stage], kinds)  # raises for a mix, or its end, whose kinds are missing
            rounds = config.train.refill_rounds
            self._kinds = kinds_by_place(config.stages[stage], self.size, steps, rounds)
            self._rows = {kind: [n for n, own in enumerate(kinds) if own == kind] for kind, _ in self._kinds}

    def take(self, step: int) -> list[Prompt]:
        """Return the prompts of the stage's step (from 0), the same ones whenever it is asked."""
        prompts = [self._at(place) for place in range(step * self.size, (step + 1) * self.size)]
        return [self._ask(prompt, step) for prompt in prompts] if self._ask else prompts

    def _at(self, place: int) -> Prompt:
        kind, before = self._kinds[place] if self._kinds else ("", place)
        epoch, row = divmod(before, len(self._rows[kind]) if kind else self._epoch)
        return self.prompts[int(self._shuffled(epoch, kind)[row])]

    def _shuffled(self, epoch: int, kind: str) -> Any:
        """Return the places of an epoch's prompts in its order; of one kind where the mix changes."""
        if (kept := self._shuffles.get(kind)) and kept[0] == epoch:
            return kept[1]
        if kind:
            rng = np.random.default_rng([self.seed, self._stage_number, epoch, list(self._rows).index(kind)])
            order = rng.permutation(self._rows[kind])
        else:
            rng = np.random.default_rng([self.seed, self._stage_number, epoch])
            chosen = [n for kind, count in self._counts.items() for n in rng.permutation(self._rows[kind])[:count]]
            order = rng.permutation(chosen or len(self.prompts))
        self._shuffles[kind] = (epoch, order)
        return order


class DrawnOrder(PromptOrder, ABC):
    """An order that draws the prompts of a step by what it observed in the steps before.

    Subclasses override `draw` and `learn`, and `state` and `load` for what these change. A step is drawn `ahead` steps
    before it comes, or as many as may refill a step: until then its rollouts may be requested, and `take` returns the
    same prompts for a step whenever it is asked.
    """

    def __init__(
        self, prompts: Sequence[Prompt], config: Config, stage: str, kinds: Sequence[str], *, ahead: int, **more: Any
    ) -> None:
        super().__init__(prompts, config, stage, kinds, **more)
        self._steps_drawn = 1 + max(ahead, config.train.refill_rounds)
        self._drawn: list[list[int]] = []
        self._first = 0
        """the step of the first ones drawn"""

    @abstractmethod
    def draw(self) -> list[int]:
        """Return the places in `prompts` of the next step to be drawn, `size` of them."""

    @abstractmethod
    def learn(self, sampled: Sampled) -> Mapping[str, float]:
        """Take in a step, and return metrics of it."""

    def _at(self, place: int) -> Prompt:
        while len(self._drawn) < self._steps_drawn:
            self._drawn.append(self.draw())
        step, own = divmod(place, self.size)
        return self.prompts[self._drawn[step - self._first][own]]

    def observe(self, sampled: Sampled, weights: Mapping[str, float]) -> Mapping[str, float]:
        """Learn from a step, and draw another."""
        metrics = self.learn(sampled)
        self._drawn, self._first = [*self._drawn[1:], self.draw()], self._first + 1
        return metrics

    def state(self) -> Any:
        return {"first": self._first, "drawn": self._drawn}

    def load(self, state: Any) -> None:
        self._first, self._drawn = state["first"], state["drawn"]


class LearningOrder(DrawnOrder):
    """An order that takes more of the kinds that teach more (`difficulty.adapt`).

    After Self-Evolving Curriculum (arXiv:2505.14970): what a kind teaches is the mean absolute advantage of its
    rollouts, kept as a running value q, and the next mix is the stage's own, times exp(`SHARPNESS` q).
    """

    def __init__(
        self, prompts: Sequence[Prompt], config: Config, stage: str, kinds: Sequence[str], *, ahead: int, **more: Any
    ) -> None:
        super().__init__(prompts, config, stage, kinds, ahead=ahead, **more)
        self._mix, self._rate = config.stages[stage].mix, config.difficulty.adapt
        self._rows = {kind: [n for n, own in enumerate(kinds) if own == kind] for kind in self._mix}
        self._kind_of = {prompt.id: kind for prompt, kind in zip(prompts, kinds, strict=True)}
        self._teaches: dict[str, float] = {}
        self._promised, self._given = dict.fromkeys(self._mix, 0.0), dict.fromkeys(self._mix, 0)

    def draw(self) -> list[int]:
        """Give each place to the kind that is furthest behind what the mixes so far promised it; each kind has its own
        epochs."""
        mix, found = self._now(), []
        for _ in range(self.size):
            for kind, share in mix.items():
                self._promised[kind] += share
            # a kind without a share is never drawn, not even when all others are ahead of theirs
            kind = max(mix, key=lambda one: (mix[one] > 0, self._promised[one] - self._given[one]))
            epoch, row = divmod(self._given[kind], len(self._rows[kind]))
            found.append(int(self._shuffled(epoch, kind)[row]))
            self._given[kind] += 1
        return found

    def learn(self, sampled: Sampled) -> Mapping[str, float]:
        found: dict[str, list[float]] = {}
        for group, totals in zip(sampled.groups, sampled.totals, strict=True):
            present = totals[~np.isnan(totals)]
            if not present.size:
                continue  # without any reward nothing is known of what it teaches
            spread = float(present.std()) if np.ptp(present) else 0.0  # that of equal numbers may be a bit above 0
            advantage = float(np.abs(present - present.mean()).mean()) / spread if spread else 0.0
            found.setdefault(self._kind_of[group.prompt.id], []).append(advantage)
        for kind, values in found.items():
            before = self._teaches.get(kind, fmean(values))
            self._teaches[kind] = before + self._rate * (fmean(values) - before)
        return {f"mix/{kind}": share for kind, share in self._now().items()}

    def _now(self) -> dict[str, float]:
        # a kind that was not seen yet is taken for one that teaches as much as the best
        best = max(self._teaches.values(), default=0.0)
        sizes = {
            kind: share * exp(SHARPNESS * (self._teaches.get(kind, best) - best)) for kind, share in self._mix.items()
        }
        return {kind: size / sum(sizes.values()) for kind, size in sizes.items()}

    def state(self) -> Any:
        return super().state() | {"teaches": self._teaches, "promised": self._promised, "given": self._given}

    def load(self, state: Any) -> None:
        super().load(state)
        self._teaches, self._promised, self._given = state["teaches"], state["promised"], state["given"]


class SkippingOrder(DrawnOrder):
    """An order that skips prompts whose groups taught nothing the last times (`train.skip_untaught`, after GRESO,
    arXiv:2506.02177, section 4): after z such groups in a row with the probability 1 - (1 - p)^z."""

    def __init__(
        self, prompts: Sequence[Prompt], config: Config, stage: str, kinds: Sequence[str], **more: Any
    ) -> None:
        super().__init__(prompts, config, stage, kinds, **more)
        self._kept_share = 1.0 - config.train.skip_untaught
        self._untaught: dict[str, int] = {}
        """by prompt, the groups in a row that taught nothing, where there are any"""
        self._place, self._skipped = 0, 0

    def draw(self) -> list[int]:
        """Go on in the shuffled prompts, leaving out those that are skipped."""
        found: list[int] = []
        while len(found) < self.size:
            epoch, row = divmod(self._place, self._epoch)
            chosen = int(self._shuffled(epoch, "")[row])
            kept = max(self._kept_share ** self._untaught.get(self.prompts[chosen].id, 0), 1.0 - MOST_SKIPPED)
            if np.random.default_rng([self.seed, self._stage_number, epoch, row]).random() < kept:
                found.append(chosen)
            else:
                self._skipped += 1
            self._place += 1
        return found

    def learn(self, sampled: Sampled) -> Mapping[str, float]:
        """Count on. The metric is the share of all prompts so far that were skipped."""
        for group, same in zip(sampled.groups, sampled.untaught, strict=True):
            name = group.prompt.id
            self._untaught[name] = self._untaught.get(name, 0) + 1 if same else 0
        return {"order/skipped_frac": self._skipped / max(1, self._place)}

    def state(self) -> Any:
        return super().state() | {"untaught": self._untaught, "place": self._place, "skipped": self._skipped}

    def load(self, state: Any) -> None:
        super().load(state)
        self._untaught, self._place, self._skipped = state["untaught"], state["place"], state["skipped"]
