"""Data from the hub: the real client libraries in their own process, a real server on loopback."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.data_files import card, lines, table
from support.hub import HubServer, commit
from support.hub_client import HubClient

from smolsum.config.hub import hub_name
from smolsum.config.resolve import resolve
from smolsum.config.sections import DataConfig
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.tasks import TASKS
from smolsum.tasks.data import load_split

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Ann lost a hat.", "completion": "Hat lost.", "facts": [{"kind": "item", "n": 1}]},
    {"id": "b", "prompt": "Bo, 31, moved to Rye…", "completion": "Bo moved.", "facts": [], "score": 2.5},
    {"id": "c", "prompt": "Cy owes $40.", "completion": "Debt.", "facts": [{"kind": "who"}], "score": 3.0},
]
PLAIN = [{name: row[name] for name in ("id", "prompt", "completion")} for row in ROWS]
SPLITS = ("train", "validation", "test")
PRESETS = [name for name, table in TASKS["tldr"].presets.profiles.items() if "data" in table]

CLIENT = """
from smolsum.config.sections import DataConfig
from smolsum.tasks.data import load_split
from smolsum.tasks.hub_data import commit_of

def load(path, split="train", **settings):
    found = load_split(DataConfig(path=path, **settings), split)
    return {"fingerprint": found.fingerprint, "count": len(found.examples), "origin": found.origin,
            "first": found.examples[0].source, "commit": commit_of(path)}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf-home")


@pytest.fixture(scope="module")
def posts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set repository as `push_to_hub` makes it."""
    directory = tmp_path_factory.mktemp("posts")
    for split in SPLITS:
        table(directory / "data" / f"{split}-00000-of-00001.parquet", ROWS)
    return directory


@pytest.fixture(scope="module")
def hub(posts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    bare, broken = (tmp_path_factory.mktemp(name) for name in ("bare", "broken"))
    (bare / "README.md").write_text("nothing here")
    (broken / "train.parquet").write_bytes(b"PAR1 not really PAR1")
    news, old = (make_news(tmp_path_factory.mktemp("news"), text) for text in ("new", "old"))
    files, presets = (tmp_path_factory.mktemp(name) for name in ("files", "presets"))
    own = {"posts": posts, "more": posts, "gated": posts, "bare": bare, "broken": broken, "news": news}
    repositories = {f"datasets/ann/{name}": path for name, path in (own | make_files(files)).items()}
    repositories |= make_preset_data(presets)
    revisions = {"datasets/ann/news": {"v1": old}}
    revisions["datasets/EdinburghNLP/xsum"] = {"refs/convert/parquet": presets / "xsum"}
    with HubServer(repositories, gated=["datasets/ann/gated"], revisions=revisions) as server:
        yield server


def make_news(directory: Path, text: str) -> Path:
    """A data set repository with two configurations, as CNN/DailyMail's, and none of them the default."""
    for number, name in enumerate(("1.0.0", "3.0.0"), start=1):
        for split in SPLITS:
            rows = [{"prompt": f"{text} {name} {n}", "completion": "x"} for n in range(number)]
            table(directory / name / f"{split}-00000-of-00001.parquet", rows)
    card(directory, {name: {split: f"{name}/{split}-*" for split in SPLITS} for name in ("1.0.0", "3.0.0")})
    return directory


def make_files(directory: Path) -> dict[str, Path]:
    """Repositories with CSV, JSON Lines and a README that says which files are which configuration and split."""
    found = {name: directory / name for name in ("csv", "lines", "patterns", "single", "chats")}
    for split in SPLITS:
        table(found["csv"] / f"{split}.csv", PLAIN)
        lines(found["lines"] / f"{split}.jsonl", PLAIN)
        for part in ("a", "b"):
            own = [row | {"id": f"{part}-{row['id']}"} for row in PLAIN]
            table(found["patterns"] / "raw" / f"{split}-{part}.csv", own)
    parts = {"default": "*", "first": "a"}
    card(found["patterns"], {n: {split: f"raw/{split}-{part}.csv" for split in SPLITS} for n, part in parts.items()})
    table(found["single"] / "posts.csv", [{"prompt": f"Post {n}.", "completion": "x"} for n in range(200)])
    turns = [{"role": "user", "content": "A post."}, {"role": "assistant", "content": "Short."}]
    lines(found["chats"] / "train.jsonl", [{"messages": turns}])
    return found


