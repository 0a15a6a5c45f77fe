"""A run on hub data: what it read is recorded, and read again although the hub has moved on."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import done
from support.data_files import card, table
from support.hub import HubServer, commit
from support.models import write
from support.processes import python
from support.training import arguments, learned, make_data, weights

SHORT: dict[str, Any] = {
    "stages__length__steps": 1, "stages__quality__steps": 2, "train__checkpoint_every": 1, "train__validate_every": 0,
    "sampling__max_new_tokens": 8, "data__max_input_tokens": 4000,
}  # fmt: skip


def make_repository(folder: Path, shift: int) -> Path:
    """A data set with two configurations; `shift` changes its rows."""
    small = make_data(folder.parent / f"{folder.name}-rows", train=6, validation=2, test=2)
    files = {split: f"long/{split}.parquet" for split in ("train", "validation", "test")}
    for split, path in files.items():
        rows = pl.read_parquet(small / f"{split}.parquet").select("id", "prompt", "completion").to_dicts()
        table(folder / path, [row | {"prompt": row["prompt"] + " The end." * shift} for row in rows])
    card(folder, {"long": files, "short": files})
    return folder


@pytest.mark.slow
def test_a_run_reads_the_same_commit_again(tmp_path: Path) -> None:
    """The run notes the commits of model and data; resumed and evaluated after the hub's main moved, it reads them."""
    (tmp_path / "hub").mkdir()
    first, moved = (make_repository(tmp_path / "hub" / name, shift) for shift, name in enumerate(("first", "moved")))
    model = write(tmp_path / "hub" / "model", "llama")
    runs, posts = tmp_path / "runs", "ann/posts:long"
    repositories, revisions = {"datasets/ann/posts": first, "models/ann/tiny": model}, {"v1": first}
    with HubServer(repositories, revisions={"datasets/ann/posts": revisions}) as hub:
        environment = hub.environment(tmp_path / "home")

        def smolsum(*args: object) -> None:
            done(python("-m", "smolsum", *args, "--quiet", environ=environment))

        def train(name: str) -> dict[str, Any]:
            """What run.json says of a training."""
            smolsum(*arguments(Path(posts), runs, name, model__path="ann/tiny@main", **SHORT))
            return dict(json.loads((runs / name / "run.json").read_text()))

        info = train("run")
        assert info["revisions"] == {posts: commit(first), "ann/tiny@main": commit(model)}
        whole, end = learned(runs / "run"), weights(runs / "run", 3)

        hub.repositories["datasets/ann/posts"] = moved
        shutil.rmtree(runs / "run" / "checkpoints" / "step-000003")
        shutil.rmtree(runs / "run" / "eval" / "quality-test")
        smolsum("train", "--resume", runs / "run")
        assert learned(runs / "run") == whole
        assert weights(runs / "run", 3) == end
        smolsum("eval", "run", "--split=validation", "--runs-dir", runs)
        [file] = (runs / "run" / "eval").glob("*-validation/summary.json")
        summary = json.loads(file.read_text())
        assert summary["data"]["validation"]["fingerprint"] == info["data"]["validation"]["fingerprint"]

        other = train("new")
        assert other["revisions"][posts] == commit(moved)
        assert other["data"]["train"]["fingerprint"] != info["data"]["train"]["fingerprint"]
