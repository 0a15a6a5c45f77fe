"""`smolsum push` against a hub on loopback: the real client, one commit or none, and what goes wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import close_session, constants
from huggingface_hub.utils import _http
from support.calls import Call
from support.hub import HubServer
from support.hub_uploads import Uploads
from support.models import write
from support.training import PATIENCE_S, arguments, make_data

import smolsum.cli.push
from smolsum.report.card import PLACE

pytestmark = pytest.mark.filterwarnings("default")  # an error in the hub's client would end the upload
Push = Callable[..., subprocess.CompletedProcess[str]]
CARD = f"---\nlicense: mit\n---\n\n# mine\n\n`vllm serve {PLACE}`\n"
LOADED = """
import mlx.core as mx
from mlx_lm import load
base, adapted = (load("ann/base", adapter_path=path)[0](mx.array([[5, 9, 33]])) for path in (None, {}))
print("adapted" if mx.abs(base - adapted).max() > 1e-4 else "the base")
"""
FILES = {
    "README.md": CARD, "config.json": "{}", "model.safetensors": "weights", "evidence/run/run.json": "{}",
    ".DS_Store": "junk", "figures/figure-1.svg": "<svg/>",
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A hub where `secret` may write as ann."""
    with HubServer({}, uploads=Uploads(tmp_path / "hub", {"secret": "ann"})) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `smolsum export` writes, in small."""
    made = tmp_path / "mine"
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.fixture
def push(hub: HubServer, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Iterator[Push]:
    """`smolsum` in this process, whose client knows this hub, has no token of its own, and tries again at once."""
    for name in os.environ:
        if name.startswith(("HF_", "HUGGING")) or name.lower() == "http_proxy":  # --quiet of other tests sets one
            monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(_http, "time", Mock(wraps=time, sleep=Mock()))
    monkeypatch.chdir(tmp_path)
    close_session()

    def invoke(*args: object, token: str = "secret") -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("HF_TOKEN", token)
        return subprocess.CompletedProcess(args, *call(*args))

    yield invoke
    close_session()


@pytest.fixture
def apart(hub: HubServer, tmp_path: Path) -> Push:
    """`smolsum` in its own process, whose client has the hub from HF_ENDPOINT."""

    def invoke(
        *args: object, token: str = "secret", module: str = "smolsum", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(["-m", module] if module else []), *map(str, args)]
        given = hub.environment(tmp_path / "home") | ({"HF_TOKEN": token} if token else {}) | environment
        return subprocess.run(
            command, env=given, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=PATIENCE_S
        )

    return invoke


def files_of(repository: Path) -> dict[str, str]:
    return {
        path.relative_to(repository).as_posix(): path.read_text() for path in repository.rglob("*") if path.is_file()
    }


def test_all_files_arrive_and_the_card_names_the_repository(
    hub: HubServer, folder: Path, apart: Push, tmp_path: Path
) -> None:
    """A new private repository with all files but hidden ones; stdout has its address; our folder stays as it is."""
    done = apart("push", folder, "ann/mine", "--private", "--message", "First")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{hub.url}/ann/mine\n", "")
    found = files_of(tmp_path / "hub" / "models" / "ann" / "mine")
    expected = {name: text for name, text in FILES.items() if name != ".DS_Store"}
    expected["README.md"] = CARD.replace(PLACE, "ann/mine")
    assert found == expected | {".gitattributes": found[".gitattributes"]}
    assert hub.uploads is not None
    assert hub.uploads.private == {"models/ann/mine": True}
    assert hub.uploads.messages == ["First"]
    assert (folder / "README.md").read_text() == CARD


def test_a_second_push_replaces_the_export_and_nothing_else(
    hub: HubServer, folder: Path, push: Push, tmp_path: Path
) -> None:
    """Files of the earlier export go, those of the owner stay."""
    assert push("push", folder, "ann/mine").returncode == 0
    there = tmp_path / "hub" / "models" / "ann" / "mine"
    (there / "LICENSE").write_text("of the owner")
    (folder / "evidence/run/run.json").rename(folder / "evidence/run/other.json")
    (folder / "model.safetensors").write_text("other weights")
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stderr) == (0, "")
    found = files_of(there)
    assert found["model.safetensors"] == "other weights"
    assert found["LICENSE"] == "of the owner"
    assert "evidence/run/other.json" in found
    assert "evidence/run/run.json" not in found


def test_a_branch_leaves_main_as_it_is(hub: HubServer, folder: Path, push: Push, tmp_path: Path) -> None:
    """The address that is printed is that of the branch, which alone has what is new."""
    assert push("push", folder, "ann/mine").returncode == 0
    (folder / "model.safetensors").write_text("other weights")
    done = push("push", folder, "ann/mine", "--revision", "v2")
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/ann/mine/tree/v2\n"), done.stderr
    assert files_of(tmp_path / "hub/models/ann/mine")["model.safetensors"] == "weights"
    assert files_of(tmp_path / "hub/branches/models/ann/mine/v2")["model.safetensors"] == "other weights"


@pytest.mark.parametrize(
    ("args", "token", "code", "message", "hint"),
    [
        (["mine", "ann/mine"], "", 2, "with a token only", "hf auth login"),
        (["mine", "ann/mine"], "wrong", 2, "does not accept the token", "hf auth login"),
        (["mine", "bob/mine"], "secret", 2, "you may not write to bob/mine", "check the owner"),
        (["mine", "mine"], "secret", 2, "'mine' is not the name of a repository", "OWNER/NAME"),
        (["mine", "ann/mine@v2"], "secret", 2, "'ann/mine@v2' is not the name", "OWNER/NAME"),
        (["mine", "ann/mine", "--best"], "secret", 2, "exported already, so it takes no --best", "export the run"),
        (["nothing", "ann/mine"], "secret", 2, "no run 'nothing'", "smolsum train"),
        (["plain", "ann/mine"], "secret", 2, "is a model, not a run", "smolsum export RUN DIR"),
    ],
)
def test_what_is_refused(
    hub: HubServer, folder: Path, push: Push, args: list[str], token: str, code: int, message: str, hint: str
) -> None:
    """One error with a remedy, before anything is there."""
    plain = folder.with_name("plain")
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    done = push("push", *args, token=token)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert hint in done.stderr
    assert "secret" not in done.stderr
    assert not hub.repositories


def test_private_means_private(hub: HubServer, folder: Path, push: Push, tmp_path: Path) -> None:
    """A repository that is public already gets nothing; one that is private gets the second push too."""
    assert push("push", folder, "ann/mine").returncode == 0
    before = files_of(tmp_path / "hub/models/ann/mine")
    (folder / "model.safetensors").write_text("secret weights")
    done = push("push", folder, "ann/mine", "--private")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ann/mine exists, and is public" in done.stderr
    assert files_of(tmp_path / "hub/models/ann/mine") == before
    for _ in range(2):
        assert push("push", folder, "ann/other", "--private").returncode == 0


@pytest.mark.parametrize("fails", ["commit", "objects/batch", "tree"])
def test_a_hub_that_fails_leaves_the_repository_as_it_was(
    hub: HubServer, folder: Path, push: Push, tmp_path: Path, fails: str
) -> None:
    """Exit code 3, and the next push is whole."""
    assert push("push", folder, "ann/mine").returncode == 0
    before = files_of(tmp_path / "hub/models/ann/mine")
    (folder / "model.safetensors").write_text("other weights")
    assert hub.uploads is not None
    hub.uploads.fails = fails
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the disk of the hub is full" in done.stderr
    assert files_of(tmp_path / "hub/models/ann/mine") == before
    hub.uploads.fails = ""
    assert push("push", folder, "ann/mine").returncode == 0
    assert files_of(tmp_path / "hub/models/ann/mine")["model.safetensors"] == "other weights"


@pytest.mark.parametrize(
    ("fails", "failure", "message"),
    [
        ("preupload", HTTPStatus.REQUEST_TIMEOUT, "the hub failed: the disk of the hub is full"),
        ("commit", HTTPStatus.TOO_MANY_REQUESTS, "the hub failed: the disk of the hub is full"),
        (
            "lfs-store",
            HTTPStatus.FORBIDDEN,
            "uploading 'model.safetensors' to the Hub. It said: the disk of the hub is full",
        ),
    ],
)
def test_what_the_hub_may_accept_later(
    hub: HubServer, folder: Path, push: Push, fails: str, failure: HTTPStatus, message: str
) -> None:
    """Exit code 3 with the hub's reason."""
    assert hub.uploads is not None
    hub.uploads.fails, hub.uploads.failure = fails, failure
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (3, "")
    assert message in done.stderr
    assert "try again later: no file was changed there" in done.stderr