def make_preset_data(directory: Path) -> dict[str, Path]:
    """Repositories with the names, the layouts and the columns of the presets' data."""
    repositories = {}
    for preset in PRESETS:
        data = resolve(TASKS, flags={"task.name": "tldr"}, presets=(preset,)).config.data
        name = hub_name(data.path)
        assert name
        folder, configuration = directory / preset, name.configuration or "default"
        # one is a branch that the hub makes, without a README
        shard = "{}/0000.parquet" if name.revision == "refs/convert/parquet" else "{}-00000-of-00001.parquet"
        paths = {split: f"{configuration}/{shard.format(split)}" for split in SPLITS}
        for path in paths.values():
            rows = [{data.prompt_column: text, data.completion_column: "x"} for text in ("A text.", None)]
            table(folder / path, rows)
        if not name.revision:
            card(folder, {configuration: paths})
        repositories[f"datasets/{name.id}"] = folder
    return repositories


@pytest.fixture(scope="module")
def client(hub: HubServer, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    with HubClient(CLIENT, hub.environment(home), tmp_path_factory.mktemp("client") / "stderr") as running:
        yield running


def test_a_hub_data_set_equals_its_snapshot(client: HubClient, posts: Path) -> None:
    """By hub id or from a downloaded directory, the same rows have the same fingerprint. Progress bars are for
    terminals."""
    answer = client.load("ann/posts", split="validation")
    snapshot = load_split(DataConfig(path=str(posts)), "validation")
    assert (answer["fingerprint"], answer["count"]) == (snapshot.fingerprint, 3)
    assert "%" not in client.stderr.read_text()
    assert "examples/s" not in client.stderr.read_text()


@pytest.mark.parametrize("revision", ["v1", "main", "commit"])
def test_a_revision_is_named_after_an_at_sign(hub: HubServer, client: HubClient, tmp_path: Path, revision: str) -> None:
    """A tag, a branch or a commit; what was read is known by its commit."""
    old, new = hub.revisions["datasets/ann/news"]["v1"], hub.repositories["datasets/ann/news"]
    there = new if revision == "main" else old
    path = f"ann/news:3.0.0@{commit(old) if revision == 'commit' else revision}"
    answer = client.load(path)
    assert answer["commit"] == commit(there)
    shutil.copytree(there / "3.0.0", tmp_path / "data")
    assert answer["fingerprint"] == load_split(DataConfig(path=str(tmp_path)), "train").fingerprint


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("ann/news", ["1.0.0, 3.0.0", "--set data.path=ann/news:1.0.0"]),
        ("ann/news@v1", ["1.0.0, 3.0.0", "--set data.path=ann/news:1.0.0@v1"]),
        ("ann/news:3.0", ["'3.0'", "1.0.0, 3.0.0", "--set data.path=ann/news:3.0.0"]),
        ("ann/posts:x", ["'x'", "default", "--set data.path=ann/posts:default"]),
        ("ann/news:3.0.0@v2", ["'v2'", "--set data.path=ann/news:3.0.0"]),
        # a repository that is missing, gated, without data or damaged does not come back by waiting
        ("ann/none", ["'ann/none'", "does not exist"]),
        ("ann/gated", ["'ann/gated'", "gated"]),
        ("ann/bare", ["'ann/bare'", "cannot be read"]),
        ("ann/broken", ["'ann/broken'", "cannot be read"]),
    ],
)
def test_what_the_hub_does_not_have_is_a_usage_error(client: HubClient, path: str, named: list[str]) -> None:
    """One error with the configurations that exist, and the setting that takes one."""
    client.refusal(path, *named)


@pytest.mark.slow
def test_the_cache_never_stands_in_for_another_revision(hub: HubServer, tmp_path: Path) -> None:
    """While the hub is down, what was read is there by its commit and its tag, also where the cache holds something
    newer; what was not read is an error."""
    new, old = commit(hub.repositories["datasets/ann/news"]), commit(hub.revisions["datasets/ann/news"]["v1"])
    names = [f"ann/news:3.0.0@{name}" for name in (new, "v1", old)]
    process = partial(HubClient, CLIENT, hub.environment(tmp_path / "home"), tmp_path / "stderr")
    with process() as client:
        first = client.load(names[0])
        with hub.down(), process() as cut_off:
            cut_off.refusal(names[1], "'v1'", f"--set data.path={names[0]}", error=UnreachableError)
        online = [first, *(client.load(name) for name in names[1:])]
    with hub.down(), process() as client:
        assert [client.load(name) for name in names] == online


@pytest.mark.parametrize(
    ("path", "count"), [("csv", 3), ("lines", 3), ("patterns", 6), ("patterns:first", 3), ("patterns:default@main", 6)]
)
def test_a_hub_data_set_in_other_formats(client: HubClient, path: str, count: int) -> None:
    """Files of CSV and JSON, by their names or by the patterns of the README, in the default and another
    configuration."""
    for split in ("train", "validation", "test"):
        answer = client.load(f"ann/{path}", split=split)
        assert (answer["count"], answer["first"]) == (count, "Ann lost a hat.")


