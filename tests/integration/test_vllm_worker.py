"""A worker in front of a real vLLM server, and what may happen to it.

$SMOLSUM_VLLM_PYTHON names the Python of an environment that has vLLM.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
from support.disks import mounted
from support.serving import face, process
from support.training import wait_until

from smolsum.config.sections import LoraConfig
from smolsum.policy.load import Policy, load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.weights import served_arrays, set_served
from smolsum.rollout.worker.engines import vllm
from smolsum.rollout.worker.engines.base import EngineError
from smolsum.rollout.worker.engines.vllm import VllmEngine, write_weights
from smolsum.weights import delta

PYTHON = os.environ.get("SMOLSUM_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="$SMOLSUM_VLLM_PYTHON names no Python that has vLLM"),
]
CLOSE = 1e-4
"""log-probs in float32 of vLLM's kernels against ours"""


@contextmanager
def engine(model: str, folder: Path | None = None, *, lora_rank: int = 0, python: str = PYTHON) -> Iterator[VllmEngine]:
    """An engine that has not started, in a folder with a short path, as sockets need it."""
    with TemporaryDirectory(dir="/tmp", prefix="w-") as short:
        yield VllmEngine(
            model, dtype="float32", max_model_len=512, python=python, folder=folder or Path(short), lora_rank=lora_rank
        )


class Pair:
    """A worker, and the policy that it should serve."""

    def __init__(self, client: httpx.Client, policy: Policy) -> None:
        self.client, self.policy, self.version = client, policy, 0

    def sync(self, seed: int) -> httpx.Response:
        """Change the policy and send the patch."""
        base = served_arrays(self.policy)
        rng = np.random.default_rng(seed)
        new = {name: a + 0.02 * rng.standard_normal(a.shape, np.float32) for name, a in base.items()}
        patch = delta.encode(base, new, base_version=self.version, version=self.version + 1)
        answer = self.client.put("/v1/weights", content=patch)
        if answer.is_success:
            set_served(self.policy, new)
            self.version += 1
            assert answer.json()["weights"] == delta.checksum(served_arrays(self.policy))
            assert self.client.get("/health").json()["weights"] == answer.json()["weights"]
        return answer

    def rollouts(self, count: int = 8, *, length: int = 5, tokens: int = 24) -> list[dict[str, Any]]:
        """Rollouts of two prompts, whose order is that of their ids."""
        requests = [{"id": str(n), "prompt_ids": [n % 2 + 5] * length, "seed": n} for n in range(count)]
        body = {"version": self.version, "temperature": 0.9, "max_new_tokens": tokens, "requests": requests}
        answer = self.client.post("/v1/rollouts", json=body)
        assert answer.is_success, answer.text
        *lines, last = [json.loads(line) for line in answer.text.splitlines()]
        assert last == {"done": count}
        assert all("token_ids" in line for line in lines), [line for line in lines if "token_ids" not in line]
        return sorted(lines, key=lambda line: int(line["id"]))

    def agrees(self, **what: int) -> bool:
        """Whether rollouts are the policy's: complete, of its version, with its log-probs; and so are scores."""
        length, worst, temperature = what.get("length", 5), 0.0, 0.9
        lines = self.rollouts(**what)
        for line in lines:
            prompt, ids = [int(line["id"]) % 2 + 5] * length, line["token_ids"]
            mine = group_logprobs(self.policy.model, prompt, [ids], temperature=temperature)[0][0].tolist()
            worst = max(worst, *(abs(a - b) for a, b in zip(mine, line["logprobs"], strict=True)))
            assert line["version"] == self.version
            assert (line["finish_reason"] == "stop") == (ids[-1] in self.policy.eos_ids)
            assert not self.policy.eos_ids & set(ids[:-1])
        body = {"sequences": [{"prompt_ids": [5, 6], "completion_ids": lines[0]["token_ids"]}]}
        (score,) = self.client.post("/v1/logprobs", json=body).json()["logprobs"]
        mine = group_logprobs(self.policy.model, [5, 6], [lines[0]["token_ids"]])[0][0].tolist()
        worst = max(worst, *(abs(a - b) for a, b in zip(mine, score, strict=True)))
        return worst < CLOSE

    def ready(self) -> None:
        """Wait until it can sample."""
        wait_until(lambda: self.client.get("/health").json()["state"] == "ready")


