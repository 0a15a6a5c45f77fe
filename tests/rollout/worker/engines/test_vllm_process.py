"""The child process ends with its owner, however that ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import refuses
from support.training import PATIENCE_S, wait_until

from smolsum.errors import MachineError
from smolsum.rollout.worker.engines import die_with_owner
from smolsum.rollout.worker.engines.vllm_process import VllmServer, environment

GRANDCHILD = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


def ended(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
@pytest.mark.parametrize("how", ["owner closes", "owner is killed", "server is killed"])
def test_nothing_is_left_running(how: str) -> None:
    """The server and what it started end with their owner, even one that is killed, and with each other."""
    owner = (
        "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdin=-1, start_new_session=True);"
        "print(p.pid, flush=True); sys.stdin.read(); p.stdin.close(); p.wait()"
    )
    server = [sys.executable, "-I", die_with_owner.__file__, sys.executable, "-c", GRANDCHILD]
    command = [sys.executable, "-c", owner, *server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]  # of the watchdog, and of the grandchild
        assert not any(Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z" for pid in pids)
        if how == "owner closes":
            process.stdin.close()
        elif how == "owner is killed":
            process.kill()
        else:
            os.kill(int(Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()[0]), signal.SIGKILL)
        wait_until(lambda: all(ended(pid) for pid in pids))
        process.kill()


def test_server_that_does_not_start_is_one_error(short_path: Path) -> None:
    """With the end of its log and a remedy."""
    heard: list[str] = []

    async def run() -> None:
        await VllmServer(sys.executable, ["--model", "m"], short_path, heard.append).start()

    with refuses("No module named 'vllm'", "install vllm", error=MachineError):
        asyncio.run(run())
    assert any("No module named" in line for line in heard)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_server_ends_when_its_watchdog_is_killed(short_path: Path) -> None:
    """The server and what it started end too, and the engine notices."""

    async def run(folder: Path) -> tuple[str, list[int]]:
        script = folder / "server"
        script.write_text(f"#!{sys.executable}\n{GRANDCHILD}\n")
        script.chmod(0o755)
        heard: asyncio.Queue[str] = asyncio.Queue()
        child = VllmServer(str(script), [], folder, heard.put_nowait)
        starting = asyncio.create_task(child.start())
        grandchild = int(await heard.get())
        assert child._process is not None
        watchdog_pid = child._process.pid
        (server,) = map(int, Path(f"/proc/{watchdog_pid}/task/{watchdog_pid}/children").read_text().split())
        os.kill(watchdog_pid, signal.SIGKILL)
        with pytest.raises(MachineError, match="did not start"):
            await asyncio.wait_for(starting, PATIENCE_S)
        assert oct((folder / "tmp").stat().st_mode & 0o777) == "0o700"
        return await asyncio.wait_for(child.ended(), PATIENCE_S), [server, grandchild]

    said, pids = asyncio.run(run(short_path))
    wait_until(lambda: all(ended(pid) for pid in pids))
    assert int(said) == pids[1]


def test_child_is_isolated(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets neither the token nor our packages; its files stay in the worker's folder."""
    monkeypatch.setenv("SMOLSUM_WORKER_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    got = environment(short_path)
    assert "secret" not in got.values()
    assert (Path(got["PYTHONPATH"]) / "smolsum_vllm.py").exists()
    assert not (Path(got["PYTHONPATH"]) / "smolsum").exists()
    assert got["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert all(got[name].startswith(str(short_path)) for name in ("TMPDIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME"))
