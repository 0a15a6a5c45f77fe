"""`smolsum serve-worker`: the process itself."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.models import write
from support.serving import process

from smolsum.worker.listen import listen, url


def told(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a worker that should not start."""
    command = [sys.executable, "-m", "smolsum", "serve-worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_open_to_all_is_refused() -> None:
    """Without a token only this machine may come in."""
    code, text = told("--host", "0.0.0.0")
    assert code == 2
    assert "no token" in text
    assert "hint: export SMOLSUM_WORKER_TOKEN" in text
    assert told("--host", "0.0.0.0", "--token", "")[0] == 2


def test_port_in_use() -> None:
    """A port that is taken is one error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, text = told("--port", str(taken.getsockname()[1]))
    assert code == 4
    assert "cannot listen" in text
    assert "--port 0" in text


def test_two_at_one_port(tmp_path: Path) -> None:
    """The second of two workers is told that the port is taken, as long as the first is not ready, too."""
    folder = write(tmp_path / "m", "qwen2")
    first = listen("127.0.0.1", 0, None)
    with first:
        code, text = told("--model", str(folder), "--port", str(first.getsockname()[1]))
    assert (code, "cannot listen" in text) == (4, True)


@pytest.mark.slow
def test_one_folder_for_each(tmp_path: Path) -> None:
    """A folder that another worker uses, or that is a file, is one error."""
    folder = str(write(tmp_path / "m", "qwen2"))
    with process("--model", folder, "--work-dir", str(tmp_path / "w"), log=tmp_path / "log") as (worker, _):
        code, text = told("--model", folder, "--port", "0", "--work-dir", str(tmp_path / "w"))
        assert code == 2
        assert f"is used by process {worker.pid}" in text
        assert "hint: give each worker its own --work-dir" in text
    code, text = told("--model", folder, "--port", "0", "--work-dir", str(tmp_path / "m" / "config.json"))
    assert (code, "cannot write" in text) == (1, True)


def test_where_others_find_it() -> None:
    """A worker that listens on every address tells one that leads to it."""
    with listen("0.0.0.0", 0, "secret") as listener:
        told = url("0.0.0.0", listener)
        assert "0.0.0.0" not in told
        host, _, port = told.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10):
            pass


@pytest.mark.parametrize(
    ("arguments", "about"),
    [(("--engine", "vlm"), "vllm"), (("--dtype", "fp8"), "--dtype"), (("--quantize", "5"), "--quantize"),
     (("--model", "tyni"), "tiny"), (("--model", "tiny", "--port", "0", "--max-model-len", "99999"), "1024")],
)  # fmt: skip
def test_bad_flags(arguments: tuple[str, ...], about: str) -> None:
    """Each wrong flag is named, with what is right."""
    code, text = told(*arguments)
    assert code == 2
    assert about in text
    assert "hint:" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end a worker that serves, with nothing said and nothing left behind."""
    folder, work = write(tmp_path / "m", "lfm2"), tmp_path / "tmp"
    work.mkdir()
    with process("--model", str(folder), log=tmp_path / "log", TMPDIR=str(work)) as (worker, client):
        assert client.get("/health").json()["state"] == "ready"
        worker.send_signal(number)
        assert worker.wait(20) == 0
    assert (tmp_path / "log").read_text() == ""
    assert list(work.glob("smolsum-*")) == []


@pytest.mark.parametrize("path", ["/v1/logprobs", "/v1/rollouts", "/v1/completions"])
def test_stop_at_work(tmp_path: Path, path: str) -> None:
    """Ctrl-C does not wait for work of minutes: it is broken off, without a word beyond the answer to who asked."""
    folder = write(tmp_path / "m", "qwen2")
    requests = [{"id": str(n), "prompt_ids": [5], "seed": n} for n in range(4000)]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/logprobs": {"sequences": [{"prompt_ids": [5] * 100, "completion_ids": [6] * 150}] * 4000},
        "/v1/rollouts": {"version": None, "temperature": 1, "max_new_tokens": 200, "requests": requests},
        "/v1/completions": {"prompt": [5], "n": 64, "max_tokens": 250, "stream": True},
    }
    with process("--model", str(folder), log=tmp_path / "log") as (worker, client), ThreadPoolExecutor() as pool:
        answer = pool.submit(client.post, path, json=bodies[path])
        while httpx.get(f"{client.base_url}/health").json()["queue"] == 0:
            pass
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0
        assert "being stopped" in answer.result().text
    assert (tmp_path / "log").read_text() == ""