def answers_openais_clients(pair: Pair) -> bool:
    """Whether log-probs, echo, stop texts and top_p of OpenAI's interface are those of the policy, streamed too."""
    prompt = pair.policy.tokenizer.encode("a short text of several words")
    ask = {"prompt": prompt, "seed": 1, "max_tokens": 24, "temperature": 1}

    def choice(**changes: Any) -> Any:
        answer = pair.client.post("/v1/completions", json=ask | changes)
        assert answer.is_success, answer.text
        return answer.json()["choices"][0]

    scored = choice(echo=True, logprobs=2, max_tokens=1)["logprobs"]
    mine = group_logprobs(pair.policy.model, prompt[:1], [prompt[1:]])[0][0].tolist()
    assert scored["token_logprobs"][1 : len(prompt)] == pytest.approx(mine, abs=CLOSE)
    assert [len(best or ()) for best in scored["top_logprobs"][:3]] == [0, 2, 2]
    whole = choice(logprobs=2)
    best = [max(likeliest.values()) for likeliest in whole["logprobs"]["top_logprobs"]]
    assert all(a <= b + CLOSE for a, b in zip(whole["logprobs"]["token_logprobs"], best, strict=True))
    with pair.client.stream("POST", "/v1/completions", json=ask | {"stream": True, "logprobs": 2}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    streamed = [value for piece in pieces for value in piece["logprobs"]["token_logprobs"]]
    assert streamed == pytest.approx(whole["logprobs"]["token_logprobs"], abs=CLOSE)
    stop = whole["text"][6:9]
    assert choice(stop=[stop])["text"] == whole["text"][: whole["text"].index(stop)]
    assert choice(top_p=1e-6)["text"] == choice(temperature=0)["text"]
    half = choice(top_p=0.5, logprobs=20)["logprobs"]
    assert all(value > -1000 for value in half["token_logprobs"])
    return True


def computes_with(server: VllmEngine, policy: Policy, folder: Path) -> bool:
    """Whether vLLM multiplies with the policy's weights, every bit of every tensor; read back by unit vectors."""
    assert server.server is not None
    path = folder / "expected.safetensors"
    write_weights(served_arrays(policy), path)
    body = {"method": "smolsum_check", "args": [str(path)]}
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(server.server.socket)), base_url="http://vllm") as client:
        found = client.post("/collective_rpc", json=body, timeout=60).json()["results"][0]
    assert found["unseen"] == []
    return found["wrong"] == []


