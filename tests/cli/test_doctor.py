"""`smolsum doctor` on this machine, with real servers where it asks any."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.calls import Call
from support.judge_server import serving
from support.metal_server import python_of
from support.refusals import assert_refused
from support.serving import face

from smolsum.config.resolve import model_settings
from smolsum.errors import MachineError
from smolsum.grpo.setup import machine_check
from smolsum.grpo.setup.machine_check import Finding
from smolsum.policy import load
from smolsum.rollout.worker.engines.mlx import MlxEngine
from smolsum.tasks import TASKS

Examine = Callable[..., dict[str, Finding]]


def probe(**found: object) -> str:
    """A probe of MLX that finds this, and otherwise a fast one."""
    fast = {"device": "Device(cpu, 0)", "blas": "b", "native": True, "why": "", "gflops": 900, "bfloat16": True}
    return f"print({json.dumps(fast | found)!r})"


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """All findings by name, in an environment of the test's own; MLX is not started again."""

    def run(online: bool = False, model: str = "", mlx: str = "", **environ: str) -> dict[str, Finding]:
        monkeypatch.setattr(machine_check, "PROBE", mlx or probe(device="Device(gpu, 0)"))
        runs = tmp_path / "runs"
        found = machine_check.examine(
            environ, runs_dir=runs, vllm_python="/no/python", online=online, model=model, settings={"path": model}
        )
        return {one.name: one for one in found}

    return run


def assert_finding(found: Finding, level: str, *named: str) -> None:
    """It has this level, names each of these, and has a command where it is not ok."""
    said = f"{found.detail}\n{found.command}"
    assert found.level == level, said
    assert not [name for name in named if name not in said], said
    assert level == "ok" or found.command


