"""`smolsum.train` in Python: rows in memory, functions as rewards, the same run directory, resuming."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pytest
from support.refusals import refuses

import smolsum
from smolsum.config.sections import Config
from smolsum.files import read_jsonl
from smolsum.grpo import python_api
from smolsum.runs.paths import RunPaths
from smolsum.runs.records import RunInfo
from smolsum.runs.typed_json import read
from smolsum.tasks.data_files import store_data
from smolsum.tasks.plugins import use_plugins

POSTS = [{"prompt": f"Post {n}: it rained, I stayed in.", "completion": "It rained.", "n": n} for n in range(40)]
SMALL = {
    "stages.length.steps": 1, "stages.quality.steps": 1, "sampling.max_new_tokens": 24, "sampling.rollouts": 4,
    "train.validate_every": 0,
}  # fmt: skip


def even(completions: list[str], n: list[int], **kwargs: Any) -> list[float]:
    """Whether the post's number is even, whatever the text."""
    return [float(number % 2 == 0) for number in n]


@pytest.fixture(autouse=True)
def _without_functions() -> Iterator[None]:
    """The next test has the shipped tasks."""
    yield
    use_plugins()


def test_rows_and_a_function_make_a_run(tmp_path: Path) -> None:
    """The function gets the rows' columns, its weight counts, and the run resumes from the kept rows."""
    given: dict[str, Any] = {"rewards": {even: 0.5, "meteor": 1.0}, "runs_dir": tmp_path, "quiet": True}
    root = smolsum.train(data=POSTS, target=24, strategy="finetuned", settings=SMALL, name="mine", **given)
    run = RunPaths(root)
    assert (root, "even = 0.5" in run.config.read_text()) == (tmp_path / "mine", True)
    for rollout in read_jsonl(run.completions(2)):
        post = POSTS[int(rollout["prompt_id"].rpartition("-")[2]) - 1]
        assert rollout["rewards"]["even"] == float(post["n"] % 2 == 0)
        assert rollout["reward"] == pytest.approx(0.5 * rollout["rewards"]["even"] + rollout["rewards"]["meteor"])
    (recorded,) = read(run.info, RunInfo).plugins
    assert (recorded.rewards, Path(recorded.path)) == (["even"], Path(__file__))
    assert "def even(" in (run.plugins / Path(__file__).name).read_text()
    assert smolsum.train(resume="mine", **given) == root
    with refuses(Path(__file__).name):
        smolsum.train(resume="mine", runs_dir=tmp_path, quiet=True)


def test_frames_and_data_sets_are_rows(tmp_path: Path) -> None:
    """The same rows have the same place, whatever holds them; a path stays a path."""
    stored = store_data(POSTS, tmp_path)
    assert store_data(pl.DataFrame(POSTS), tmp_path) == stored
    assert store_data(datasets.Dataset.from_list(POSTS), tmp_path) == stored
    assert store_data({"train": iter(POSTS)}, tmp_path) == stored
    assert read_jsonl(Path(stored) / "train.jsonl") == POSTS
    assert store_data("owner/posts@main", tmp_path) == "owner/posts@main"
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(POSTS[:3]) for name in ("train", "test")})
    assert sorted(path.name for path in Path(store_data(both, tmp_path)).iterdir()) == ["test.jsonl", "train.jsonl"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"data": []}, "train data"),
        ({"data": [1]}, "row 1 of the train data is int"),
        ({"data": 3}, "train data is int"),
        ({"data": {"dev": POSTS}}, "'dev'"),
        ({"data": [{"prompt": b"x"}]}, "row 1 of the train data"),
        ({"rewards": ["meter"]}, "'meter'"),
        ({"rewards": [lambda completions: completions]}, "name"),
        ({"settings": {"tran.seed": 1}}, "'tran.seed'"),
        ({"resume": "none"}, "'none'"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], named: str, tmp_path: Path) -> None:
    with refuses(named):
        smolsum.train(runs_dir=tmp_path, quiet=True, **given)


def test_weights_are_those_that_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of `length`, in every stage that rewards it; where the strategy has weights, each is a multiple of
    them."""
    trained: list[Config] = []
    monkeypatch.setattr(python_api, "train_run", lambda config, quiet: trained.append(config))
    for strategy in ("included", "finetuned", "short-sentences"):
        smolsum.train("tiny", rewards={"length": 2.0, "rouge": 0.5}, strategy=strategy, runs_dir=tmp_path)
    rewards = [{name: stage.rewards for name, stage in config.stages.items()} for config in trained]
    assert rewards[0] == {"included": {"length": 2.0, "rouge": 0.5}}
    assert rewards[1]["length"] == {"length": 2.0}
    assert rewards[2]["length"] == {"length": 12.0, "short_sentences": 1.0, "rouge": 1.0}
