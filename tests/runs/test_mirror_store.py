"""A folder at a URL: whole files in and out of real S3 and a disk, and one error for each thing that can be wrong."""

import os
from pathlib import Path

import pytest
from support.calls import Call
from support.disks import mounted
from support.refusals import assert_refused, refuses
from support.s3_server import S3Server, serving

from smolsum.errors import SmolsumError, UnreachableError
from smolsum.runs.mirror_store import Store


@pytest.mark.parametrize("kind", ["s3", "disk"])
def test_files_go_in_and_out(s3: S3Server, tmp_path: Path, kind: str) -> None:
    """What was written is read back, listed with its size, replaced and removed; twice removed is no error."""
    store = Store(f"{s3.url}/a" if kind == "s3" else f"file://{tmp_path}/a")
    assert store.sizes() == {}
    store.prove()
    assert store.sizes() == {}
    store.write("x/empty", b"")
    store.write("x/one", b"1")
    (tmp_path / "weights").write_bytes(bytes(3_000_000))
    store.write("y/weights", tmp_path / "weights")
    assert store.sizes() == {"x/empty": 0, "x/one": 1, "y/weights": 3_000_000}
    assert (store.names("file"), store.names("directory")) == ([], ["x", "y"])
    store.write("x/one", b"two")
    assert store.read("x/one") == b"two"
    store.fetch({"y/weights": tmp_path / "back"})
    assert (tmp_path / "back").read_bytes() == bytes(3_000_000)
    store.remove("x/one")
    store.remove("x/one")
    with pytest.raises(FileNotFoundError):
        store.write("y/gone", tmp_path / "gone")
    assert store.sizes().keys() == {"x/empty", "y/weights"}
    store.remove_folder("y", first="weights")
    assert store.names("directory") == ["x"]


def test_what_is_no_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake is named with a remedy: no bucket, no key, and with exit code 3 no server, with the variable that
    says where servers are."""
    with refuses("ftp://127.0.0.1:1", error=UnreachableError):
        Store("ftp://127.0.0.1:1/runs")
    with refuses("s3://no-such-bucket/runs", "bucket"):
        Store("s3://no-such-bucket/runs").prove()
    with serving() as server:
        server.stop()
        with refuses(server.url, "AWS_ENDPOINT_URL_S3", error=UnreachableError):
            Store(server.url).prove()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with refuses(s3.url, "credentials"):
        Store(s3.url).prove()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("bucket/runs", "not a URL of a folder"),
        ("s3://", "not a URL of a folder"),
        ("file://runs", "not a URL of a folder"),
        ("gs://bucket", "installed"),
        ("bar://x/y", "bar"),
        ("s3://u:SECRET@b/x", "password"),
        ("memory://m", "when this process ends"),
        ("simplecache::memory://m", "when this process ends"),
        ("http://127.0.0.1:9/runs", "fsspec only reads http"),
    ],
)
def test_where_no_run_can_be_kept_is_known_at_once(url: str, named: str, call: Call) -> None:
    """A dry run says it too, nothing is loaded, no question is asked, and no password is shown."""
    for more in (["--dry-run"], ["--dry-run", "--strategy=all"], []):
        done = call("train", "--mirror", url, *more)
        assert_refused(done, named)
        assert done[2].startswith("error: ")  # not after "starting"
        assert "SECRET" not in done[2]


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """A file where a folder should be, a right that is lacking, no room: nothing about networks or credentials, each
    with what helps, and no half file is left."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # root may write everywhere except where the kernel forbids it
        folder = Path("/sys/kernel/smolsum")
    for place, said in (
        (tmp_path / "file", ""), (tmp_path / "file/a", ""), ("/proc/nothing", ""), (folder, "does not let us write"),
    ):  # fmt: skip
        with refuses(place, said) as refused:
            Store(f"file://{place}" + ("/runs" if said else "")).prove()
        assert "AWS" not in str(refused.value.hint)
    with mounted(tmp_path / "small", 64) as disk:
        store = Store(f"file://{disk}/runs")
        store.prove()
        with refuses("the disk is full", "file://", "free space", error=SmolsumError):
            store.write("big", bytes(100_000))
        assert store.sizes() == {}
        store.write("small", b"1")


def test_no_room_where_a_run_is_fetched_to(s3: S3Server, tmp_path: Path) -> None:
    """This machine's disk is full, and the store is not blamed for it."""
    store = Store(f"{s3.url}/room")
    store.write("big", bytes(100_000))
    with mounted(tmp_path / "small", 64) as disk, pytest.raises(OSError, match="No space left"):
        store.fetch({"big": disk / "big"})
