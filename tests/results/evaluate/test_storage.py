"""What one evaluation has completed another does not complete again: trainings, `smolsum eval` and `smolsum baseline`
in one folder of runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.training import SIZES, arguments, events, make_data

from smolsum.cli.main import main
from smolsum.files import read_jsonl
from smolsum.policy import sampling
from smolsum.policy.load import locate

TESTS = SIZES["test"]
SETTINGS = {"stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": 16}
SAMPLED: list[int] = []
"""the number of prompts of each batch that was completed greedily"""


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sampling.generate

    def generate(model: Any, prompts: Any, *given: Any, **named: Any) -> Any:
        if named["temperature"] == 0:
            SAMPLED.append(len(prompts))
        return own(model, prompts, *given, **named)

    monkeypatch.setattr("smolsum.rollout.source.generate", generate)
    SAMPLED.clear()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with its data next to its folder."""
    root = tmp_path_factory.mktemp("kept")
    data = make_data(root / "data")
    assert main(arguments(data, root / "runs", "first", train__validate_every=0, **SETTINGS)) == 0
    return root / "runs" / "first"


@pytest.fixture
def runs(first: Path, tmp_path: Path) -> Path:
    """A folder of runs with a copy of that run."""
    return Path(shutil.copytree(first.parent, tmp_path / "runs", symlinks=True))


def train(call: Call, first: Path, runs: Path, name: str, *more: str, **changes: Any) -> str:
    """What a training of the same data and model says, of another seed."""
    settings = {**SETTINGS, "train__validate_every": 0, "train__seed": 7, **changes}
    return done(call(*arguments(first.parents[1] / "data", runs, name, **settings), *more))[1]


def measure(call: Call, first: Path, runs: Path, model: str, *more: str, command: str = "eval") -> tuple[Path, str]:
    """The folder of an evaluation of a model with the run's data and settings, and what was said."""
    sets = ["data.path=" + str(first.parents[1] / "data"), "sampling.max_new_tokens=16", "task.target_tokens=42"]
    asked = [command, *(["--model", model] if command == "baseline" else [model]), "--runs-dir", runs, "--judge=none"]
    out, err = done(call(*asked, *(f"--set={one}" for one in sets), *more))
    return Path(out.splitlines()[-1]), err


def completed(folder: Path) -> list[dict[str, Any]]:
    """The completions, by their ids."""
    return sorted(read_jsonl(folder / "generations.jsonl"), key=lambda row: str(row["id"]))


def test_the_start_is_completed_once_for_all_seeds(first: Path, runs: Path, call: Call) -> None:
    """A training with another seed takes the start over, and says from where; its stages are its own. A setting has it
    completed again, with the same texts."""
    said = train(call, first, runs, "seed-7")
    assert f"start: the completions of 4 of 4 prompts are taken from {runs / 'first' / 'eval' / 'start-test'}" in said
    assert SAMPLED == [TESTS] * 2
    assert "kept_completions" in events(runs / "seed-7")
    start = completed(runs / "seed-7" / "eval" / "start-test")
    assert start == completed(runs / "first" / "eval" / "start-test")
    said = train(call, first, runs, "fresh", "--set=train.fresh_evaluations=true", train__seed=8)
    assert "are taken from" not in said
    assert SAMPLED == [TESTS] * 2 + [TESTS] * 3
    assert completed(runs / "fresh" / "eval" / "start-test") == start


def test_a_sample_is_not_sampled_where_all_is_kept(first: Path, runs: Path, call: Call) -> None:
    """Nothing is left for the end: the start is whole before the first step."""
    said = train(call, first, runs, "whole", train__start_prompts="2")
    assert "start: the completions of 4 of 4 prompts are taken from" in said
    said_of = [row["message"] for row in read_jsonl(runs / "whole" / "events.jsonl") if row["kind"] == "evaluated"]
    assert [text.split(":")[0] for text in said_of] == ["start", "length", "quality"]


