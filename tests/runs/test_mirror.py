"""Runs that are kept elsewhere while they train: what is there at any moment, and that a run goes on from there."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call
from support.refusals import assert_refused, refuses
from support.s3_server import S3Server, serving
from support.training import PATIENCE_S, arguments, events, learned, wait_until, weights

from smolsum.cli.main import main
from smolsum.errors import SmolsumError
from smolsum.files import read_jsonl
from smolsum.grpo import keeper
from smolsum.runs import checkpoints
from smolsum.runs.mirror import Mirror, fetch_run
from smolsum.runs.mirror_store import Store
from smolsum.runs.paths import RunPaths, create_run

SIZES = {"test": 2}
SHORT = {
    "stages__length__steps": 3, "stages__quality__steps": 1, "train__checkpoint_every": 1,
    "train__validate_every": 0, "sampling__max_new_tokens": 12,
}  # fmt: skip


@pytest.fixture(scope="module")
def mirrored(data: Path, tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Path:
    """A short mirrored run of two stages, whose first checkpoints are pruned, and which nothing interrupted."""
    runs, wake = tmp_path_factory.mktemp("mirrored"), Mirror.wake

    def patient(found: Mirror) -> None:
        """A checkpoint that is still being copied is not pruned."""
        wake(found)
        wait_until(lambda: not any(map(found._is_new, checkpoints.list_checkpoints(found._paths))) and not found.busy)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Mirror, "wake", patient)
        assert main([*arguments(data, runs, "whole", **SHORT), "--mirror", s3.url]) == 0
    return runs / "whole"


def a_run(folder: Path, name: str = "mine") -> RunPaths:
    paths = create_run(folder, name)
    paths.config.write_text("a = 1\n")
    paths.info.write_text(json.dumps({"created": name}))
    return paths


def save(paths: RunPaths, step: int, content: bytes = b"w" * 1000) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(content)
        (folder / "config.json").write_text("{}")

    checkpoints.save(paths, step, write, {"stage": "length"})


def mirror(url: str, paths: RunPaths) -> Mirror:
    found = Mirror(url, round_s=0.05, settle_s=PATIENCE_S)
    found.begin(paths)
    return found


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What stores do with which file, in order."""
    found: list[tuple[str, str]] = []
    for deed in ("write", "remove"):
        real = getattr(Store, deed)

        def noted(self: Store, name: str, *more: Any, deed: str = deed, real: Any = real) -> None:
            real(self, name, *more)
            found.append((deed, name))

        monkeypatch.setattr(Store, deed, noted)
    return found


def of_step(step: int, name: str = "meta.json") -> str:
    """A file of a checkpoint, as a store names it."""
    return f"checkpoints/step-{step:06d}/{name}"


KILLED = """
import os, signal, sys, threading
from smolsum.cli.main import main
from smolsum.runs.mirror import Mirror
from smolsum.runs.mirror_store import Store
write, wake = Store.write, Mirror.wake
def wakened(mirror):
    wake(mirror)
    if mirror._paths.checkpoint(2).exists():
        threading.Event().wait(900)
def written(store, name, content):
    write(store, name, content)
    if name == "checkpoints/step-000002/meta.json":
        os.kill(os.getpid(), signal.SIGKILL)
Store.write, Mirror.wake = written, wakened
main(sys.argv[1:])
"""


def silent(kind: str, message: str) -> None:
    """Hears an event."""


def there(s3: S3Server, name: str) -> set[str]:
    return {key.removeprefix(f"runs/{name}/") for key in s3.keys() if key.startswith(f"runs/{name}/")}  # noqa: SIM118


def test_a_mirrored_run_is_whole(mirrored: Path, s3: S3Server) -> None:
    """All but the lock, links and requests is in the bucket, byte for byte; checkpoints that were pruned are gone."""
    own = {
        path.relative_to(mirrored).as_posix()
        for path in mirrored.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != "run.lock" and "latest" not in path.parts
    }
    assert there(s3, "whole") == own
    store = Store(f"{s3.url}/whole")
    assert all(store.read(name) == (mirrored / name).read_bytes() for name in own)
    assert json.loads(store.read("status.json"))["state"] == "finished"
    assert "mirror" in events(mirrored)
    assert not list(mirrored.glob("checkpoints/step-000001"))


def test_a_killed_run_goes_on_from_the_bucket(
    data: Path, mirrored: Path, s3: S3Server, tmp_path: Path, call: Call
) -> None:
    """kill -9, the machine's disk is lost: fetched elsewhere, the run ends with the weights and metrics of one that
    nothing stopped, and is mirrored there again."""
    command = [sys.executable, "-c", KILLED, *arguments(data, tmp_path / "lost", "killed", **SHORT), "--mirror", s3.url]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shutil.rmtree(tmp_path / "lost")
    fetched, run = (
        ["train", "--resume", f"{s3.url}/killed", "--runs-dir", tmp_path / "new"],
        tmp_path / "new" / "killed",
    )
    code, out, err = call(*fetched)
    assert (code, out.strip(), "fetching" in err) == (0, str(run), True)
    assert learned(run) == learned(mirrored)
    assert all(weights(run, step) == weights(mirrored, step) for step in (3, 4))
    assert next(row["step"] for row in read_jsonl(run / "events.jsonl") if row.get("attempt") == 2) == 2
    assert json.loads(Store(f"{s3.url}/killed").read("status.json"))["state"] == "finished"
    # what is there already is not fetched over it
    assert_refused(call(*fetched), "killed")


