"""The files that a training step runs through are those that `docs/architecture.md` lists."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from support.places import ROOT
from support.training import trained

from smolsum.grpo.optimizer import Optimizer
from smolsum.grpo.session import Session

PACKAGE = ROOT / "smolsum"
MOST = 15


def section() -> str:
    return (ROOT / "docs" / "architecture.md").read_text().split("## A training step\n")[1].split("\n## ")[0]


def listed() -> list[str]:
    """The files of the numbered list, in order."""
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section(), flags=re.M)


def also() -> list[str]:
    """The files that run at every step besides."""
    (line,) = [line for line in section().splitlines() if line.startswith("These also run")]
    return re.findall(r"`([\w/]+\.py)`", line.split(". A validation")[0])


def test_way_has_at_most_15_files() -> None:
    """Each exists, and is listed once."""
    assert 0 < len(listed()) <= MOST
    assert len({*listed(), *also()}) == len(listed()) + len(also())
    assert all((PACKAGE / name).is_file() for name in re.findall(r"`([\w/]+\.py)`", section()))


def test_steps_run_through_the_listed_files(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files entered by real steps without validation or checkpoint, from one yield of the session to the next, and
    no others."""
    files: set[str] = set()
    steps = Session.steps

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    def traced(session: Session, optimizer: Optimizer) -> Iterator[int]:
        for k in steps(session, optimizer):
            # the last step of a stage saves a checkpoint
            whole = session.at.stage == "length" and k + 1 < session.at.plan["length"]
            sys.setprofile(record if whole else None)
            yield k

    monkeypatch.setattr(Session, "steps", traced)
    changes = {
        "train__validate_every": 0, "train__checkpoint_every": 9, "stages__length__steps": 2,
        "stages__quality__steps": 1,
    }  # fmt: skip
    trained(data, tmp_path / "runs", "traced", **changes)
    entered = {str(Path(file).relative_to(PACKAGE)) for file in files if Path(file).is_relative_to(PACKAGE)}
    assert sorted(entered | {"grpo/loop.py"}) == sorted([*listed(), *also()])  # loop.py is entered once for a stage
