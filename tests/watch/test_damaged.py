"""A run whose files say what nobody would expect."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from watching import make_run

from smolsum.watch.board import Look
from smolsum.watch.snapshot import document, plain_page, whole

JUNK: tuple[Any, ...] = (None, "é\x1b[31m", "", 5, -1, 1e308, 10**400, math.nan, math.inf, True, [1], {"a": 1})


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with junk at some place in it."""
    if isinstance(value, dict) and value and draw.random() < 0.7:
        key = draw.choice(list(value))
        return value | {key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.5:
        place = draw.randrange(len(value))
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(JUNK)


@pytest.mark.parametrize("seed", range(8))
def test_junk_is_not_known(tmp_path: Path, seed: int) -> None:
    """Values of another kind, at any place of any file, are passed over: the page is drawn, without control codes."""
    draw = random.Random(seed)
    paths = make_run(tmp_path, steps=20)
    files = [path for path in paths.root.rglob("*.json*") if path.is_file()]
    for _ in range(8):  # more of it each time
        path = draw.choice(files)
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        place = draw.choice([0, len(lines) - 1])
        lines[place] = json.dumps(mutated(json.loads(lines[place]), draw))
        path.write_text("\n".join(lines) + "\n")
        for size in ((120, 40), (80, 24)):
            lines = plain_page(whole(paths), None, Look(), *size)
            assert len(lines) == size[1] - 1
            assert "\x1b" not in "".join(lines)
        json.dumps(document(whole(paths)))
