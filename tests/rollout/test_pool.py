"""Workers that fail, return and catch up: no rollout is lost, and none is paired with the wrong prompt or policy."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support.refusals import refuses
from support.scripted_worker import EOS, FACTS, FAULTS, ScriptedWorker, completion
from support.training import PATIENCE_S, wait_until

from smolsum.errors import UnreachableError
from smolsum.rollout import pool as pool_module
from smolsum.rollout.pool import Pool, RolloutBatch, share
from smolsum.rollout.protocol import NEUTRAL_SAMPLING, Health, SampleRequest, SamplingTerms
from smolsum.rollout.worker_client import (
    ExpectedModel,
    PoolWorker,
    WorkerClient,
    WorkerError,
    check,
    check_probe,
    reserved_here,
)
from smolsum.weights.delta import checksum
from smolsum.weights.publish import Publisher, WeightsVersion

TERMS = SamplingTerms(1.0, 8)
PROBE = [([1, 2], [3, 4])]
Make = Callable[..., ScriptedWorker]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a failed worker is tried again."""
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.02)


def version(number: int) -> WeightsVersion:
    """Weights whose first value is the scripted worker's log-prob."""
    weights = np.full(1000, -1.0, np.float32)
    weights[:3] -= number / 64
    return WeightsVersion(number, {"w": weights}, PROBE, [[float(weights[0])] * 2])


def wanted(count: int, mark: str = "a") -> list[SampleRequest]:
    return [SampleRequest(f"{mark}{n}", (n + 7, n), 1000 + n) for n in range(count)]


def checked(batch: RolloutBatch, asked: Sequence[SampleRequest]) -> dict[str, str]:
    """The worker of each rollout, once all are there and each is its prompt's."""
    found = batch.result.result(timeout=PATIENCE_S)
    assert found.keys() == {w.id for w in asked}
    for each in asked:
        assert list(found[each.id][0].token_ids) == completion(each.prompt_ids, each.seed, TERMS.max_new_tokens)
    return {name: worker for name, (_, worker) in found.items()}


@contextmanager
def pool_of(
    *workers: ScriptedWorker, timeout_s: float = PATIENCE_S, retries: int = 4, anchor_every: int = 50
) -> Iterator[Pool]:
    expected = ExpectedModel(FACTS, 100, frozenset([EOS]))

    def make_workers() -> list[PoolWorker]:
        return [PoolWorker(WorkerClient(w.url, None, expected, timeout_s=timeout_s)) for w in workers]

    pool = Pool(make_workers, Publisher(anchor_every=anchor_every, metadata={"run": "test"}), retries=retries)
    pool.open()
    with closing(pool):
        yield pool


@pytest.fixture
def workers() -> Iterator[Make]:
    made: list[ScriptedWorker] = []
    with ExitStack() as stack:

        def make(**settings: float) -> ScriptedWorker:
            worker = ScriptedWorker(**settings)  # type: ignore[arg-type]
            stack.callback(worker.close)
            made.append(worker)
            return worker

        yield make
        for worker in made:  # each takes a while, so all at once
            worker.begin_to_close()


@contextmanager
def ready(*workers: ScriptedWorker, first: int = 0, **settings: float) -> Iterator[Pool]:
    """A pool whose workers all serve its first version."""
    with pool_of(*workers, **settings) as pool:  # type: ignore[arg-type]
        pool.publish(version(first)).result(timeout=PATIENCE_S)
        wait_until(all_up(pool))
        yield pool


def sampled_by(pool: Pool, count: int, mark: str = "a", *, least_version: int = 0) -> set[str]:
    """The workers that sampled so many rollouts, once all are there and each is its prompt's."""
    asked = wanted(count, mark)
    return set(checked(pool.submit(asked, TERMS, least_version=least_version), asked).values())


def all_up(pool: Pool) -> Callable[[], bool]:
    return lambda: all(w.state == "up" for w in pool.workers)


def kinds(pool: Pool) -> list[str]:
    found = []
    while not pool.events.empty():
        found.append(pool.events.get().kind)
    return found


def takes_part(pool: Pool, worker: int, *, least_version: int = 0) -> Callable[[], bool]:
    """Whether this worker samples some of the next rollouts."""
    marks = count()

    return lambda: (
        pool.workers[worker].name in sampled_by(pool, 6, f"again {next(marks)}-", least_version=least_version)
    )


