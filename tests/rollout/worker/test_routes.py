"""The HTTP API of a worker, over real HTTP, with the engine `mlx`."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.models import NEEDS_C, VOCABULARY, WIDE, write
from support.serving import engine_of, face, refused
from support.training import PATIENCE_S, wait_until

from smolsum.config.sections import LoraConfig
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.sampling import generate
from smolsum.policy.weights import served_arrays, set_served
from smolsum.weights import delta

PROMPT = [5, 9, 33, 12]


@pytest.fixture(scope="module", params=[{}, pytest.param(WIDE, marks=NEEDS_C)], ids=["MLX", "C"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that MLX samples from, and one that the library in C does."""
    return write(tmp_path_factory.mktemp("models") / "m", "qwen2", **request.param)


@pytest.fixture
def worker(folder: Path) -> Iterator[httpx.Client]:
    with face(engine_of(folder)) as client:
        yield client


def ask(
    client: httpx.Client, seeds: dict[str, int], *, version: int | None = None, prompt: Any = None, tokens: int = 12
) -> tuple[httpx.Response, list[Any]]:
    """Rollouts of one prompt by id, and the lines of the answer."""
    requests = [{"id": id_, "prompt_ids": prompt or PROMPT, "seed": seed} for id_, seed in seeds.items()]
    body = {"version": version, "temperature": 0.9, "max_new_tokens": tokens, "requests": requests}
    answer = client.post("/v1/rollouts", json=body)
    return answer, [json.loads(line) for line in answer.text.splitlines()] if answer.is_success else []


def shifted(arrays: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: a + 0.05 * rng.standard_normal(a.shape, np.float32) for name, a in arrays.items()}


def put(client: httpx.Client, body: bytes) -> httpx.Response:
    return client.put("/v1/weights", content=body)


def test_rollouts_are_the_policys(worker: httpx.Client, folder: Path) -> None:
    """What a worker samples is what `generate` samples in this process; all ids come back once, then their count."""
    policy = load_policy(str(folder), dtype="float32")
    answer, (*lines, last) = ask(worker, {"a": 3, "b": 4, "c": 5}, version=0)
    assert answer.headers["content-type"] == "application/x-ndjson"
    (here,) = generate(policy.model, [PROMPT], [[3, 4, 5]], eos_ids=policy.eos_ids, temperature=0.9, max_new_tokens=12)
    got = {line["id"]: line for line in lines}
    assert sorted(got) == ["a", "b", "c"]
    assert last == {"done": 3}
    for id_, expected in zip("abc", here, strict=True):
        assert tuple(got[id_]["token_ids"]) == expected.token_ids
        assert got[id_]["logprobs"] == pytest.approx(expected.logprobs, abs=1e-4)
        assert (got[id_]["finish_reason"], got[id_]["version"]) == (expected.finish_reason, 0)


