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
from smolsum.policy import load
from smolsum.worker.engines.mlx import MlxEngine

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """All findings by name, in an environment of the test's own; MLX is not started again."""
    monkeypatch.setattr(doctor_checks, "PROBE", 'print(\'{"device": "Device(gpu, 0)", "blas": "", "gflops": 900}\')')

    def run(online: bool = False, model: str = "", **environ: str) -> dict[str, Finding]:
        found = doctor_checks.examine(
            environ, runs_dir=tmp_path / "runs", vllm_python="/no/python", online=online, model=model
        )
        return {one.name: one for one in found}

    return run


def test_this_machine_has_a_finding_for_every_check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real probes: MLX computes, a model samples as it scores, the exit code follows the failures, and what fails
    or warns has its command."""
    for name in ("SMOLSUM_WORKERS", "OPENAI_API_KEY", "OPENAI_BASE_URL", "SMOLSUM_JUDGE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    code = main.main(["doctor", "--json", "--model", "tiny", "--runs-dir", str(tmp_path)])
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert code == (4 if any(one["level"] == "fail" for one in found.values()) else 0)
    assert found["MLX device"]["level"] == "ok"
    assert "GFLOP/s" in found["MLX device"]["detail"]
    assert found["builtin:tiny"]["level"] == "ok"
    tried = "qwen2, 1.0 M parameters, float32: samples and scores alike, tried in "
    assert found["builtin:tiny"]["detail"].startswith(tried)
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


def test_whether_sampling_runs_in_c(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """smolsum's own products; or the BLAS, with the reason and what helps."""

    def found(in_use: bool, why: str = "") -> tuple[str, str]:
        result = json.dumps({"device": "Device(cpu, 0)", "blas": "b", "native": in_use, "why": why, "gflops": 90})
        monkeypatch.setattr(doctor_checks, "PROBE", f"print({result!r})")
        one = examine()["sampling"]
        assert why in one.detail
        return one.level, one.command

    monkeypatch.delenv("SMOLSUM_NATIVE", raising=False)
    assert found(True) == ("ok", "")
    assert found(False, "there is no C compiler") == ("warn", "apt-get install gcc")
    assert "gcc" not in found(False, "cc failed (no space left)")[1]
    monkeypatch.setenv("SMOLSUM_NATIVE", "none")
    assert found(False) == ("warn", "unset SMOLSUM_NATIVE")


