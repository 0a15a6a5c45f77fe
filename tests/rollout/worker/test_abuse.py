"""Wrong, hostile and abandoned requests over real HTTP: each gets one clear error, and the worker lives."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash
import zstandard
from support.serving import engine_of, face, refused
from support.training import PATIENCE_S, wait_until

from smolsum.config.sections import LoraConfig
from smolsum.policy.load import load_policy
from smolsum.policy.sampling import DecodeBatch
from smolsum.policy.weights import served_arrays
from smolsum.rollout.worker.engines import mlx
from smolsum.rollout.worker.engines.mlx import MlxEngine
from smolsum.weights import delta


def sealed(header: Any) -> bytes:
    """A patch without tensors with this header, or these bytes as header, and a correct checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    packed = zstandard.ZstdCompressor().compress(text)
    body = struct.pack("<8sII", delta.MAGIC, delta.FORMAT, len(packed)) + packed
    return body + xxhash.xxh3_128_digest(body)


ENTRY = {"name": "w", "dtype": "float32", "itemsize": 4, "shape": [0], "mode": "whole", "sizes": [], "lengths": [],
         "checksum": ""}  # fmt: skip
HEADER = {"kind": "anchor", "base_version": None, "version": 1, "changed": 0, "entries": [], "metadata": {}}


@pytest.mark.parametrize(
    "header",
    [
        HEADER | {"metadata": []}, HEADER | {"metadata": None}, HEADER | {"version": True}, HEADER | {"changed": "1"},
        HEADER | {"base_version": 1}, HEADER | {"kind": "patch"}, HEADER | {"kind": ["anchor"]}, HEADER | {"more": 1},
        HEADER | {"metadata": {"run": float("nan")}},
        HEADER | {"entries": [ENTRY | {"name": 5}]}, HEADER | {"entries": [ENTRY, ENTRY]},
        HEADER | {"entries": [ENTRY | {"itemsize": True}]}, HEADER | {"entries": [ENTRY | {"mode": "other"}]},
        HEADER | {"entries": [ENTRY | {"shape": [1] * 99}]}, HEADER | {"entries": [ENTRY | {"shape": 5}]},
        HEADER | {"entries": [ENTRY | {"sizes": [0] * 9, "lengths": [0] * 9}]}, HEADER | {"entries": 7},
        [], None, b"[" * 100_000, b'"\\ud800', b"\xff",
    ],
)  # fmt: skip
def test_nonsense_in_a_patch_header_is_refused(worker: httpx.Client, header: Any) -> None:
    assert refused(worker.put("/v1/weights", content=sealed(header)), 422, "header")
    assert worker.get("/health").is_success


@pytest.mark.parametrize("kind", ["9999999999f4", "i4,", "O", "U4", "V4", "no type at all"])
def test_unknown_types_in_a_patch_are_read_as_bits(kind: str) -> None:
    body = delta.anchor({"w": np.arange(3, dtype=np.float32)}, version=1)
    (length,) = struct.unpack_from("<12xI", body)
    header = json.loads(zstandard.ZstdDecompressor().decompress(body[16 : 16 + length]))
    header["entries"][0]["dtype"] = kind
    packed = zstandard.ZstdCompressor().compress(json.dumps(header).encode())
    changed = body[:12] + struct.pack("<I", len(packed)) + packed + body[16 + length : -16]
    got = delta.apply(None, changed + xxhash.xxh3_128_digest(changed))["w"]
    assert got.dtype == np.uint32
    assert got.tobytes() == np.arange(3, dtype=np.float32).tobytes()


def test_metadata_of_wrong_types_is_refused(worker: httpx.Client, folder: Path) -> None:
    """The run and the adapters; the served version stays."""
    lora = LoraConfig(rank=2)
    arrays = served_arrays(load_policy(str(folder), dtype="float32", lora=lora))
    right = {"rank": 2, "scale": lora.scale, "layers": 0, "keys": ""}
    for run in (5, [], {}):
        body = delta.anchor(arrays, version=1, metadata={"run": run, "lora": right})
        assert refused(worker.put("/v1/weights", content=body), 422, "run")
    for wrong in ({"rank": "2"}, {"rank": 10**9}, {"scale": None}, {"layers": 1.5}, {"keys": ["q"]}):
        body = delta.anchor(arrays, version=1, metadata={"lora": right | wrong})
        assert refused(worker.put("/v1/weights", content=body), 422, "adapters")
    assert worker.get("/health").json()["version"] == 0


def ask(worker: httpx.Client, **changes: Any) -> httpx.Response:
    body = {"version": None, "temperature": 1, "max_new_tokens": 3}
    body["requests"] = [{"id": "a", "prompt_ids": [5, 6], "seed": 1}]
    return worker.post("/v1/rollouts", content=json.dumps(body | changes))