def test_a_page_in_place_of_an_answer(folder: Path, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a proxy says in HTML is no fault of the card."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Please log in</html>")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        done = push("push", folder, "ann/mine")
        server.shutdown()
    assert (done.returncode, done.stdout) == (3, "")
    assert "the hub failed: its answer is not JSON" in done.stderr


def test_a_hub_that_is_away(folder: Path, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3, and a hint at the variable that keeps the client from asking."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the hub does not answer" in done.stderr
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = push("push", folder, "ann/mine")
    assert done.returncode == 3
    assert "HF_HUB_OFFLINE is set" in done.stderr


def test_a_card_that_the_hub_refuses(hub: HubServer, folder: Path, push: Push) -> None:
    """What the owner wrote into the card is checked by the hub, whose message is shown."""
    (folder / "README.md").write_text("---\nlicense: 3\n---\n")
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert '"license" must be a string' in done.stderr
    assert not hub.repositories


def test_a_hub_that_never_answers(folder: Path, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection, and says nothing: that ends too."""
    monkeypatch.setattr(smolsum.cli.push, "SILENT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (3, "")
    assert "the hub does not answer" in done.stderr


def test_a_card_of_the_owners(hub: HubServer, folder: Path, push: Push) -> None:
    """One without metadata is uploaded, with the hub's warning; one that is no text is not."""
    (folder / "README.md").write_text("# Mine\n")
    done = push("push", folder, "ann/mine")
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/ann/mine\n")
    assert done.stderr.startswith("warning: Warnings while validating metadata in README.md: - empty or missing yaml")
    assert "UserWarning" not in done.stderr
    (folder / "README.md").write_bytes("# Grüße\n".encode("latin-1"))
    done = push("push", folder, "ann/other")
    assert (done.returncode, done.stdout) == (2, "")
    assert "README.md is not text in UTF-8" in done.stderr
    assert list(hub.repositories) == ["models/ann/mine"]


@pytest.mark.slow
def test_adapters_for_a_base_from_the_hub(hub: HubServer, apart: Push, tmp_path: Path) -> None:
    """mlx-lm's own loader puts the exported adapters on the base by its id; the card says so."""
    hub.repositories["models/ann/base"] = write(tmp_path / "base", "qwen2")
    data, runs = make_data(tmp_path / "posts"), tmp_path / "runs"
    short = {
        "stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": 8,
        "data__max_input_tokens": 4000, "model__path": "ann/base", "model__adapter": "lora",
        "optimizer__learning_rate": 0.01,
    }  # fmt: skip
    done = apart(*arguments(data, runs, "adapted", **short), "--quiet")
    assert done.returncode == 0, done.stderr
    done = apart("export", "adapted", tmp_path / "mine", "--adapter", "--license", "mit", "--runs-dir", runs)
    assert (done.returncode, done.stderr) == (0, "")
    card = (tmp_path / "mine" / "README.md").read_text()
    for line in ("base_model: ann/base\n", "base_model_relation: adapter\n", "library_name: mlx\n"):
        assert line in card
    assert "mlx_lm.generate --model ann/base --adapter-path adapters" in card
    assert not (tmp_path / "mine" / "model.safetensors").exists()
    loaded = apart("-c", LOADED.format(repr(str(tmp_path / "mine"))), module="")
    assert loaded.stdout.strip() == "adapted", loaded.stderr


@pytest.mark.slow
def test_a_pushed_run_is_a_model_for_everybody(hub: HubServer, apart: Push, tmp_path: Path) -> None:
    """Pushed from the run, loaded by its hub id, it scores as the run's own evaluation."""
    data = make_data(tmp_path / "posts")
    runs, name = tmp_path / "runs", "whole"
    short = {"stages__length__steps": 2, "stages__quality__steps": 1, "sampling__max_new_tokens": 24}
    done = apart(*arguments(data, runs, name, **short), "--quiet")
    assert done.returncode == 0, done.stderr
    environment = {"SMOLSUM_RUNS_DIR": str(runs)}
    done = apart("push", name, "ann/mine", "--license", "mit", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    settings = [f"--set=data.path={data}", "--set=task.target_tokens=42", "--set=sampling.max_new_tokens=24"]
    done = apart("eval", "ann/mine", "--quiet", *settings, **environment)
    assert done.returncode == 0, done.stderr
    theirs, ours = (
        json.loads((path / "summary.json").read_text())["metrics"]
        for path in (Path(done.stdout.strip()), runs / name / "eval" / "quality-test")
    )
    assert theirs == ours
    assert os.listdir(tmp_path / "hub/models/ann/mine/evidence") == [name]
