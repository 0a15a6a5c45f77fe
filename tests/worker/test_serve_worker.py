"""`smolsum serve-worker`: flags, address and signals."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.models import write
from support.serving import process
from support.training import PATIENCE_S

from smolsum.cli.main import main
from smolsum.worker.listen import listen, url

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, which should not start a worker; gives its exit code and stderr."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["serve-worker", *arguments])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return run


def test_open_address_without_token_is_refused(refused: Refused) -> None:
    """Without a token only loopback is allowed."""
    code, text = refused("--host", "0.0.0.0")
    assert code == 2
    assert "no token" in text
    assert "hint: export SMOLSUM_WORKER_TOKEN" in text
    assert refused("--host", "0.0.0.0", "--token", "")[0] == 2


def test_port_in_use_is_one_error(refused: Refused) -> None:
    """With exit code 4, and a port that works."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = refused("--port", str(taken.getsockname()[1]))
    assert code == 4
    assert "cannot listen" in text
    assert "--port 0" in text


def test_port_is_in_use_before_the_first_worker_is_ready(tmp_path: Path, refused: Refused) -> None:
    """The second of two workers at one port fails at once, also while the first still loads its model."""
    folder = write(tmp_path / "m", "qwen2")
    first = listen("127.0.0.1", 0, None)
    with first:
        code, text = refused("--model", str(folder), "--port", str(first.getsockname()[1]))
    assert (code, "cannot listen" in text) == (4, True)


def test_work_folder_belongs_to_one_worker(tmp_path: Path, refused: Refused) -> None:
    """A folder that another worker uses, or that is a file, is one error."""
    folder = str(write(tmp_path / "m", "qwen2"))
    with process("--model", folder, "--work-dir", str(tmp_path / "w"), log=tmp_path / "log") as (worker, _):
        code, text = refused("--model", folder, "--port", "0", "--work-dir", str(tmp_path / "w"))
        assert code == 2
        assert f"is used by process {worker.pid}" in text
        assert "hint: give each worker its own --work-dir" in text
    code, text = refused("--model", folder, "--port", "0", "--work-dir", str(tmp_path / "m" / "config.json"))
    assert (code, "cannot write" in text) == (1, True)


def test_url_of_an_open_worker_is_reachable() -> None:
    """A worker that listens on all addresses prints one that leads to it."""
    with listen("0.0.0.0", 0, "secret") as listener:
        shown = url("0.0.0.0", listener)
        assert "0.0.0.0" not in shown
        host, _, port = shown.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S):
            pass


@pytest.mark.parametrize(
    ("arguments", "about"),
    [(("--engine", "vlm"), "vllm"), (("--dtype", "fp8"), "--dtype"), (("--quantize", "5"), "--quantize"),
     (("--model", "tyni"), "tiny"), (("--model", "tiny", "--port", "0", "--max-model-len", "99999"), "1024")],
)  # fmt: skip
def test_wrong_flags_are_named(arguments: tuple[str, ...], about: str, refused: Refused) -> None:
    """Each with the right value."""
    code, text = refused(*arguments)
    assert code == 2
    assert about in text
    assert "hint:" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_an_idle_worker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: exit code 0, no messages, no files left."""
    folder, work = write(tmp_path / "m", "lfm2"), tmp_path / "tmp"
    work.mkdir()
    (work / "mlx").symlink_to(Path(tempfile.gettempdir(), "mlx"))  # MLX keeps there what it compiled, for seconds
    with process("--model", str(folder), log=tmp_path / "log", TMPDIR=str(work)) as (worker, client):
        assert client.get("/health").json()["state"] == "ready"
        worker.send_signal(number)
        assert worker.wait(PATIENCE_S) == 0
    assert (tmp_path / "log").read_text() == ""
    assert list(work.glob("smolsum-*")) == []


def test_ctrl_c_breaks_off_work_under_way(tmp_path: Path) -> None:
    """It does not wait for minutes of work: every open request is answered with an error, and the log stays empty."""
    folder = write(tmp_path / "m", "qwen2")
    requests = [{"id": str(n), "prompt_ids": [5], "seed": n} for n in range(4000)]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/logprobs": {"sequences": [{"prompt_ids": [5] * 100, "completion_ids": [6] * 150}] * 4000},
        "/v1/completions": {"prompt": [5], "n": 30, "max_tokens": 250, "stream": True},
        "/v1/rollouts": {"version": None, "temperature": 1, "max_new_tokens": 200, "requests": requests},
    }
    with process("--model", str(folder), log=tmp_path / "log") as (worker, client), ThreadPoolExecutor() as pool:
        queued, answers = 0, []
        for path, body in bodies.items():
            answers.append(pool.submit(client.post, path, json=body))
            while (now := httpx.get(f"{client.base_url}/health", timeout=PATIENCE_S).json()["queue"]) <= queued:
                pass
            queued = now
        worker.send_signal(signal.SIGINT)
        assert worker.wait(PATIENCE_S) == 0
        for answer in answers:
            assert "being stopped" in answer.result().text
    assert (tmp_path / "log").read_text() == ""
