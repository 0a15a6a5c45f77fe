"""Models by hub id: the real client library in its own process, a real server on loopback."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.hub import HubServer, commit
from support.models import write

from smolsum.policy.load import weights_hash

CLIENT = """
import json, sys, time
time.sleep = lambda seconds: None  # the client waits between its retries
from smolsum.errors import SmolsumError
from smolsum.policy.load import load_policy, weights_hash
for line in sys.stdin:
    try:
        policy = load_policy(json.loads(line))
        answer = {"hash": weights_hash(policy.path), "eos": sorted(policy.eos_ids), "commit": policy.commit}
    except SmolsumError as error:
        answer = {"code": error.exit_code, "message": error.message, "hint": error.hint}
    print(json.dumps(answer), flush=True)
"""
Ask = Callable[[str], dict[str, Any]]


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
def ask(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A process that loads what it is asked for, and prints no line of the library: neither the hub's advice, nor a
    progress bar where stderr is no terminal, nor a retry before an error."""
    environment, errors = hub.environment(tmp_path_factory.mktemp("hf-home")), tmp_path_factory.mktemp("ask") / "stderr"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment,
        )  # fmt: skip

    def answer(name: str) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        print(json.dumps(name), file=process.stdin, flush=True)
        line = process.stdout.readline()
        assert (errors.read_text(), line != "") == ("", True)
        return dict(json.loads(line))

    yield answer
    process.communicate()
    assert errors.read_text() == ""


def test_a_hub_id_is_downloaded_once(hub: HubServer, ask: Ask, model: Path) -> None:
    """What is needed and no more; afterwards the hub may be down."""
    loaded = ask("ann/tiny")
    assert loaded["eos"] == [2]
    assert any("resolve" in line and line.endswith("model.safetensors") for line in hub.requests)
    assert not any("pytorch_model.bin" in line for line in hub.requests)
    with hub.down():
        assert ask("ann/tiny") == loaded


def test_a_revision_is_named_after_an_at_sign(hub: HubServer, ask: Ask, model: Path) -> None:
    """A branch, a tag, a pull request or a commit, each known by its commit; afterwards the hub may be down."""
    first = hub.revisions["models/ann/tiny"]["refs/pr/1"]
    asked = {"main": model, commit(model): model, "refs/pr/1": first, commit(first): first}
    answers = {name: ask(f"ann/tiny@{name}") for name in asked}
    for name, folder in asked.items():
        assert (answers[name]["hash"], answers[name]["commit"]) == (weights_hash(folder), commit(folder))
    with hub.down():
        assert ask("ann/tiny@refs/pr/1") == answers["refs/pr/1"]


def test_an_unknown_revision_is_refused(ask: Ask) -> None:
    """The model and the revision are named; a configuration is for data."""
    answer = ask("ann/tiny@v2")
    assert answer["code"] == 2
    assert "'ann/tiny'" in answer["message"]
    assert "'v2'" in answer["message"]
    assert "--model ann/tiny" in answer["hint"]
    assert "OWNER/NAME[@REVISION]" in ask("ann/tiny:small")["message"]


@pytest.mark.parametrize(
    ("name", "named", "remedy"),
    [
        ("ann/none", "'ann/none'", "hf auth login"),
        ("ann/gated", "'ann/gated'", "hf auth login"),
        ("ann/bare", "model*.safetensors", ""),
    ],
)
def test_a_repository_that_cannot_be_used_is_a_usage_error(ask: Ask, name: str, named: str, remedy: str) -> None:
    """Missing, or closed to this user: the name and the login are the user's. What was downloaded is checked as any
    directory is."""
    answer = ask(name)
    assert answer["code"] == 2
    assert named in answer["message"]
    assert remedy in answer["hint"]


@pytest.mark.parametrize("down", [True, False], ids=["no connection", "server error"])
def test_a_hub_that_does_not_answer_is_unreachable(
    hub: HubServer, ask: Ask, down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it refuses connections, as with no network at all, or is broken: worth another try later."""
    monkeypatch.setattr(hub, "status", HTTPStatus.INTERNAL_SERVER_ERROR)
    with hub.down() if down else nullcontext():
        answer = ask("ann/unseen")
    assert answer["code"] == 3
    assert "'ann/unseen'" in answer["message"]
    assert "\n" not in answer["message"]
    assert "hf download ann/unseen --local-dir DIR" in answer["hint"]