def test_worker(tmp_path: Path) -> None:
    """Agreement, syncs, faults and a full disk: one server, as starting one takes a minute."""
    with ExitStack() as stack:
        work = stack.enter_context(mounted(tmp_path / "disk", 200_000))
        server = stack.enter_context(engine("builtin:tiny", work))
        client = stack.enter_context(face(server))
        pair = Pair(client, load_policy("builtin:tiny", dtype="float32"))
        assert pair.agrees()
        assert computes_with(server, pair.policy, tmp_path)
        assert answers_openais_clients(pair)

        # prompts of more tokens than are read at a time
        assert pair.agrees(count=64, length=400, tokens=4)

        for seed in range(3):
            assert pair.sync(seed).is_success
            assert pair.agrees()
            assert computes_with(server, pair.policy, tmp_path)

        base = served_arrays(pair.policy)
        new = {name: a + 1 for name, a in base.items()}
        patch = delta.encode(base, new, base_version=3, version=4)
        damaged = bytearray(patch)
        damaged[len(damaged) // 2] ^= 4
        assert client.put("/v1/weights", content=bytes(damaged)).status_code == 422
        early = delta.encode(base, new, base_version=4, version=5)
        assert client.put("/v1/weights", content=early).status_code == 409

        with (work / "filler").open("wb") as filler:
            free = shutil.disk_usage(work).free
            filler.write(bytes(free - 100_000))
        answer = client.put("/v1/weights", content=patch)
        assert (answer.status_code, "disk is full" in answer.json()["error"]) == (507, True)
        assert pair.agrees()
        (work / "filler").unlink()
        assert computes_with(server, pair.policy, tmp_path)
        assert pair.sync(9).is_success
        assert pair.agrees()
        assert list((work / "smolsum-weights").iterdir()) == []

        body = {"messages": [{"role": "user", "content": "my dog"}], "max_tokens": 12, "stream": True, "seed": 1}
        events = client.post("/v1/chat/completions", json=body).text.split("\n\n")
        assert len(events) > 3
        assert events[-2] == "data: [DONE]"

        assert all(tcp_is_deaf(port) for port in ports(server))
        for victim in ("EngineCore", "api_server", "watchdog"):
            os.kill(processes(server)[victim], signal.SIGKILL)
            wait_until(lambda: client.get("/health").json()["state"] == "restarting")
            answer = client.post("/v1/rollouts", json={"version": None, "temperature": 1, "max_new_tokens": 2,
                                 "requests": [{"id": "a", "prompt_ids": [5], "seed": 1}]})  # fmt: skip
            assert answer.status_code == 503
            health = client.get("/health").json()
            assert "vLLM died" in health["last_error"]
            pair.ready()
            assert client.get("/health").json()["version"] == pair.version
            assert pair.agrees()
            assert computes_with(server, pair.policy, tmp_path)
        assert "smolsum_worker_engine_restarts_total 3" in client.get("/metrics").text


def test_hangs_and_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hangs, alone or while weights are loaded, is ended and comes back with what it served; one that
    does not come back ends the worker."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    with engine("builtin:tiny", python=str(python)) as server, face(server) as client:
        pair = Pair(client, load_policy("builtin:tiny", dtype="float32"))
        assert pair.sync(1).is_success
        monkeypatch.setattr(vllm, "TIMEOUT_S", 2.0)
        os.kill(processes(server)["EngineCore"], signal.SIGSTOP)
        answer = pair.sync(2)
        assert (answer.status_code, answer.json()["error"]) == (503, "vLLM does not answer")
        monkeypatch.undo()
        wait_until(lambda: client.get("/health").json()["state"] == "restarting")
        pair.ready()
        assert pair.agrees()
        assert computes_with(server, pair.policy, tmp_path)

        monkeypatch.setattr(vllm, "HANG_S", 2.0)
        monkeypatch.setattr(vllm, "BEAT_S", 0.5)
        monkeypatch.setattr(vllm, "PAUSES_S", (0.1, 0.1))
        python.write_text("#!/bin/sh\necho out of order; exit 1\n")
        before = processes(server)
        os.kill(before["EngineCore"], signal.SIGSTOP)
        wait_until(lambda: client.get("/health").json()["state"] == "failed")
        assert "out of order" in client.get("/health").json()["last_error"]
        wait_until(lambda: not alive(before["watchdog"]))
        with pytest.raises(EngineError, match="does not come back"):
            asyncio.run_coroutine_threadsafe(server.failed(), loop_of(server)).result(10)


def loop_of(server: VllmEngine) -> asyncio.AbstractEventLoop:
    """The loop that the engine runs in."""
    assert server._watch is not None
    return server._watch.get_loop()


def processes(server: VllmEngine) -> dict[str, int]:
    """vLLM's processes."""
    assert server.server is not None
    table = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()[1:]]
    (watchdog,) = [
        int(pid) for pid, _, args in rows if str(server.server.socket) in args and "die_with_owner.py" in args
    ]
    (api,) = [int(pid) for pid, parent, _ in rows if int(parent) == watchdog]
    (core,) = [int(pid) for pid, parent, args in rows if int(parent) == api and "EngineCore" in args]
    return {"watchdog": watchdog, "api_server": api, "EngineCore": core}