def test_training_and_commands_share_a_model(first: Path, runs: Path, call: Call) -> None:
    """`eval` takes over what a training has of the model, under whatever path, a training what `baseline` has of the
    same prompts; `--fresh` does not."""
    copied = str(shutil.copytree(locate("builtin:tiny"), runs.parent / "copied"))
    folder, said = measure(call, first, runs, copied)
    assert (SAMPLED, f"4 of 4 prompts are taken from {runs / 'first'}" in said) == ([], True)
    assert completed(folder) == completed(runs / "first" / "eval" / "start-test")
    measure(call, first, runs, copied, "--fresh", "--name=again")
    assert SAMPLED == [TESTS]
    other = runs.parent / "other"
    _, said = measure(call, first, other, "tiny", "--prompt=Be brief.", command="baseline")
    assert (SAMPLED, "are taken from" in said) == ([TESTS] * 2, False)
    assert "4 of 4 prompts are taken from" in train(call, first, other, "after", task__system_prompt="Be brief.")
    assert "are taken from" not in train(call, first, other, "unlike")


@pytest.mark.parametrize(
    "changed",
    [["--set=sampling.max_new_tokens=15"], ["--temperature=0.5"], ["--set=task.system_prompt=Be brief."],
     ["--set=data.test_rows=3"], ["--set=model.quantize=8"]],
    ids=["limit", "temperature", "prompt", "rows", "bits"],
)  # fmt: skip
def test_nothing_else_is_taken_over(changed: list[str], first: Path, runs: Path, call: Call) -> None:
    _, said = measure(call, first, runs, "tiny", *changed)
    assert "are taken from" not in said


def test_another_end_token_is_another_model(first: Path, runs: Path, call: Call) -> None:
    """The same weights with another generation_config.json end their texts elsewhere."""
    model = Path(shutil.copytree(locate("builtin:tiny"), runs.parent / "ends"))
    config = json.loads((model / "config.json").read_text())
    ends = [config["eos_token_id"], 7] if isinstance(config["eos_token_id"], int) else [*config["eos_token_id"], 7]
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert "are taken from" not in measure(call, first, runs, str(model))[1]


@pytest.mark.parametrize(
    ("damage", "left"),
    [(lambda lines: [lines[0][:40], *lines[1:]], 3), (lambda lines: [*lines[:2], b'{"id": 3}', lines[3][:-9]], 2),
     (lambda lines: [b"\xff\x00", b"[]", b"null"], 0)],
    ids=["one line", "two lines", "all"],
)  # fmt: skip
def test_what_is_damaged_is_completed_again(damage: Any, left: int, first: Path, runs: Path, call: Call) -> None:
    """Only the whole lines are taken over, and the result is the same."""
    kept = runs / "first" / "eval" / "start-test" / "generations.jsonl"
    whole = completed(kept.parent)
    kept.write_bytes(b"\n".join(damage(kept.read_bytes().splitlines())) + b"\n")
    folder, said = measure(call, first, runs, "tiny")
    assert (f"the completions of {left} of 4 prompts are taken from" in said) == (left > 0)
    assert [TESTS - left] == SAMPLED
    assert completed(folder) == whole


@pytest.mark.parametrize("origin", ["{bro", "[]", "", '{"completions": ["a"]}'])
def test_a_damaged_origin_is_passed_over(origin: str, first: Path, runs: Path, call: Call) -> None:
    (runs / "first" / "eval" / "start-test" / "origin.json").write_text(origin)
    (runs / "not-a-run").write_text("a file among the runs")
    folder, _ = measure(call, first, runs, "tiny")
    assert SAMPLED == [TESTS]
    assert len(completed(folder)) == TESTS


def test_what_another_version_began_serves_nobody_else(first: Path, runs: Path, call: Call) -> None:
    """A folder that an older smolsum began is completed, and then has completions of two versions."""
    start = runs / "first" / "eval" / "start-test"
    origin = json.loads((start / "origin.json").read_bytes())
    folder, _ = measure(call, first, runs, "tiny", "--fresh")
    (start / "origin.json").write_text(json.dumps({**origin, "completions": ""}))
    old = {**json.loads((folder / "origin.json").read_bytes()), "completions": "made by an older version"}
    (folder / "origin.json").write_text(json.dumps(old))
    lines = (folder / "generations.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "generations.jsonl").write_bytes(b"".join(lines[:2]))
    shutil.copytree(folder, runs / "other")
    SAMPLED.clear()
    _, said = measure(call, first, runs, "tiny")
    assert (SAMPLED, "are taken from" in said) == ([2], False)
    assert json.loads((folder / "origin.json").read_bytes())["completions"] == ""
    assert "are taken from" not in measure(call, first, runs, "tiny", "--name=third")[1]