def test_requests_of_two_bodies_share_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short rollout arrives while a long one is being sampled, and is answered first."""
    engine, begun, order = engine_of(folder), threading.Event(), list[str]()
    together: list[int] = []

    def step() -> None:
        begun.set()
        if not together:  # the long one is held until the other has come
            wait_until(lambda: worker.get("/health").json()["queue"] == 2)
        elif together[-1] == 2 and len(engine._batch.rows) == 1:  # and again until the other has its answer
            wait_until(lambda: order == ["short"])
        together.append(len(engine._batch.rows))
        own()

    def one(name: str, tokens: int) -> None:
        ask(worker, {name: 1}, tokens=tokens, prompt=[7, 8])
        order.append(name)

    with face(engine) as worker, ThreadPoolExecutor() as pool:
        own = engine._batch.step
        monkeypatch.setattr(engine._batch, "step", step)
        long = pool.submit(one, "long", 200)
        assert begun.wait(PATIENCE_S)
        one("short", 1)
        long.result()
    assert order == ["short", "long"]
    assert max(together) == 2


def test_logprobs_are_the_policys(worker: httpx.Client, folder: Path) -> None:
    policy = load_policy(str(folder), dtype="float32")
    body = {"sequences": [{"prompt_ids": PROMPT, "completion_ids": [4, 8, 2]}], "temperature": 0.7}
    found = worker.post("/v1/logprobs", json=body).json()
    expected = group_logprobs(policy.model, PROMPT, [[4, 8, 2]], temperature=0.7)[0][0].tolist()
    assert found["version"] == 0
    assert found["logprobs"][0] == pytest.approx(expected, abs=1e-4)


def test_health_describes_the_worker(worker: httpx.Client, folder: Path) -> None:
    found = worker.get("/health").json()
    policy = load_policy(str(folder), dtype="float32")
    assert found["weights"] == delta.checksum(served_arrays(policy))
    facts = {"state": "ready", "engine": "mlx", "architecture": "qwen2", "vocab_size": VOCABULARY, "dtype": "float32"}
    facts |= {"version": 0, "run": None, "max_model_len": 256, "max_new_tokens": 255, "queue": 0, "last_error": None}
    assert {key: found[key] for key in facts} == facts
    assert found["sampling"]["top_p"] == 1


def test_weights_are_served_bit_for_bit(worker: httpx.Client, folder: Path) -> None:
    base = served_arrays(load_policy(str(folder), dtype="float32"))
    one, two, other = shifted(base, 1), shifted(base, 2), shifted(base, 3)
    first = delta.encode(base, one, base_version=0, version=1)
    found = put(worker, first).json()
    assert (found["version"], found["weights"]) == (1, delta.checksum(one))
    assert found["seconds"] > 0
    served = worker.get("/health").json()["weights"]
    assert served == delta.checksum(one)

    assert refused(put(worker, first), 409, "version 0")  # replayed
    assert refused(put(worker, delta.encode(two, other, base_version=2, version=3)), 409, "version 2")  # out of order
    assert refused(put(worker, delta.encode(two, other, base_version=1, version=2)), 409, "other weights")
    second = bytearray(delta.encode(one, two, base_version=1, version=2))
    second[len(second) // 2] ^= 1
    assert refused(put(worker, bytes(second)), 422, "damaged")
    assert refused(put(worker, b"no patch at all, but long enough for one"), 422, "not a patch")
    foreign = delta.anchor({"w": np.zeros(3, np.float32)}, version=9)
    assert refused(put(worker, foreign), 422, "not in")
    assert refused(put(worker, delta.anchor(two, version=0)), 409, "version 0")
    found = worker.get("/health").json()
    assert (found["version"], found["weights"]) == (1, served)

    answer = put(worker, delta.anchor(two, version=5))
    assert (answer.status_code, answer.json()["version"]) == (200, 5)
    assert put(worker, delta.anchor(other, version=0, metadata={"run": "another"})).json()["version"] == 0
    found = worker.get("/health").json()
    assert (found["run"], found["version"], found["weights"]) == ("another", 0, delta.checksum(other))


def test_rollouts_name_their_version(worker: httpx.Client, folder: Path) -> None:
    policy = load_policy(str(folder), dtype="float32")
    new = shifted(served_arrays(policy))
    assert refused(ask(worker, {"a": 1}, version=1)[0], 409, "version 1 is wanted, 0 is served")
    put(worker, delta.encode(served_arrays(policy), new, base_version=0, version=1))
    _, (line, _) = ask(worker, {"a": 1}, version=1)
    set_served(policy, new)
    (here,) = generate(policy.model, [PROMPT], [[1]], eos_ids=policy.eos_ids, temperature=0.9, max_new_tokens=12)
    assert (tuple(line["token_ids"]), line["version"]) == (here[0].token_ids, 1)
    assert refused(ask(worker, {"a": 1}, version=0)[0], 409, "version 0 is wanted, 1 is served")


def test_weights_of_another_run_are_refused(worker: httpx.Client, folder: Path) -> None:
    """Two runs have versions of the same number; who names the weights is not given the other's."""
    mine = served_arrays(load_policy(str(folder), dtype="float32"))
    other = shifted(mine)
    put(worker, delta.anchor(mine, version=1, metadata={"run": "mine"}))
    named = {"version": 1, "weights": delta.checksum(mine)}
    body = {"requests": [{"id": "a", "prompt_ids": PROMPT, "seed": 1}], "temperature": 1, "max_new_tokens": 4, **named}
    scored = {"sequences": [{"prompt_ids": PROMPT, "completion_ids": [5]}], **named}
    assert worker.post("/v1/rollouts", json=body).status_code == 200
    assert worker.post("/v1/logprobs", json=scored).status_code == 200
    put(worker, delta.anchor(other, version=1, metadata={"run": "other"}))
    for path, asked in (("/v1/rollouts", body), ("/v1/logprobs", scored)):
        assert refused(worker.post(path, json=asked), 409, "that of another run (other)")


