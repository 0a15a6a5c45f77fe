"""`smolsum doctor` on this machine, with real servers where it asks any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.judge_server import serving
from support.serving import face

from smolsum.cli import doctor_checks, main
from smolsum.cli.doctor_checks import Finding
from smolsum.worker.engines.mlx import MlxEngine

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """All findings by name, in an environment of the test's own; MLX is not started again."""
    monkeypatch.setattr(doctor_checks, "PROBE", 'print(\'{"device": "Device(gpu, 0)", "blas": "", "gflops": 900}\')')

    def run(online: bool = False, **environ: str) -> dict[str, Finding]:
        found = doctor_checks.examine(environ, runs_dir=tmp_path / "runs", vllm_python="/no/python", online=online)
        return {one.name: one for one in found}

    return run


def test_this_machine_has_a_finding_for_every_check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real probes: MLX computes, the exit code follows the failures, and what fails or warns has its command."""
    for name in ("SMOLSUM_WORKERS", "OPENAI_API_KEY", "OPENAI_BASE_URL", "SMOLSUM_JUDGE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    code = main.main(["doctor", "--json", "--runs-dir", str(tmp_path)])
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert code == (4 if any(one["level"] == "fail" for one in found.values()) else 0)
    assert found["MLX device"]["level"] == "ok"
    assert "GFLOP/s" in found["MLX device"]["detail"]
    assert {"memory", "BLAS", "METEOR", "vLLM", "judge", "disk", "terminal"} <= set(found)
    assert all(one["command"] for one in found.values() if one["level"] != "ok")


def test_a_broken_mlx_fails_with_its_reason(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the probe down is a finding, with the last thing it said."""
    monkeypatch.setattr(doctor_checks, "PROBE", "raise ImportError('libmlx.so: no such file')")
    found = examine()["MLX device"]
    assert found.level == "fail"
    assert "ImportError: libmlx.so: no such file" in found.detail
    assert found.command


def test_a_slow_blas_is_a_warning(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's own products are slow on a Linux CPU, and that can be fixed."""
    monkeypatch.setattr(doctor_checks.sys, "platform", "linux")
    monkeypatch.delenv("SMOLSUM_BLAS", raising=False)
    monkeypatch.setattr(doctor_checks, "PROBE", 'print(\'{"device": "Device(cpu, 0)", "blas": "", "gflops": 4}\')')
    found = examine()["BLAS"]
    assert (found.level, "libopenblas" in found.command) == ("warn", True)


def test_workers_are_asked_for_their_health(examine: Examine) -> None:
    """One with the right token answers; a wrong token, and no server there, fail with different remedies."""
    engine = MlxEngine("builtin:tiny", dtype="float32", quantize=0, max_model_len=None)
    with face(engine, token="s3cret") as client:
        worker = str(client.base_url).rstrip("/")
        found = examine(SMOLSUM_WORKERS=f"{worker},http://127.0.0.1:9", SMOLSUM_WORKER_TOKEN="s3cret")
        refused = examine(SMOLSUM_WORKERS=worker, SMOLSUM_WORKER_TOKEN="wrong")[worker]
    assert (found[worker].level, "state ready, engine mlx" in found[worker].detail) == ("ok", True)
    assert found["http://127.0.0.1:9"].level == "fail"
    assert "serve-worker" in found["http://127.0.0.1:9"].command
    assert (refused.level, refused.detail) == ("fail", "refuses the token")


def test_the_judge_is_asked_only_online(examine: Examine) -> None:
    """No key is shown, and no request is made unless it is asked for."""
    with serving(key="a-key") as server:
        environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "a-key", "SMOLSUM_JUDGE_MODEL": "judge-a"}
        silent = examine(**environ)["judge"]
        assert (silent.level, server.connections) == ("ok", 0)
        assert "a-key" not in silent.detail
        assert "answers (200)" in examine(online=True, **environ)["judge"].detail
        refused = examine(online=True, **environ | {"OPENAI_API_KEY": "other"})["judge"]
        assert (refused.level, "key" in refused.detail) == ("fail", True)
    gone = examine(online=True, **environ)["judge"]
    assert (gone.level, "OPENAI_BASE_URL" in gone.command) == ("fail", True)
    unset = examine()["judge"]
    assert (unset.level, "OPENAI_API_KEY" in unset.command) == ("warn", True)


def test_failed_checks_exit_with_4(
    examine: Examine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that was set up and does not answer is a failure: exit code 4 and the command."""
    monkeypatch.setenv("SMOLSUM_WORKERS", "http://127.0.0.1:9")
    assert main.main(["doctor", "--runs-dir", str(tmp_path)]) == 4
    out, err = capsys.readouterr()
    assert "fail  workers: http://127.0.0.1:9: no answer" in out
    assert "1 of" in err
    assert "hint: smolsum serve-worker" in err
