"""`smolsum serve-worker`: the process itself."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from models import write
from serving import process


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