def test_what_is_refused_before_loading(mirrored: Path, data: Path, s3: S3Server, tmp_path: Path, call: Call) -> None:
    """Another machine's run of that name is not written over, and a store that refuses is an error at the start:
    nothing is made."""
    for url, named in (
        (s3.url, [f"{s3.url}/whole", "--name OTHER", f"smolsum train --resume {s3.url}/whole"]),
        ("s3://no-such-bucket/runs", ["s3://no-such-bucket/runs", "make the bucket"]),
    ):
        done = call(*arguments(data, tmp_path, "whole"), "--mirror", url)
        assert_refused(done, *named)
        assert "loading" not in done[2]
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_keeps_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded: a file is written and read back."""
    monkeypatch.setattr(Store, "read", lambda store, name: b"other bytes")
    with refuses(tmp_path, "--mirror", error=SmolsumError):
        Mirror(f"file://{tmp_path}")


def test_a_store_that_goes_away_costs_nothing(
    data: Path, mirrored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped while the run trains: the run goes on to its end, an event says so; resumed, it copies what lacks."""
    monkeypatch.setattr(keeper, "Mirror", partial(Mirror, round_s=0.05, settle_s=0.1))
    wake = Mirror.wake

    def stopping(found: Mirror) -> None:
        if (tmp_path / "alone/checkpoints/step-000001").exists():
            wait_until(lambda: server.server is None or "config.toml" in there(server, "alone"))
            server.stop()
        wake(found)

    with serving() as server:
        with monkeypatch.context() as patched:
            patched.setattr(Mirror, "wake", stopping)
            assert main([*arguments(data, tmp_path, "alone", **SHORT), "--mirror", server.url]) == 0
        out, err = capsys.readouterr()
        assert out.strip() == str(tmp_path / "alone")
        assert err.count("warning: the mirror is behind") == 1
        assert "lacks the end of the run" in err
        assert f"smolsum train --resume {tmp_path / 'alone'} copies it" in err
        assert {"mirror_failed", "mirror_behind"} <= set(events(tmp_path / "alone"))
        assert learned(tmp_path / "alone") == learned(mirrored)
        assert main(["train", "--resume", str(tmp_path / "alone")]) == 3  # it is still away
        assert main(["train", "--resume", str(tmp_path / "alone"), "--mirror", "none"]) == 0
        server.start()
        assert main(["train", "--resume", str(tmp_path / "alone")]) == 0
        assert of_step(4) in there(server, "alone")


def test_a_checkpoint_is_there_whole_or_not_at_all(s3: S3Server, tmp_path: Path, done: list[tuple[str, str]]) -> None:
    """Its meta.json goes last, is taken away first, and the metrics that lead to it are there before."""
    paths = a_run(tmp_path, "order")
    paths.metrics.write_bytes(b'{"step": 1}\n')
    save(paths, 1)
    found = mirror(s3.url, paths)
    wait_until(lambda: of_step(1) in there(s3, "order"))
    paths.metrics.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    save(paths, 2)
    save(paths, 1, b"v" * 1000)  # the same step anew
    found.settle(silent, print)
    one, two = ([name for _, name in done if f"step-00000{n}/" in name] for n in (1, 2))
    assert (one[-1], two[-1]) == (of_step(1), of_step(2))
    assert [deed for deed, name in done if name == of_step(1)] == ["write", "remove", "write"]
    assert ("write", of_step(1, "model.safetensors")) in done[done.index(("remove", of_step(1))) :]
    seen = [name for _, name in done]
    assert seen.index("metrics.jsonl", 3) < seen.index(of_step(2))
    # pruned here, pruned there, and never before the newer one is complete
    save(paths, 3)
    checkpoints.prune(paths, 1, [])
    mirror(s3.url, paths).settle(silent, print)
    assert {name.split("/")[1] for name in there(s3, "order") if "checkpoints/" in name} == {"step-000003"}
    assert done.index(("write", of_step(3))) < done.index(("remove", of_step(2)))


def test_a_disk_keeps_no_folder_of_a_checkpoint_that_is_gone(tmp_path: Path) -> None:
    paths = a_run(tmp_path / "runs", "pruned")
    save(paths, 1)
    found = mirror(f"file://{tmp_path}/far", paths)
    wait_until(lambda: (tmp_path / "far/pruned" / of_step(1)).exists() and not found.busy)
    save(paths, 2)
    assert checkpoints.prune(paths, 1, found.busy) != []
    found.settle(silent, print)
    assert [path.name for path in (tmp_path / "far/pruned/checkpoints").iterdir()] == ["step-000002"]