def ports(server: VllmEngine) -> set[int]:
    """The TCP ports on which vLLM's processes listen."""
    found = set()
    for pid in processes(server).values():
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, address, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in links:
                    found.add(int(address.rpartition(":")[2], 16))
    return found


def tcp_is_deaf(port: int) -> bool:
    """Whether no HTTP is spoken at a port of this machine."""
    try:
        httpx.post(f"http://127.0.0.1:{port}/collective_rpc", json={"method": "smolsum_beat"}, timeout=2)
    except httpx.HTTPError:
        return True
    return False


def test_adapters(tmp_path: Path) -> None:
    """Adapters alone are sent, to a server that was started for them."""
    lora = LoraConfig(rank=4, keys="self_attn.q_proj,self_attn.v_proj,mlp.down_proj")
    policy = load_policy("builtin:tiny", dtype="float32", lora=lora, seed=3)
    rng = np.random.default_rng(0)
    described = {"rank": lora.rank, "scale": lora.scale, "layers": lora.layers, "keys": lora.keys}
    with engine("builtin:tiny", lora_rank=4) as server, face(server) as client:
        pair = Pair(client, policy)
        for version in (1, 2):
            base = served_arrays(policy)
            new = {name: a + 0.02 * rng.standard_normal(a.shape, np.float32) for name, a in base.items()}
            if version == 1:
                body = delta.anchor(new, version=1, metadata={"lora": described})
            else:
                body = delta.encode(base, new, base_version=1, version=2)
            assert client.put("/v1/weights", content=body).json()["weights"] == delta.checksum(new)
            set_served(policy, new)
            pair.version = version
            assert pair.agrees()
        whole = delta.anchor(served_arrays(load_policy("builtin:tiny", dtype="float32")), version=3)
        assert client.put("/v1/weights", content=whole).status_code == 422
        assert pair.agrees()


def test_other_architecture_and_sudden_end(tmp_path: Path) -> None:
    """LFM2, whose head vLLM always ties; the command line, with paths seen from here; and when the
    worker is killed, so is the server."""
    model = os.path.relpath(shutil.copytree(load_policy("builtin:tiny-lfm", shapes_only=True).path, tmp_path / "m"))
    with TemporaryDirectory(dir="/tmp") as work:
        (Path(work) / "smolsum-weights" / "old").mkdir(parents=True)
        (Path(work) / "weights-1").mkdir()
        arguments = ["--model", model, "--engine", "vllm", "--vllm-python", os.path.relpath(PYTHON)]
        arguments += ["--work-dir", os.path.relpath(work)]
        with process(*arguments, log=tmp_path / "log") as (worker, client):
            pair = Pair(client, load_policy("builtin:tiny-lfm", dtype="float32"))
            assert pair.agrees()
            assert pair.sync(1).is_success
            assert pair.agrees()
            assert (Path(work) / "tmp").stat().st_mode & 0o777 == 0o700
            assert not (Path(work) / "smolsum-weights" / "old").exists()
            assert (Path(work) / "weights-1").exists()
            ours = str(worker.pid)
            table = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
            children = [pid for pid, parent in (line.split() for line in table.splitlines()[1:]) if parent == ours]
            sessions = {os.getsid(int(pid)) for pid in children} - {os.getsid(worker.pid)}
            assert sessions
            worker.kill()
            wait_until(lambda: not any(alive(session) for session in sessions))
    assert "vllm: " in (tmp_path / "log").read_text()


def alive(session: int) -> bool:
    """Whether any process of a session still runs."""
    return subprocess.run(["ps", "-s", str(session), "-o", "pid="], capture_output=True, text=True).stdout.strip() != ""