def test_a_hub_data_set_of_one_file_is_split_by_the_seed(client: HubClient, hub: HubServer) -> None:
    """As the same file on this machine is, down to the fingerprint; a sample too."""
    path = hub.repositories["datasets/ann/single"] / "posts.csv"
    for split in ("train", "validation", "test"):
        own = load_split(DataConfig(path=str(path), train_rows=20), split)
        answer = client.load("ann/single", split=split, train_rows=20)
        assert (answer["fingerprint"], answer["count"]) == (own.fingerprint, len(own.examples))
        assert answer["origin"] == own.origin.replace(str(path), "ann/single, split 'train'")


def test_rows_on_the_hub(client: HubClient) -> None:
    """Columns of objects come as those of a file do. The slices of `datasets` make a validation split for a data set
    that has none; of an unknown split those that there are are named, and the setting."""
    assert client.load("ann/chats", validation_share=0, test_share=0)["first"] == "A post."
    assert client.load("ann/posts", train_split="train[:2]")["count"] == 2
    named = ('"dev"', "['train', 'validation', 'test']", "--set data.train_split=")
    client.refusal("ann/posts", *named, train_split="dev")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_finds_its_data(client: HubClient, preset: str) -> None:
    """Name, configuration, revision and columns fit a repository that is laid out as the real one."""
    data = asdict(resolve(TASKS, flags={"task.name": "tldr"}, presets=(preset,)).config.data)
    assert client.load(split="test", **data)["first"] == "A text."


@pytest.mark.parametrize(
    ("trouble", "named"),
    [
        ({"status": HTTPStatus.INTERNAL_SERVER_ERROR}, "--set data.path=DIR"),
        ({"status": HTTPStatus.SERVICE_UNAVAILABLE}, "--set data.path=DIR"),
        ({"mute": True}, "disconnected"),  # an error of the HTTP client itself, which the libraries let through
    ],
)
def test_a_broken_hub_is_unreachable(
    hub: HubServer, client: HubClient, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, Any], named: str
) -> None:
    """A server error is worth another try later."""
    for name, value in trouble.items():
        monkeypatch.setattr(hub, name, value)
    client.refusal("ann/unseen", named, error=UnreachableError)


def test_a_hub_that_refuses_connections_is_unreachable(hub: HubServer, client: HubClient) -> None:
    """A download elsewhere is the way round."""
    said = len(client.stderr.read_text())
    with hub.down():
        way_round = "hf download ann/unseen --repo-type dataset --local-dir DIR"
        client.refusal("ann/unseen", "Connection refused", way_round, error=UnreachableError)
    assert client.stderr.read_text()[said:] == ""


def test_a_hub_whose_name_does_not_resolve_is_unreachable(hub: HubServer, tmp_path: Path) -> None:
    """The one error has that reason, and no line of the library comes first."""
    direct = {"HF_ENDPOINT": "http://hub.invalid", "no_proxy": "*", "NO_PROXY": "*"}
    with HubClient(CLIENT, hub.environment(tmp_path / "home") | direct, tmp_path / "stderr") as client:
        message = client.refusal("ann/unseen", error=UnreachableError)
    assert "name" in message.split("'ann/unseen':")[1].lower()
    assert "refused" not in message
    assert client.stderr.read_text() == ""


def test_a_cache_that_cannot_be_written_is_told(client: HubClient, home: Path) -> None:
    """The disk is at fault, neither the request nor the hub: exit code 1 and the variable that moves it."""
    client.load("ann/posts")
    kept = (home / "datasets").rename(home / "kept")
    (home / "datasets").touch()
    try:
        client.refusal("ann/more", "'ann/more'", "disk", "HF_HOME", error=SmolsumError)
    finally:
        (home / "datasets").unlink()
        kept.rename(home / "datasets")


def test_what_was_downloaded_needs_no_hub(hub: HubServer, client: HubClient, home: Path, tmp_path: Path) -> None:
    """It is used while the hub is down, and with HF_HUB_OFFLINE, which is named where something lacks."""
    online = client.load("ann/posts")
    with hub.down():
        assert client.load("ann/posts") == online
    before = len(hub.requests)
    with HubClient(CLIENT, hub.environment(home) | {"HF_HUB_OFFLINE": "1"}, tmp_path / "stderr") as offline:
        assert offline.load("ann/posts") == online
        offline.refusal("ann/unseen", "HF_HUB_OFFLINE", error=UnreachableError)
    assert len(hub.requests) == before