def test_shares_follow_speed() -> None:
    """Equal ones at first, then in proportion to speed, counting what is under way; one rollout after a failure."""
    slow, fast = (PoolWorker(Mock(url=f"http://{name}")) for name in ("slow", "fast"))
    slow.state = fast.state = "up"
    assert share(slow, [slow, fast], 20) == 10
    slow.tok_s, fast.tok_s, slow.under_way = 10.0, 30.0, 4
    assert share(fast, [slow, fast], 36) == 30
    assert share(fast, [slow, fast], 20) == 18
    assert share(slow, [slow, fast], 36) == 10
    fast.failures = 1
    assert share(fast, [slow, fast], 36) == 1


def test_speed_is_measured(workers: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tokens a second; the last request has the weight of all before."""
    worker, each_s = workers(), [0.5]
    clock = SimpleNamespace(monotonic=lambda: worker.sampled * each_s[0])
    with ready(worker) as pool:
        monkeypatch.setattr(pool_module, "time", clock)
        for mark, each_s[0], speed in (("a", 0.5, 6.0), ("b", 0.25, 9.0)):
            sampled_by(pool, 4, mark)
            wait_until(lambda speed=speed: pool.workers[0].tok_s == pytest.approx(speed))  # type: ignore[misc]


@pytest.mark.parametrize("fault", FAULTS)
def test_work_of_a_failing_worker_goes_to_the_other(fault: str, workers: Make) -> None:
    """Whatever it answers; its earlier rollouts count, and its error has a hint."""
    bad, good = workers(), workers()
    with ready(bad, good, timeout_s=0.5 if fault in ("hangs", "trickles") else PATIENCE_S, retries=1000) as pool:
        bad.fault = fault
        sampled_by(pool, 12)
        assert bad.asked > 0
        while (down := next_event(pool, "worker_down")).worker != pool.workers[0].name:
            pass
        assert down.hint
        bad.fault = None
        wait_until(takes_part(pool, 0))


def test_worker_that_dies_is_replaced_and_taken_back(workers: Make) -> None:
    """Another worker does its work; when it returns without weights, it gets all of them."""
    doomed, other = workers(), workers()
    doomed.most = 2
    with ready(doomed, other) as pool:
        asked = wanted(16)
        batch = pool.submit(asked, TERMS, least_version=0)
        wait_until(lambda: doomed.sampled == 2)
        back = doomed.restart()
        try:
            checked(batch, asked)
            pool.publish(version(1)).result(timeout=PATIENCE_S)
            wait_until(takes_part(pool, 0, least_version=1))
            assert back.bodies[0][0] == "anchor"
            assert back.weights == checksum(version(1).arrays)
            assert "worker_down" in kinds(pool)
        finally:
            back.close()


def test_versions_are_sent_as_patches_and_regularly_as_anchors(workers: Make) -> None:
    """Both are proven by checksum and log-probs; the served weights are bit for bit the published ones."""
    worker = workers()
    with pool_of(worker, anchor_every=4) as pool:
        for number in range(6):
            pool.publish(version(number)).result(timeout=PATIENCE_S)
            wait_until(lambda number=number: pool.workers[0].version == number)  # type: ignore[misc]
            assert worker.weights == checksum(version(number).arrays)
            assert worker.arrays["w"].tobytes() == version(number).arrays["w"].tobytes()
        assert [kind for kind, _ in worker.bodies] == ["anchor", "patch", "patch", "anchor", "patch", "patch"]


def test_rollouts_wait_for_the_version_they_need(workers: Make) -> None:
    worker = workers()
    with ready(worker) as pool:
        asked = wanted(3)
        batch = pool.submit(asked, TERMS, least_version=2)
        pool.publish(version(1)).result(timeout=PATIENCE_S)
        sampled_by(pool, 2, "b", least_version=1)
        assert worker.asked == 2
        pool.publish(version(2)).result(timeout=PATIENCE_S)
        checked(batch, asked)
        assert {sampled.version for sampled, _ in batch.result.result().values()} == {2}


@pytest.mark.parametrize("fault", ["wrong weights", "wrong log-probs"])
def test_unproven_sync_takes_the_worker_out(fault: str, workers: Make) -> None:
    bad, good = workers(), workers()
    with ready(bad, good) as pool:
        bad.fault = fault
        pool.publish(version(1)).result(timeout=PATIENCE_S)
        wait_until(lambda: pool.workers[0].state == "down")
        assert sampled_by(pool, 8, least_version=1) == {pool.workers[1].name}
        bad.fault = None
        wait_until(all_up(pool))


def test_worker_that_returns_with_another_model_is_left_out(workers: Make) -> None:
    """The error has both values."""
    worker, other = workers(), workers()
    with ready(worker, other, timeout_s=0.5, retries=1000) as pool:
        worker.health_changes = {"tokenizer": "xyz"}
        worker.fault = "hangs"
        sampled_by(pool, 6)
        wait_until(lambda: "tokenizer" in str(pool.workers[0].trouble))
        assert worker.url in str(pool.workers[0].trouble)


@pytest.mark.parametrize(
    "change", [{"max_model_len": "many"}, {"sampling": [1]}, {"version": [1]}, {"state": 3}, {"vocab_size": [50]}]
)
def test_nonsense_in_health_ends_no_run(change: dict[str, object], workers: Make) -> None:
    worker, other = workers(), workers()
    worker.health_changes = change
    with pool_of(worker, other) as pool:
        pool.publish(version(0)).result(timeout=PATIENCE_S)
        wait_until(lambda: pool.workers[0].trouble is not None and pool.workers[1].state == "up")
        assert sampled_by(pool, 6) == {pool.workers[1].name}
        assert pool.failure is None
        assert f"`$.{next(iter(change))}`" in str(pool.workers[0].trouble)


def test_failing_worker_uses_up_no_retries_while_another_works(workers: Make) -> None:
    """It joins again and again, gets one rollout at a time, and never one that it failed at."""
    sick, slow = workers(), workers(delay_s=0.06)
    with ready(sick, slow, retries=2) as pool:
        sick.fault = "refuses"
        assert sampled_by(pool, 8) == {pool.workers[1].name}
        assert sick.asked <= 8


def test_waiting_time_runs_while_all_workers_hang(workers: Make) -> None:
    first, second = workers(), workers()
    with ready(first, second, timeout_s=0.3) as pool:
        first.fault = second.fault = "hangs"
        first.hangs = True
        pool.submit(wanted(4), TERMS, least_version=0)
        wait_until(lambda: pool.workers[0].state != "up")
        second.hangs = True
        wait_until(lambda: pool.waited_s() > 0.75)
        assert "workers_lost" in kinds(pool)


def test_two_runs_at_one_worker_get_their_own_rollouts(workers: Make) -> None:
    """Their versions have the same number, and they replace each other's weights; every rollout is sampled with the
    weights of its run."""
    worker = workers(delay_s=0.002)
    mine, other = version(1), replace(version(2), number=1)
    with pool_of(worker) as a, pool_of(worker) as b:
        for pool, weights in ((a, mine), (b, other)):
            pool.publish(weights).result(timeout=PATIENCE_S)
            wait_until(all_up(pool))
        for n in range(4):
            for pool, weights in ((a, mine), (b, other)):
                worker.weights_asked.clear()
                sampled_by(pool, 3, f"{n}-", least_version=1)
                assert set(worker.weights_asked) == {checksum(weights.arrays)}


def test_pool_without_workers_waits_and_reports_it(workers: Make) -> None:
    worker = workers()
    with ready(worker) as pool:
        worker.close()
        asked = wanted(4)
        batch = pool.submit(asked, TERMS, least_version=0)
        wait_until(lambda: pool.waited_s() > 0.2)
        assert "workers_lost" in kinds(pool)
        back = ScriptedWorker(port=worker.port)
        try:
            checked(batch, asked)
            assert pool.waited_s() == 0.0
            assert "workers_back" in kinds(pool)
        finally:
            back.close()


def test_rollout_that_always_fails_ends_in_an_error(workers: Make) -> None:
    worker = workers()
    with ready(worker, retries=2) as pool:
        worker.fault = "errors"
        batch = pool.submit(wanted(2), TERMS, least_version=0)
        with pytest.raises(WorkerError, match=r"failed 3 times; the last error: .* out of memory"):
            batch.result.result(timeout=PATIENCE_S)


def test_unreachable_worker_is_named(workers: Make) -> None:
    worker = workers()
    worker.close()
    with pool_of(worker) as pool:
        pool.publish(version(0)).result(timeout=PATIENCE_S)
        wait_until(lambda: pool.workers[0].trouble is not None)
        trouble = pool.workers[0].trouble
        assert isinstance(trouble, UnreachableError)
        assert worker.url in trouble.message
        assert trouble.hint


def test_a_silent_worker_is_noticed_before_its_request_times_out(
    workers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called silent after a look without an answer, and up again once it answers; its rollouts are not lost."""
    monkeypatch.setattr(pool_module, "PROBE_S", 0.05)
    monkeypatch.setattr(pool_module, "SILENT_S", 0.2)
    worker = workers()
    worker.most = 0
    with ready(worker, first=1) as pool:
        asked = wanted(3)
        batch = pool.submit(asked, TERMS, least_version=1)
        worker.hangs = True
        silent = next_event(pool, "worker_silent")
        assert silent.worker == worker.url.removeprefix("http://")
        assert "has not answered for 0.2 s" in silent.message
        worker.hangs = False
        assert "answers again" in next_event(pool, "worker_up").message
        worker.most = None
        checked(batch, asked)


def next_event(pool: Pool, kind: str) -> pool_module.WorkerEvent:
    """The next event that is not the first join."""
    while True:
        event = pool.events.get(timeout=PATIENCE_S)
        if event.kind == kind and "samples, with version" not in event.message:
            return event


SAMPLING = {name: values[0] for name, values in NEUTRAL_SAMPLING.items()}
HEALTH = FACTS | {"max_model_len": 512, "state": "ready", "version": 0, "weights": "", "sampling": SAMPLING}
EXPECTED = ExpectedModel(FACTS, 500)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "vllm"}, ""),
        ({"sampling": {"top_k": -1}}, ""),
        ({"architecture": "lfm2"}, "another architecture: lfm2 there, qwen2 here"),
        ({"vocab_size": 51}, "another vocab_size: 51 there, 50 here"),
        ({"tokenizer": "xyz"}, "another tokenizer: xyz there, abc here"),
        ({"dtype": "float16"}, "another dtype: float16 there, float32 here"),
        ({"sampling": {"top_p": 0.9, "top_k": 0}}, "changes the distribution; {'top_p': 0.9} there"),
        ({"max_model_len": 499}, "takes 499 tokens; 500"),
    ],
)
def test_a_difference_of_the_policy_is_named_with_both_values(change: dict[str, Any], words: str) -> None:
    """Further facts do not matter."""
    with refuses("http://w", *words.split("; ")) if words else nullcontext():
        check("http://w", Health(**HEALTH | change), EXPECTED)


