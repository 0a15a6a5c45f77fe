"""Models by hub id: the real client library in its own process, a real server on loopback."""

from collections.abc import Iterator
from contextlib import nullcontext
from http import HTTPStatus
from pathlib import Path

import pytest
from support.hub import HubServer, commit
from support.hub_client import HubClient
from support.models import write

from smolsum.errors import UnreachableError
from smolsum.policy.load import weights_hash

CLIENT = """
from smolsum.policy.load import load_policy, weights_hash

def load(path):
    policy = load_policy(path)
    return {"hash": weights_hash(policy.path), "eos": sorted(policy.eos_ids), "commit": policy.commit}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository as the hub has them, with weights of another framework, which are not needed."""
    folder = write(tmp_path_factory.mktemp("model"), "llama")
    (folder / "pytorch_model.bin").write_bytes(bytes(1000))
    return folder


@pytest.fixture(scope="module")
def hub(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    bare = tmp_path_factory.mktemp("bare")
    (bare / "config.json").write_text('{"model_type": "llama"}')
    repositories = {"models/ann/tiny": model, "models/ann/gated": model, "models/ann/bare": bare}
    first = write(tmp_path_factory.mktemp("first"), "qwen2")
    revisions = {"models/ann/tiny": {"refs/pr/1": first}}
    with HubServer(repositories, gated=["models/ann/gated"], revisions=revisions) as server:
        yield server


@pytest.fixture(scope="module")
def client(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    """It prints no line of the library: neither the hub's advice, nor a progress bar where stderr is no terminal, nor a
    retry before an error."""
    folder = tmp_path_factory.mktemp("client")
    with HubClient(CLIENT, hub.environment(folder / "home"), folder / "stderr") as running:
        yield running
    assert running.stderr.read_text() == ""


def test_a_hub_id_is_downloaded_once(hub: HubServer, client: HubClient, model: Path) -> None:
    """What is needed and no more; afterwards the hub may be down."""
    loaded = client.load("ann/tiny")
    assert loaded["eos"] == [2]
    assert any("resolve" in line and line.endswith("model.safetensors") for line in hub.requests)
    assert not any("pytorch_model.bin" in line for line in hub.requests)
    with hub.down():
        assert client.load("ann/tiny") == loaded


def test_a_revision_is_named_after_an_at_sign(hub: HubServer, client: HubClient, model: Path) -> None:
    """A branch, a tag, a pull request or a commit, each known by its commit; afterwards the hub may be down."""
    first = hub.revisions["models/ann/tiny"]["refs/pr/1"]
    asked = {"main": model, commit(model): model, "refs/pr/1": first, commit(first): first}
    answers = {name: client.load(f"ann/tiny@{name}") for name in asked}
    for name, folder in asked.items():
        assert (answers[name]["hash"], answers[name]["commit"]) == (weights_hash(folder), commit(folder))
    with hub.down():
        assert client.load("ann/tiny@refs/pr/1") == answers["refs/pr/1"]


def test_an_unknown_revision_is_refused(client: HubClient) -> None:
    """The model and the revision are named; a configuration is for data."""
    client.refusal("ann/tiny@v2", "'ann/tiny'", "'v2'", "--model ann/tiny")
    client.refusal("ann/tiny:small", "OWNER/NAME[@REVISION]")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("ann/none", ["'ann/none'", "hf auth login"]),
        ("ann/gated", ["'ann/gated'", "hf auth login"]),
        ("ann/bare", ["model*.safetensors"]),
    ],
)
def test_a_repository_that_cannot_be_used_is_a_usage_error(client: HubClient, name: str, named: list[str]) -> None:
    """Missing, or closed to this user: the name and the login are the user's. What was downloaded is checked as any
    directory is."""
    client.refusal(name, *named)


@pytest.mark.parametrize("down", [True, False], ids=["no connection", "server error"])
def test_a_hub_that_does_not_answer_is_unreachable(
    hub: HubServer, client: HubClient, down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it refuses connections, as with no network at all, or is broken: worth another try later."""
    monkeypatch.setattr(hub, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
    command = "hf download ann/unseen --local-dir DIR"
    with hub.down() if down else nullcontext():
        message = client.refusal("ann/unseen", "'ann/unseen'", command, error=UnreachableError)
    assert "\n" not in message