@pytest.mark.parametrize("path", ["/v1/rollouts", "/v1/logprobs", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"a":' * 10_000, b'{"temperature": NaN}', b"\xff\xfe", b""])
def test_bodies_that_are_not_json_are_refused(worker: httpx.Client, path: str, body: bytes) -> None:
    assert refused(worker.post(path, content=body), 422, "not JSON")


@pytest.mark.parametrize("temperature", [1e-300, 9e-4, -1, 1e999, True, "1", None])
def test_unusable_temperatures_are_refused(worker: httpx.Client, temperature: Any) -> None:
    """0 and 0.001 are usable."""
    about = "not JSON" if temperature == 1e999 else "temperature"
    assert refused(ask(worker, temperature=temperature), 422, about)
    assert ask(worker, temperature=0).is_success
    *lines, _ = ask(worker, temperature=1e-3).text.splitlines()
    assert "error" not in lines[0]


def test_texts_are_checked_before_they_are_tokenised(
    worker: httpx.Client, engine: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a surrogate pair, and more text than the model can read."""
    tokenizer, sizes = engine.policy.tokenizer._tokenizer, list[int]()
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: sizes.append(len(text)) or encode(text))
    for path, body in (
        ("/v1/completions", {"prompt": "a\ud800"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\udfff"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "\udfff", "content": "a"}]}),
    ):
        assert refused(worker.post(path, content=json.dumps(body)), 422, "surrogate")
        assert refused(ask(worker, version="\ud800"), 422, "surrogate")
    most = 64 * 256
    assert refused(worker.post("/v1/completions", json={"prompt": "a" * (most + 1)}), 422, "bytes")
    assert refused(worker.post("/v1/completions", json={"prompt": "a" * most}), 422, "tokens")
    assert refused(worker.post("/v1/completions", json={"prompt": "a " * (14 << 20)}), 413, "bytes")
    assert sizes == [most]
    many = [{"role": "user", "content": ""}] * 257
    assert refused(worker.post("/v1/chat/completions", json={"messages": many}), 422, "messages")


def test_diverged_weights_give_errors(folder: Path) -> None:
    with face(engine_of(folder)) as worker:
        new = served_arrays(load_policy(str(folder), dtype="float32"))
        new = {name: np.full_like(array, np.nan) for name, array in new.items()}
        assert worker.put("/v1/weights", content=delta.anchor(new, version=1)).is_success
        line, last = ask(worker).text.splitlines()
        assert "not finite" in json.loads(line)["error"]
        assert json.loads(last) == {"done": 1}
        scored = worker.post("/v1/logprobs", json={"sequences": [{"prompt_ids": [5], "completion_ids": [6]}]})
        assert refused(scored, 503, "not finite")
        assert refused(worker.post("/v1/completions", json={"prompt": "a"}), 503, "not finite")


def test_foreign_web_pages_are_refused(worker: httpx.Client, folder: Path) -> None:
    """Without a token only loopback names and the worker's own origin are answered; with one the token decides."""
    port = worker.base_url.port
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "0.0.0.0", "10.0.0.1", "", "[::1"):
        assert refused(worker.get("/health", headers={"host": host}), 403, "name")
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST", "127.3.2.1", "w.localhost"):
        assert worker.get("/health", headers={"host": host}).is_success
    for origin in ("http://evil.example", "null", "http://localhost:1", f"https://127.0.0.1:{port}"):
        answer = worker.post("/v1/completions", json={"prompt": "a"}, headers={"origin": origin})
        assert refused(answer, 403, "web pages")
    own = {"origin": str(worker.base_url).rstrip("/")}
    assert worker.post("/v1/completions", json={"prompt": "a"}, headers=own).is_success
    with face(engine_of(folder), token="secret") as other:
        headers = {"host": "gpu.example", "authorization": "Bearer secret"}
        assert other.get("/health", headers=headers).is_success


MANY = [{"id": str(n), "prompt_ids": [5], "seed": n} for n in range(200)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a b", "max_tokens": 240, "n": 64}),
        ("/v1/logprobs", {"sequences": [{"prompt_ids": [5] * 100, "completion_ids": [6] * 150}] * 4000}),
        ("/v1/rollouts", {"version": None, "temperature": 1, "max_new_tokens": 250, "requests": MANY}),
    ],
)
def test_work_ends_when_the_client_hangs_up(
    worker: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """Nothing is computed for a client that is gone: its request ends while the engine is still at the first token or
    text."""
    release = threading.Event()
    done: list[None] = []

    def holding(work: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any, **named: Any) -> Any:
            release.wait(PATIENCE_S)
            done.append(None)
            return work(*given, **named)

        return held

    monkeypatch.setattr(DecodeBatch, "step", holding(DecodeBatch.step))
    monkeypatch.setattr(mlx, "group_logprobs", holding(mlx.group_logprobs))
    content = json.dumps(body).encode()
    with socket.create_connection((worker.base_url.host, worker.base_url.port or 0)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        client.sendall(head.encode() + content)
        wait_until(lambda: worker.get("/health").json()["queue"] > 0)
    wait_until(lambda: worker.get("/health").json()["queue"] == 0)
    release.set()
    assert ask(worker).is_success
    assert len(done) < 40
