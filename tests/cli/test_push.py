"""`smolsum push` against a hub on loopback: the real client, one commit or none, and what goes wrong."""

import json
import os
import socket
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import close_session, constants
from huggingface_hub.utils import _http
from support.answers import answering
from support.calls import Call, done
from support.hub import HubServer
from support.hub_uploads import Uploads
from support.models import write
from support.processes import python
from support.refusals import assert_refused
from support.training import arguments

from smolsum.errors import SmolsumError, UnreachableError
from smolsum.results.report.card import PLACE

pytestmark = pytest.mark.filterwarnings("default")  # an error in the hub's client would end the upload
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
def uploads(tmp_path: Path) -> Uploads:
    """What was uploaded by `secret`, which may write as ann."""
    return Uploads(tmp_path / "hub", {"secret": "ann"})


@pytest.fixture
def hub(uploads: Uploads) -> Iterator[HubServer]:
    with HubServer({}, uploads=uploads) as server:
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
def push(hub: HubServer, folder: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """`smolsum push` in this process, of `folder` to ann/mine unless they are named; its client knows this hub, has no
    token of its own, and tries again at once."""
    for name in os.environ:
        if name.startswith(("HF_", "HUGGING")) or name.lower() == "http_proxy":  # --quiet of other tests sets one
            monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(_http, "time", Mock(wraps=time, sleep=Mock()))
    close_session()

    def invoke(*flags: object, what: object = folder, to: str = "ann/mine", token: str = "secret") -> Any:
        monkeypatch.setenv("HF_TOKEN", token)
        return call("push", what, to, *flags)

    yield invoke
    close_session()


@pytest.fixture
def apart(hub: HubServer, tmp_path: Path) -> Call:
    """`smolsum` in its own process, whose client has the hub from HF_ENDPOINT."""

    def invoke(*args: object, **environment: str) -> tuple[int, str, str]:
        given = hub.environment(tmp_path / "home") | {"HF_TOKEN": "secret"} | environment
        return python("-m", "smolsum", *args, cwd=tmp_path, environ=given)

    return invoke


def files_of(repository: Path) -> dict[str, str]:
    return {
        path.relative_to(repository).as_posix(): path.read_text() for path in repository.rglob("*") if path.is_file()
    }


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Where the hub keeps ann/mine."""
    return tmp_path / "hub" / "models" / "ann" / "mine"


def test_all_files_arrive_and_the_card_names_the_repository(
    hub: HubServer, uploads: Uploads, folder: Path, there: Path, apart: Call
) -> None:
    """A new private repository with all files but hidden ones; stdout has its address; our folder stays as it is."""
    pushed = apart("push", folder, "ann/mine", "--private", "--message", "First")
    assert pushed == (0, f"{hub.url}/ann/mine\n", "")
    found = files_of(there)
    expected = {name: text for name, text in FILES.items() if name != ".DS_Store"}
    expected["README.md"] = CARD.replace(PLACE, "ann/mine")
    assert found == expected | {".gitattributes": found[".gitattributes"]}
    assert (uploads.private, uploads.messages) == ({"models/ann/mine": True}, ["First"])
    assert (folder / "README.md").read_text() == CARD


def test_a_second_push_replaces_the_export_and_nothing_else(folder: Path, there: Path, push: Call) -> None:
    """Files of the earlier export go, those of the owner stay."""
    done(push())
    (there / "LICENSE").write_text("of the owner")
    (folder / "evidence/run/run.json").rename(folder / "evidence/run/other.json")
    (folder / "model.safetensors").write_text("other weights")
    assert done(push())[1] == ""
    found = files_of(there)
    assert (found["model.safetensors"], found["LICENSE"]) == ("other weights", "of the owner")
    assert "evidence/run/other.json" in found
    assert "evidence/run/run.json" not in found


def test_a_branch_leaves_main_as_it_is(hub: HubServer, folder: Path, there: Path, push: Call, tmp_path: Path) -> None:
    """The address that is printed is that of the branch, which alone has what is new."""
    done(push())
    (folder / "model.safetensors").write_text("other weights")
    assert done(push("--revision", "v2"))[0] == f"{hub.url}/ann/mine/tree/v2\n"
    assert files_of(there)["model.safetensors"] == "weights"
    assert files_of(tmp_path / "hub/branches/models/ann/mine/v2")["model.safetensors"] == "other weights"


@pytest.mark.parametrize(
    ("flags", "given", "named"),
    [
        ([], {"token": ""}, "hf auth login"),
        ([], {"token": "wrong"}, "does not accept the token"),
        ([], {"to": "bob/mine"}, "bob/mine"),
        ([], {"to": "mine"}, "'mine' is not the name of a repository"),
        ([], {"to": "ann/mine@v2"}, "'ann/mine@v2'"),
        ([], {"what": "nothing"}, "'nothing'"),
        (["--best"], {}, "--best"),
        ([], {"what": "plain"}, "smolsum export RUN DIR"),
    ],
)
def test_what_is_refused(hub: HubServer, push: Call, flags: list[str], given: dict[str, str], named: str) -> None:
    Path("plain").mkdir()
    Path("plain/config.json").write_text("{}")
    refused = push(*flags, **given)
    assert_refused(refused, named)
    assert "secret" not in refused[2]
    assert not hub.repositories


def test_private_means_private(folder: Path, there: Path, push: Call) -> None:
    """A repository that is public already gets nothing; one that is private gets the second push too."""
    done(push())
    before = files_of(there)
    (folder / "model.safetensors").write_text("secret weights")
    assert_refused(push("--private"), "ann/mine exists, and is public")
    assert files_of(there) == before
    for _ in range(2):
        done(push("--private", to="ann/other"))


FULL = HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("fails", "failure"),
    [
        ("commit", FULL), ("objects/batch", FULL), ("tree", FULL), ("preupload", HTTPStatus.REQUEST_TIMEOUT),
        ("commit", HTTPStatus.TOO_MANY_REQUESTS), ("lfs-store", HTTPStatus.FORBIDDEN),
    ],
)  # fmt: skip
def test_a_hub_that_fails_leaves_the_repository_as_it_was(
    uploads: Uploads, folder: Path, there: Path, push: Call, fails: str, failure: HTTPStatus
) -> None:
    """Exit code 3 with the hub's reason, and the next push is whole."""
    done(push())
    before = files_of(there)
    (folder / "model.safetensors").write_text("other weights")
    uploads.fails, uploads.failure = fails, failure
    assert_refused(push(), "the disk of the hub is full", "no file was changed there", error=UnreachableError)
    assert files_of(there) == before
    uploads.fails = ""
    done(push())
    assert files_of(there)["model.safetensors"] == "other weights"


def test_a_page_in_place_of_an_answer(push: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a proxy says in HTML is no fault of the card."""
    with answering(200, b"<html>Please log in</html>") as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        assert_refused(push(), "not JSON", error=UnreachableError)


def test_a_hub_that_is_away(push: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3, also where it accepts the connection and says nothing, and a hint at the variable that keeps the
    client from asking."""
    monkeypatch.setattr("smolsum.cli.export.SILENT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
            assert_refused(push(), "the hub does not answer", error=UnreachableError)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_refused(push(), "HF_HUB_OFFLINE", error=UnreachableError)


def test_a_card_of_the_owners(hub: HubServer, folder: Path, push: Call) -> None:
    """One without metadata is uploaded, with the hub's warning; the hub checks what was written into it, and shows its
    own message; one that is not a text is not sent."""
    (folder / "README.md").write_text("# Mine\n")
    out, err = done(push())
    assert out == f"{hub.url}/ann/mine\n"
    assert err.startswith("warning: Warnings while validating metadata in README.md: - empty or missing yaml")
    assert "UserWarning" not in err
    (folder / "README.md").write_bytes("# Grüße\n".encode("latin-1"))
    assert_refused(push(to="ann/other"), "README.md is not text in UTF-8")
    (folder / "README.md").write_text("---\nlicense: 3\n---\n")
    assert_refused(push(to="ann/other"), '"license" must be a string', error=SmolsumError)
    assert list(hub.repositories) == ["models/ann/mine"]


@pytest.mark.slow
def test_adapters_for_a_base_from_the_hub(hub: HubServer, apart: Call, data: Path, tmp_path: Path) -> None:
    """mlx-lm's own loader puts the exported adapters on the base by its id; the card says so."""
    hub.repositories["models/ann/base"] = write(tmp_path / "base", "qwen2")
    runs = tmp_path / "runs"
    short = {
        "stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": 8,
        "data__max_input_tokens": 4000, "model__path": "ann/base", "model__adapter": "lora",
        "optimizer__learning_rate": 0.01,
    }  # fmt: skip
    done(apart(*arguments(data, runs, "adapted", **short), "--quiet"))
    exported = apart("export", "adapted", tmp_path / "mine", "--adapter", "--license", "mit", "--runs-dir", runs)
    assert done(exported)[1] == ""
    card = (tmp_path / "mine" / "README.md").read_text()
    for line in ("base_model: ann/base\n", "base_model_relation: adapter\n", "library_name: mlx\n"):
        assert line in card
    assert "mlx_lm.generate --model ann/base --adapter-path adapters" in card
    assert not (tmp_path / "mine" / "model.safetensors").exists()
    given = hub.environment(tmp_path / "home") | {"HF_TOKEN": "secret"}
    code, out, err = python("-c", LOADED.format(repr(str(tmp_path / "mine"))), cwd=tmp_path, environ=given)
    assert (code, out.strip()) == (0, "adapted"), err


@pytest.mark.slow
def test_a_pushed_run_is_a_model_for_everybody(apart: Call, there: Path, data: Path, tmp_path: Path) -> None:
    """Pushed from the run, loaded by its hub id, it scores as the run's own evaluation."""
    runs = tmp_path / "runs"
    short = {"stages__length__steps": 2, "stages__quality__steps": 1, "sampling__max_new_tokens": 24}
    done(apart(*arguments(data, runs, "whole", **short), "--quiet"))
    environment = {"SMOLSUM_RUNS_DIR": str(runs)}
    assert done(apart("push", "whole", "ann/mine", "--license", "mit", **environment))[1] == ""
    settings = [f"--set=data.path={data}", "--set=task.target_tokens=42", "--set=sampling.max_new_tokens=24"]
    out, _ = done(apart("eval", "ann/mine", "--quiet", *settings, **environment))
    theirs, ours = (
        json.loads((path / "summary.json").read_text())["metrics"]
        for path in (Path(out.strip()), runs / "whole" / "eval" / "quality-test")
    )
    assert theirs == ours
    assert os.listdir(there / "evidence") == ["whole"]