def test_memory_is_what_training_would_get(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same limit as training's, with its source; a small one with a command, and a wrong one with its remedy."""
    shown = {}
    for value in ("9.5", "2", "lots"):
        monkeypatch.setenv("SMOLSUM_MEMORY_GB", value)
        main.main(["doctor", "--json", "--runs-dir", str(tmp_path)])
        findings = json.loads(capsys.readouterr().out)["findings"]
        shown[value] = next(one for one in findings if one["name"] == "memory")
    assert shown["9.5"]["level"] == "ok"
    assert shown["9.5"]["detail"].startswith("9.5 GB for training (SMOLSUM_MEMORY_GB), of ")
    assert (shown["2"]["level"], "--set model.adapter=lora" in shown["2"]["command"]) == ("warn", True)
    assert (shown["lots"]["level"], shown["lots"]["command"]) == ("fail", "export SMOLSUM_MEMORY_GB=8")


def test_a_list_of_workers_without_a_url_fails(examine: Examine) -> None:
    """Training refuses it too."""
    found = examine(SMOLSUM_WORKERS=",")["SMOLSUM_WORKERS"]
    assert (found.level, found.detail, found.command) == ("fail", "',' has no URL", "unset SMOLSUM_WORKERS")
    assert "SMOLSUM_WORKERS" not in examine(SMOLSUM_WORKERS="")


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


def test_each_role_shows_its_server_and_where_its_key_comes_from(examine: Examine) -> None:
    """Online, each server gets its own key alone; what is wrong names the variable of that role."""
    with serving(key="key-of-judge") as judge, serving(key="key-of-reader") as reader, serving() as policy:
        environ = {"SMOLSUM_JUDGE_URL": judge.url, "SMOLSUM_JUDGE_API_KEY": "key-of-judge"}
        environ |= {"SMOLSUM_READER_URL": reader.url, "SMOLSUM_POLICY_URL": policy.url, "OPENAI_API_KEY": "openais"}
        offline = examine(**environ)
        assert judge.connections + reader.connections + policy.connections == 0
        found = examine(online=True, **environ | {"SMOLSUM_GRADER_URL": judge.url, "OPENAI_API_KEY": ""})
        with_key = examine(online=True, **environ | {"OPENAI_API_KEY": "", "SMOLSUM_READER_API_KEY": "key-of-reader"})
    assert f"{judge.url}, key from SMOLSUM_JUDGE_API_KEY" in offline["judge"].detail
    assert f"{judge.url}, key from SMOLSUM_JUDGE_API_KEY" in offline["second judge"].detail
    assert "https://api.openai.com/v1, key from OPENAI_API_KEY" in offline["grader"].detail
    assert not any(key in one.detail for one in offline.values() for key in ("openais", "key-of-"))
    assert (found["judge"].level, found["second judge"].level, found["policy"].level) == ("ok", "ok", "ok")
    assert (found["reader"].level, found["reader"].command) == ("fail", "export SMOLSUM_READER_API_KEY=…")
    assert (found["grader"].level, found["grader"].command) == ("fail", "export SMOLSUM_GRADER_API_KEY=…")
    assert (found["corruptor"].level, "SMOLSUM_CORRUPTOR_URL" in found["corruptor"].detail) == ("ok", True)
    assert with_key["reader"].level == "ok"
    assert judge.authorizations == {"Bearer key-of-judge", ""}
    assert reader.authorizations == {"Bearer key-of-reader", ""}
    assert policy.authorizations == {""}
    unclear = examine(OPENAI_BASE_URL="http://127.0.0.1:9/v1", SMOLSUM_JUDGE_API_KEY="k")["judge"]
    assert (unclear.level, "export SMOLSUM_JUDGE_URL=" in unclear.command) == ("fail", True)


@pytest.mark.parametrize(
    ("platform", "machine", "device", "level", "says"),
    [
        ("linux", "x86_64", "Device(cpu, 0)", "ok", "have been run on Linux with such a CPU"),
        ("linux", "x86_64", "Device(gpu, 0)", "warn", "MLX on CUDA: smolsum's own tests have not been run on it"),
        ("darwin", "arm64", "Device(gpu, 0)", "warn", "MLX on Metal: smolsum's own tests have not been run on it"),
        ("linux", "aarch64", "Device(cpu, 0)", "warn", "a CPU (linux, aarch64): smolsum's own tests have not"),
    ],
)
def test_what_the_tests_were_not_run_on_is_said(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, device: str, level: str, says: str
) -> None:
    """On such a machine alone, with the command that runs them."""
    monkeypatch.setattr(doctor_checks.sys, "platform", platform)
    monkeypatch.setattr(doctor_checks.platform, "machine", lambda: machine)
    result = json.dumps({"device": device, "blas": "b", "native": True, "why": "", "gflops": 90})
    monkeypatch.setattr(doctor_checks, "PROBE", f"print({result!r})")
    found = examine()["tested"]
    assert (found.level, says in found.detail) == (level, True)
    assert ("uv run pytest" in found.command) == (level == "warn")


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


def test_a_model_that_is_not_here_is_not_downloaded(examine: Examine, tmp_path: Path) -> None:
    """The finding has the command that downloads it."""
    found = examine(model="acme/absent@v2", HF_HOME=str(tmp_path))["acme/absent@v2"]
    assert (found.level, found.command) == ("fail", "hf download acme/absent --revision v2")


def test_a_model_that_cannot_be_trained_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that MLX-LM does not know, one that is sampled wrongly, and one that does not fit into memory."""
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    doctor_checks.try_model(str(tmp_path))
    monkeypatch.setattr(load, "_difference", lambda model: 5.3)
    monkeypatch.setattr(load, "_supported", set())
    doctor_checks.try_model("builtin:tiny")
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", "0.001")
    doctor_checks.try_model("builtin:tiny")
    unknown, wrong, large = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert {unknown["level"], wrong["level"], large["level"]} == {"fail"}
    assert "the architecture 'abacus'" in unknown["detail"]
    assert "choose a model of a supported architecture" in unknown["command"]
    assert "log-probs that differ by 5.3 nats from those of scoring" in wrong["detail"]
    assert "its weights take 0.00394 GB, more than 0.001 GB (SMOLSUM_MEMORY_GB)" in large["detail"]
    assert "--set model.quantize=4" in large["command"]


def test_a_trial_that_crashes_is_a_finding(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model that is killed for its memory, or a library that ends the process."""
    real = doctor_checks.subprocess.run

    def killed(command: list[str], **options: object) -> object:
        return (
            real([command[0], "-c", "import os; os.kill(os.getpid(), 9)"], **options)
            if command[3:]
            else real(command, **options)
        )

    monkeypatch.setattr(doctor_checks.subprocess, "run", killed)
    found = examine(model="builtin:tiny")["builtin:tiny"]
    assert (found.level, found.detail) == ("fail", "ended by signal 9, as if for lack of memory")
    assert found.command == "smolsum train --model builtin:tiny --dry-run"


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before any check."""
    assert main.main(["doctor", "--model", "nosuch"]) == 2
    assert "unknown model 'nosuch'" in capsys.readouterr().err