def test_this_machine_has_a_finding_for_every_check(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real probes: MLX computes, a model samples as it scores, the exit code follows the failures, and what fails
    or warns has its command."""
    monkeypatch.delenv("SMOLSUM_WORKERS", raising=False)
    code, out, _ = call("doctor", "--json", "--model", "tiny")
    found = {one["name"]: Finding(**one) for one in json.loads(out)["findings"]}
    assert code == (4 if any(one.level == "fail" for one in found.values()) else 0)
    assert_finding(found["MLX device"], "ok", "GFLOP/s")
    assert_finding(found["tiny"], "ok", "qwen2, 1.0 M parameters, float32: samples and scores alike")
    assert {"memory", "BLAS", "METEOR", "vLLM", "judge", "disk", "terminal"} <= set(found)
    assert all(one.command for one in found.values() if one.level != "ok")


@pytest.mark.parametrize(
    ("given", "name", "level", "named"),
    [
        # what takes the probe down is a finding, with the last thing it said
        ({"mlx": "raise ImportError('libmlx.so: no file')"}, "MLX device", "fail", ["ImportError: libmlx.so: no file"]),
        # MLX's own products on a Linux CPU, and sampling without smolsum's own in C; both can be fixed
        ({"mlx": probe(blas="", gflops=4)}, "BLAS", "warn", ["libopenblas"]),
        ({"mlx": probe()}, "sampling", "ok", ["optimizer.matmul_precision=medium"]),
        ({"mlx": probe(bfloat16=False)}, "sampling", "ok", ["compiled for this processor"]),
        ({"mlx": probe(native=False, why="no compiler")}, "sampling", "warn", ["no compiler", "smolsum doctor"]),
        ({"mlx": probe(native=False, why="there is no C compiler")}, "sampling", "warn", ["apt-get install gcc"]),
        # training refuses it too
        ({"SMOLSUM_WORKERS": ","}, "SMOLSUM_WORKERS", "fail", ["',' has no URL", "unset SMOLSUM_WORKERS"]),
        ({}, "judge", "warn", ["OPENAI_API_KEY"]),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "SMOLSUM_JUDGE_API_KEY": "k"}, "judge", "fail",
         ["export SMOLSUM_JUDGE_URL="]),
        # a model that is not here is not downloaded
        ({"model": "acme/absent@v2", "HF_HOME": "/none"}, "acme/absent@v2", "fail",
         ["hf download acme/absent --revision v2"]),
    ],
)  # fmt: skip
def test_a_finding_has_a_level_a_reason_and_a_remedy(
    given: dict[str, str], name: str, level: str, named: list[str], examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_check.sys, "platform", "linux")
    for variable in ("SMOLSUM_BLAS", "SMOLSUM_NATIVE"):
        monkeypatch.delenv(variable, raising=False)
    assert_finding(examine(**given)[name], level, *named)


@pytest.mark.parametrize(
    ("backends", "fix"),
    [
        (["mlx-cpu"], "uv sync --reinstall-package mlx-cpu"),
        ([], "uv sync --reinstall-package mlx-cpu"),
        (["mlx-cuda-13"], machine_check.FOR_CUDA),
    ],
)
def test_a_backend_of_mlx_that_is_broken_is_installed_again(
    backends: list[str], fix: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not another in its place."""
    monkeypatch.setattr(machine_check.sys, "platform", "linux")
    monkeypatch.setattr(machine_check, "_has_package", lambda name: name in backends)
    found = examine(mlx="raise ImportError('libmlx.so: no file')")
    assert "MLX's backend" not in found
    assert found["MLX device"].command == fix


@pytest.mark.parametrize("mlx", [probe(), "raise ImportError('libmlx.so: no file')"])
def test_two_backends_of_mlx_are_a_failure_as_they_share_a_file(
    mlx: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`uv sync --extra cuda` alone leaves the library of one of them, and `uv sync` after it leaves none: what is left
    has to be installed again."""
    monkeypatch.setattr(machine_check, "_has_package", lambda name: name in ("mlx-cpu", "mlx-cuda-13"))
    found = examine(mlx=mlx)["MLX's backend"]
    assert_finding(
        found, "fail", "mlx-cpu and mlx-cuda-13", "--no-install-package mlx-cpu --reinstall-package mlx-cuda-13"
    )
    assert_finding(found, "fail", "for the CPU: uv sync --reinstall-package mlx-cpu")


def test_on_a_mac_the_way_to_vllm_is_that_of_vllm_metal(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI has no vLLM for it."""
    monkeypatch.setattr(machine_check.sys, "platform", "darwin")
    found = examine()["vLLM"]
    assert_finding(
        found, "warn", "vllm-metal/main/install.sh", "--vllm-python ~/.venv-vllm-metal/bin/python", "macOS 15"
    )
    assert "pip install" not in found.command


def test_an_old_vllm_metal_is_named_with_its_upgrade(tmp_path: Path) -> None:
    found = machine_check._vllm(python_of(tmp_path, metal="0.28.0"))
    assert_finding(found, "warn", "vllm-metal 0.28.0", "0.29.0", "rm -rf ~/.venv-vllm-metal")
    assert_finding(machine_check._vllm(python_of(tmp_path)), "ok", "with vllm-metal 0.30.0")


def test_a_variable_that_turns_sampling_in_c_off_is_named(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLSUM_NATIVE", "none")
    assert_finding(examine(mlx=probe(native=False))["sampling"], "warn", "unset SMOLSUM_NATIVE")


@pytest.mark.parametrize(
    ("limit", "level", "named"),
    [
        ("9.5", "ok", "9.5 GB for training (SMOLSUM_MEMORY_GB), of "),
        ("2", "warn", "--set model.adapter=lora"),
        ("lots", "fail", "export SMOLSUM_MEMORY_GB=8"),
    ],
)
def test_memory_is_what_training_would_get(
    limit: str, level: str, named: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same limit as training's, with its source; a small one with a command, and a wrong one with its remedy."""
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", limit)
    found = json.loads(call("doctor", "--json")[1])["findings"]
    assert_finding(next(Finding(**one) for one in found if one["name"] == "memory"), level, named)


def test_workers_are_asked_for_their_health(examine: Examine) -> None:
    """One with the right token answers; a wrong token, and no server there, fail with different remedies."""
    engine = MlxEngine("builtin:tiny", dtype="float32", quantize=0, max_model_len=None)
    with face(engine, token="s3cret") as client:
        worker = str(client.base_url).rstrip("/")
        found = examine(SMOLSUM_WORKERS=f"{worker},http://127.0.0.1:9", SMOLSUM_WORKER_TOKEN="s3cret")
        refused = examine(SMOLSUM_WORKERS=worker, SMOLSUM_WORKER_TOKEN="wrong")[worker]
    assert_finding(found[worker], "ok", "state ready, engine mlx")
    assert_finding(found["http://127.0.0.1:9"], "fail", "serve-worker")
    assert_finding(refused, "fail", "refuses the token")


def test_the_judge_is_asked_only_online(examine: Examine) -> None:
    """No key is shown, and no request is made unless it is asked for."""
    with serving(key="a-key") as server:
        environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "a-key", "SMOLSUM_JUDGE_MODEL": "judge-a"}
        silent = examine(**environ)["judge"]
        assert (silent.level, server.connections) == ("ok", 0)
        assert "a-key" not in silent.detail
        assert_finding(examine(online=True, **environ)["judge"], "ok", "answers (200)")
        assert_finding(examine(online=True, **environ | {"OPENAI_API_KEY": "other"})["judge"], "fail", "key")
    assert_finding(examine(online=True, **environ)["judge"], "fail", "OPENAI_BASE_URL")


def test_each_role_shows_its_server_and_where_its_key_comes_from(examine: Examine) -> None:
    """Online, each server gets its own key alone; what is wrong names the variable of that role."""
    with serving(key="key-of-judge") as judge, serving(key="key-of-reader") as reader, serving() as policy:
        environ = {"SMOLSUM_JUDGE_URL": judge.url, "SMOLSUM_JUDGE_API_KEY": "key-of-judge"}
        environ |= {"SMOLSUM_READER_URL": reader.url, "SMOLSUM_POLICY_URL": policy.url, "OPENAI_API_KEY": "openais"}
        offline = examine(**environ)
        assert judge.connections + reader.connections + policy.connections == 0
        found = examine(online=True, **environ | {"SMOLSUM_GRADER_URL": judge.url, "OPENAI_API_KEY": ""})
        with_key = examine(online=True, **environ | {"OPENAI_API_KEY": "", "SMOLSUM_READER_API_KEY": "key-of-reader"})
    for role in ("judge", "second judge"):
        assert f"{judge.url}, key from SMOLSUM_JUDGE_API_KEY" in offline[role].detail
    assert "https://api.openai.com/v1, key from OPENAI_API_KEY" in offline["grader"].detail
    assert not any(key in one.detail for one in offline.values() for key in ("openais", "key-of-"))
    assert (found["judge"].level, found["second judge"].level, found["policy"].level) == ("ok", "ok", "ok")
    assert_finding(found["reader"], "fail", "export SMOLSUM_READER_API_KEY=…")
    assert_finding(found["grader"], "fail", "export SMOLSUM_GRADER_API_KEY=…")
    assert_finding(found["corruptor"], "ok", "SMOLSUM_CORRUPTOR_URL")
    assert with_key["reader"].level == "ok"
    assert judge.authorizations == {"Bearer key-of-judge", ""}
    assert reader.authorizations == {"Bearer key-of-reader", ""}
    assert policy.authorizations == {""}


@pytest.mark.parametrize(
    ("platform", "machine", "device", "level", "says"),
    [
        ("linux", "x86_64", "Device(cpu, 0)", "ok", "on Linux with such a CPU"),
        ("linux", "x86_64", "Device(gpu, 0)", "warn", "MLX on CUDA"),
        ("darwin", "arm64", "Device(gpu, 0)", "warn", "MLX on Metal"),
        ("linux", "aarch64", "Device(cpu, 0)", "warn", "a CPU (linux, aarch64)"),
    ],
)
def test_what_the_tests_were_not_run_on_is_said(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, platform: str, machine: str, device: str, level: str, says: str
) -> None:
    """On such a machine alone, with the command that runs them."""
    monkeypatch.setattr(machine_check.sys, "platform", platform)
    monkeypatch.setattr(machine_check.platform, "machine", lambda: machine)
    found = examine(mlx=probe(device=device))["tested"]
    assert_finding(found, level, says)
    assert ("uv run pytest" in found.command) == (level == "warn")


def test_failed_checks_exit_with_4(examine: Examine, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was set up and does not answer is a failure: exit code 4 and the command."""
    monkeypatch.setenv("SMOLSUM_WORKERS", "http://127.0.0.1:9")
    code, out, err = call("doctor")
    assert_refused((code, "", err), "1 of", "hint: smolsum serve-worker", error=MachineError)
    assert "fail  workers: http://127.0.0.1:9: no answer" in out


def test_a_model_that_cannot_be_trained_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that MLX-LM does not know, one that is sampled wrongly, and one that does not fit into memory."""
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    machine_check.try_model("mine", json.dumps({"path": str(tmp_path)}))
    monkeypatch.setattr(load, "_difference", lambda model: 5.3)
    monkeypatch.setattr(load, "_supported", set())
    machine_check.try_model("tiny", json.dumps({"path": "builtin:tiny"}))
    monkeypatch.setenv("SMOLSUM_MEMORY_GB", "0.001")
    machine_check.try_model("tiny", json.dumps({"path": "builtin:tiny"}))
    lines = capsys.readouterr().out.splitlines()
    unknown, wrong, large = (Finding("model", "x", **json.loads(line)) for line in lines)
    assert_finding(unknown, "fail", "'abacus'", "a model of a supported architecture")
    assert_finding(wrong, "fail", "5.3 nats")
    assert_finding(large, "fail", "0.00394 GB, more than 0.001 GB (SMOLSUM_MEMORY_GB)", "--set model.quantize=4")


def test_a_trial_that_crashes_is_a_finding(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model that is killed for its memory, or a library that ends the process."""
    real = machine_check.subprocess.run

    def killed(command: list[str], **options: object) -> object:
        kill = [command[0], "-c", "import os; os.kill(os.getpid(), 9)"]
        return real(kill if command[3:] else command, **options)

    monkeypatch.setattr(machine_check.subprocess, "run", killed)
    found = examine(model="builtin:tiny")["builtin:tiny"]
    assert_finding(found, "fail", "signal 9", "smolsum train --model builtin:tiny --dry-run")


def test_a_preset_is_tried_as_it_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    """With its bits and without thoughts; the command names it, and the user's own template."""
    own = model_settings("qwen3-4b", TASKS)
    assert own == {"path": "Qwen/Qwen3-4B", "adapter": "lora", "quantize": 4, "thinking": "off"}
    machine_check.try_model("tiny", json.dumps({"path": "builtin:tiny", "thinking": "off"}))
    said = json.loads(capsys.readouterr().out)
    assert "does not think" in said["detail"]
    assert machine_check._dry_run("m", {"chat_template": "a b"}) == (
        "smolsum train --model m --set model.chat_template='a b' --dry-run"
    )


def test_an_unknown_model_is_refused(call: Call) -> None:
    assert_refused(call("doctor", "--model", "nosuch"), "unknown model 'nosuch'")
