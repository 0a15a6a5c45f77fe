"""A learning rate that is left to the model: what the dry run shows, what the run trains with and writes down."""

import re
from pathlib import Path

import pytest
import tomli
from support.calls import Call
from support.training import arguments, learned

from smolsum.files import read_jsonl
from smolsum.runs import standstill
from smolsum.training import session

STEPS = {"stages__length__steps": 2, "stages__quality__steps": 1, "train__validate_every": 0}


def test_the_chosen_rate_is_shown_trained_with_and_kept(data: Path, tmp_path: Path, call: Call) -> None:
    """The dry run gives the number and its reason, the run's config.toml the number, and the run resumes with it."""
    made = arguments(data, tmp_path, "own", **STEPS)
    own = ["--model=builtin:tiny" if flag == "--model=tiny" else flag for flag in made]
    code, out, err = call(*own, "--dry-run")
    assert code == 0
    assert re.search(r"learning_rate = 0\.0003 +# chosen for 985 k parameters", out)
    assert "--preset small" in err
    assert call(*own, "--dry-run", "--quiet") == (0, out, "")
    assert call(*own, "--quiet")[0] == 0
    config = tomli.loads((tmp_path / "own" / "config.toml").read_text())
    assert [config["optimizer"]["learning_rate"], config["stages"]["quality"]["learning_rate"]] == [3e-4, 3e-4]
    assert [row["learning_rate"] for row in learned(tmp_path / "own")] == [3e-4] * 3
    assert call("train", "--resume", str(tmp_path / "own"), "--quiet")[0] == 0


@pytest.mark.parametrize("flags", [["--model=tiny"], ["--model=builtin:tiny", "--preset=small"]])
def test_a_model_with_a_preset_gets_no_advice(data: Path, call: Call, flags: list[str]) -> None:
    """Nor does a small model that has the small settings already."""
    code, _, err = call("train", *flags, "--dry-run", f"--set=data.path={data}")
    assert code == 0
    assert "--preset small" not in err


def test_a_run_that_stands_still_says_so_once(
    data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the screen and among the events, with the remedy."""
    for module in (standstill, session):
        monkeypatch.setattr(module, "STEPS", 6)
    settings = {"optimizer__learning_rate": 1e-12, "stages__length__steps": 18, "stages__quality__steps": 1}
    code, _, err = call(*arguments(data, tmp_path, "still", **STEPS | settings), "--quiet")
    assert (code, err.count("the policy stands still: in 12 steps")) == (0, 1)
    found = [row for row in read_jsonl(tmp_path / "still" / "events.jsonl") if row["kind"] == "stands_still"]
    assert [row["step"] for row in found] == [12]
    assert "--find-lr" in found[0]["hint"]