@pytest.mark.parametrize(
    ("off", "dtype", "passes"),
    [
        (9e-4, "float32", True), (2e-3, "float32", False), (0.04, "bfloat16", True), (0.06, "bfloat16", False),
        (float("nan"), "bfloat16", False),
    ],
)  # fmt: skip
def test_logprobs_prove_the_weights(off: float, dtype: str, passes: bool) -> None:
    """Up to the tolerance of the type."""
    wrong = pytest.raises(WorkerError, match="does not sample from the trainer's weights")
    with nullcontext() if passes else wrong:
        check_probe("http://w", [[-1.0 + off, -2.0 + off], [-3.0 + off]], [[-1.0, -2.0], [-3.0]], dtype)


def test_memory_of_workers_on_this_machine_is_added_up(workers: Make) -> None:
    """By any address of this machine; one that is away, or does not answer as a worker, takes nothing."""
    first, second = workers(), workers()
    first.health_changes = {"reserved_bytes": 3_000}
    urls = f"{first.url},{second.url.replace('127.0.0.1', 'localhost')}/"
    for of_second, whole in (
        ({"reserved_bytes": 500}, 3_500),
        ({"reserved_bytes": None}, 3_000),
        ({"version": "x"}, 3_000),
    ):
        second.health_changes = of_second
        assert reserved_here(urls) == whole
    first.close()
    assert reserved_here(f"{first.url},http://host.invalid:8100,http://192.0.2.1:8100") == 0
    assert reserved_here("") == 0


def test_a_worker_elsewhere_is_not_asked_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("smolsum.rollout.worker_client._reserved", lambda url: asked.append(url) or 1)
    own = socket.gethostbyname(socket.gethostname())
    assert reserved_here(f"http://192.0.2.1:8100,http://{own}:8100") == 1
    assert asked == [f"http://{own}:8100"]
