"""`smolsum serve-worker`: flags, address and signals."""

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
from support.refusals import assert_refused
from support.serving import process
from support.training import PATIENCE_S

from smolsum.cli.main import main
from smolsum.errors import MachineError, SmolsumError
from smolsum.rollout.worker.http_server import listen, url

Serve = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    """Runs the command, which should not start a worker; gives its exit code, stdout and stderr."""
    return lambda *arguments: (main(["serve-worker", *arguments]), *capsys.readouterr())


def test_open_address_without_token_is_refused(serve: Serve) -> None:
    assert_refused(serve("--host", "0.0.0.0"), "0.0.0.0", "export SMOLSUM_WORKER_TOKEN")
    assert_refused(serve("--host", "0.0.0.0", "--token", ""), "SMOLSUM_WORKER_TOKEN", "openssl")


def test_port_in_use_is_one_error(tmp_path: Path, serve: Serve) -> None:
    """At once, with a port that works; also while the first of two workers at one port still loads its model."""
    folder = str(write(tmp_path / "m", "qwen2"))
    with socket.create_server(("127.0.0.1", 0)) as other, listen("127.0.0.1", 0, None) as loading:
        for taken in (other, loading):
            port = str(taken.getsockname()[1])
            assert_refused(serve("--model", folder, "--port", port), port, "--port 0", error=MachineError)


def test_work_folder_belongs_to_one_worker(tmp_path: Path, serve: Serve) -> None:
    folder = str(write(tmp_path / "m", "qwen2"))
    with process("--model", folder, "--work-dir", str(tmp_path / "w"), log=tmp_path / "log") as (worker, _):
        done = serve("--model", folder, "--port", "0", "--work-dir", str(tmp_path / "w"))
        assert_refused(done, tmp_path / "w", f"process {worker.pid}", "--work-dir")
    file = tmp_path / "m" / "config.json"
    assert_refused(serve("--model", folder, "--port", "0", "--work-dir", str(file)), file, error=SmolsumError)


def test_url_of_an_open_worker_is_reachable() -> None:
    with listen("0.0.0.0", 0, "secret") as listener:
        shown = url("0.0.0.0", listener)
        assert "0.0.0.0" not in shown
        host, _, port = shown.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S):
            pass


@pytest.mark.parametrize(
    ("arguments", "about"),
    [(("--engine", "vlm"), "vllm"), (("--dtype", "fp8"), "--dtype"), (("--quantize", "5"), "--quantize"),
     (("--", "--swap-space", "4"), "--engine vllm"), (("tiny",), "'tiny'"),
     (("--engine", "vllm", "--", "--dtype", "half"), "--dtype of serve-worker"),
     (("--engine", "vllm", "tiny"), "'tiny' is not a flag of vLLM"),
     (("--model", "tyni"), "tiny"), (("--model", "tiny", "--port", "0", "--max-model-len", "99999"), "1024")],
)  # fmt: skip
def test_wrong_flags_are_named(arguments: tuple[str, ...], about: str, serve: Serve) -> None:
    assert_refused(serve(*arguments), about)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_an_idle_worker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
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
