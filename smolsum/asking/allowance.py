"""How many requests somebody may pay for, whoever makes them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from smolsum.errors import UnreachableError

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Allowance:
    """At most `limit` requests (0: any number), of all that share this; `setting` is the key that says so."""

    limit: int = 0
    setting: str = ""
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further request may be made."""
        return 0 < self.limit <= self.spent

    def affords(self, questions: dict[K, V]) -> dict[K, V]:
        """The first of the questions, as many as there are requests left. UnreachableError where there are none."""
        if self.is_spent:
            raise UnreachableError(
                f"the {self.limit} requests that {self.setting} allows are used up; what was answered is kept",
                hint=f"the next attempt has as many again; {self.setting} = 0 sets no limit",
            )
        return dict(islice(questions.items(), self.limit - self.spent)) if self.limit else questions