def test_half_a_checkpoint_is_not_fetched(s3: S3Server, tmp_path: Path) -> None:
    """One without its meta.json and one with a damaged file stay behind; the newest whole one is `latest`."""
    paths = a_run(tmp_path / "here", "halves")
    for step in (1, 2, 3):
        save(paths, step)
    mirror(s3.url, paths).settle(silent, print)
    store = Store(f"{s3.url}/halves")
    store.remove(of_step(3))
    store.write(of_step(2, "model.safetensors"), b"x" * 1000)
    said: list[str] = []
    fetched = fetch_run(f"{s3.url}/halves/", tmp_path / "there", said.append)
    assert [path.name for path in sorted(fetched.checkpoints.iterdir())] == ["latest", "step-000001"]
    assert (fetched.checkpoints / "latest").readlink() == Path("step-000001")
    assert any("step-000002" in line and "checksum" in line for line in said)
    assert fetched.config.read_text() == "a = 1\n"
    for url, named in ((f"{s3.url}/halvs", "did you mean halves?"), (s3.url, "halves")):
        with refuses(url, named):
            fetch_run(url, tmp_path / "there", said.append)


def test_a_mirror_never_loses_what_it_holds(s3: S3Server, tmp_path: Path) -> None:
    """An older copy of the run, or another run of its name, is refused: going on would replace what is newer."""
    paths = a_run(tmp_path / "a", "held")
    save(paths, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "old", symlinks=True)
    save(paths, 2)
    mirror(s3.url, paths).settle(silent, print)
    with refuses("step-000002", "step 1", f"--resume {s3.url}/held"):
        mirror(s3.url, RunPaths(tmp_path / "old" / "held"))
    other = a_run(tmp_path / "b", "held")
    other.info.write_text(json.dumps({"created": "another day"}))
    with refuses(f"{s3.url}/held", "another run"):
        mirror(s3.url, other)
    assert of_step(2) in there(s3, "held")


def test_an_outage_is_told_once_and_made_good(tmp_path: Path) -> None:
    """However often it is tried; what happened meanwhile is copied once the store is back."""
    seen: list[tuple[str, str]] = []
    with serving() as server:
        paths = a_run(tmp_path, "outage")
        found = mirror(server.url, paths)

        def wait_for(kind: str) -> None:
            wait_until(lambda: found.pass_on(lambda *event: seen.append(event)) or kind in dict(seen))

        wait_until(lambda: "run.json" in there(server, "outage"))
        server.stop()
        save(paths, 1)
        found.wake()
        wait_for("mirror_failed")
        server.start()
        wait_for("mirror_back")
        found.settle(silent, print)
        assert [kind for kind, _ in seen] == ["mirror", "mirror_failed", "mirror_back"]
        assert of_step(1) in there(server, "outage")


def test_a_slow_store_does_not_slow_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trainer calls returns while a file is still on its way, and a checkpoint that is being copied is named,
    so that it is not pruned."""
    real, arrives = Store.write, threading.Event()

    def slowed(self: Store, name: str, content: bytes | Path) -> None:
        assert not name.startswith("checkpoints/") or arrives.wait(PATIENCE_S)
        real(self, name, content)

    monkeypatch.setattr(Store, "write", slowed)
    paths = a_run(tmp_path / "runs", "slow")
    (tmp_path / "far").mkdir()
    found = mirror(f"file://{tmp_path}/far", paths)
    save(paths, 1)
    wait_until(lambda: found.busy == {1})
    found.wake()
    found.pass_on(silent)
    save(paths, 2)
    assert checkpoints.prune(paths, 1, found.busy) == []
    assert not (tmp_path / "far/slow" / of_step(1, "model.safetensors")).exists()
    arrives.set()
    found.settle(silent, print)
    assert all((tmp_path / "far/slow" / of_step(step)).exists() for step in (1, 2))
    assert threading.active_count() < 50


def test_growing_files_are_not_copied_for_every_line(tmp_path: Path, done: list[tuple[str, str]]) -> None:
    """Megabytes of metrics go anew when they have grown by a twentieth, with every checkpoint, and at the end."""
    paths = a_run(tmp_path / "runs", "long")
    paths.metrics.write_bytes(b'{"step": 1}\n' * 100_000)
    found = Mirror(f"file://{tmp_path}/far", round_s=1000)
    found.begin(paths)

    def grow(step: int) -> None:
        with paths.metrics.open("ab") as file:
            file.write(b'{"step": %d}\n' % step)

    def copies() -> int:
        found._round()
        return done.count(("write", "metrics.jsonl"))

    assert copies() == 1
    grow(2)
    assert copies() == 1
    save(paths, 2)
    assert copies() == 2
    grow(3)
    found.settle(silent, print)
    assert (tmp_path / "far/long/metrics.jsonl").read_bytes() == paths.metrics.read_bytes()