def test_weights_arrive_during_sampling(worker: httpx.Client, folder: Path) -> None:
    base = served_arrays(load_policy(str(folder), dtype="float32"))
    with ThreadPoolExecutor() as pool:
        many = pool.submit(ask, worker, {str(n): n for n in range(150)}, tokens=60)
        versions = []
        for n in range(1, 4):
            new = shifted(base, n)
            versions.append(put(worker, delta.encode(base, new, base_version=n - 1, version=n)).json()["version"])
            base = new
        (*lines, last) = many.result()[1]
    assert versions == [1, 2, 3]
    assert last == {"done": 150}
    assert len({line["id"] for line in lines}) == 150
    assert all("error" not in line for line in lines)


def test_adapters_replace_the_model_and_back(folder: Path) -> None:
    """Only adapters are sent; a worker goes from the whole model to adapters, to others, and back."""
    lora = LoraConfig(rank=2)
    trained = load_policy(str(folder), dtype="float32", lora=lora)
    found = {"rank": 2, "scale": lora.scale, "layers": lora.layers, "keys": lora.keys}
    one, two = (shifted(served_arrays(trained), seed) for seed in (1, 2))
    with face(engine_of(folder)) as worker:
        whole = shifted(served_arrays(load_policy(str(folder), dtype="float32")))
        assert put(worker, delta.anchor(whole, version=1)).is_success
        first = put(worker, delta.anchor(one, version=2, metadata={"lora": found})).json()
        assert first["weights"] == delta.checksum(one)
        assert put(worker, delta.encode(one, two, base_version=2, version=3)).json()["weights"] == delta.checksum(two)
        set_served(trained, two)
        body = {"sequences": [{"prompt_ids": PROMPT, "completion_ids": [4, 8, 2]}]}
        expected = group_logprobs(trained.model, PROMPT, [[4, 8, 2]])[0][0].tolist()
        assert worker.post("/v1/logprobs", json=body).json()["logprobs"][0] == pytest.approx(expected, abs=1e-4)
        for wrong, about in (({"rank": 2}, "adapters"), (found | {"rank": 999}, "rank")):
            assert refused(put(worker, delta.anchor(one, version=4, metadata={"lora": wrong})), 422, about)
        assert put(worker, delta.anchor(whole, version=4)).json()["weights"] == delta.checksum(whole)


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b"[]", "Expected `object`"),
        ({"requests": []}, "requests"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 255}, "255 new tokens"),
        ({"version": "new"}, "version"),
        ({"requests": [{"prompt_ids": PROMPT, "seed": 1}]}, "id"),
        ({"requests": [{"id": "a", "prompt_ids": [], "seed": 1}]}, "requests[0].prompt_ids"),
        ({"requests": [{"id": "a", "prompt_ids": [VOCABULARY], "seed": 1}]}, "token ids"),
        ({"requests": [{"id": "a", "prompt_ids": PROMPT, "seed": -1}]}, "seed"),
        ({"requests": [{"id": "a", "prompt_ids": PROMPT, "seed": 1}] * 2}, "same id"),
        ({"requests": [{"id": str(n), "prompt_ids": [5], "seed": n} for n in range(5000)]}, "4096"),
    ],
)
def test_bad_fields_are_named(worker: httpx.Client, body: Any, about: str) -> None:
    good = {"version": None, "temperature": 1, "max_new_tokens": 3}
    good["requests"] = [{"id": "a", "prompt_ids": PROMPT, "seed": 1}]
    content = body if isinstance(body, bytes) else json.dumps(good | body).encode()
    assert refused(worker.post("/v1/rollouts", content=content), 422, about)


def test_long_bodies_are_refused(worker: httpx.Client) -> None:
    long = b"x" * (33 << 20)
    assert refused(worker.post("/v1/rollouts", content=long), 413, "bytes")
    assert refused(worker.put("/v1/weights", content=iter([long])), 413, "bytes")
    assert refused(worker.get("/v1/nothing"), 404, "not found")
    assert refused(worker.delete("/health"), 405, "not allowed")


def test_wrong_token_is_refused(folder: Path) -> None:
    with face(engine_of(folder), token="secret") as worker:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            for path in ("/health", "/metrics", "/v1/models"):
                assert refused(worker.get(path, headers=headers), 401, "token")
            assert worker.put("/v1/weights", content=b"", headers=headers).status_code == 401
        assert worker.get("/health", headers={"authorization": "Bearer secret"}).is_success


def test_metrics_count_rollouts(worker: httpx.Client) -> None:
    _, (*lines, _) = ask(worker, {"a": 1, "b": 2})
    text = worker.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values["smolsum_worker_rollouts_total"] == "2"
    assert values["smolsum_worker_tokens_total"] == str(sum(len(line["token_ids"]) for line in lines))
    assert values["smolsum_worker_policy_version"] == "0"
    assert "# TYPE smolsum_worker_rollouts_total counter" in text
