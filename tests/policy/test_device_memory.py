"""Which limit on memory holds for this process: RAM, cgroups of both versions, ulimits, and the variable."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refusals import refuses

from smolsum.policy.device_memory import GB, MemoryLimit, host_limits, outside_arrays, raise_wired_limit, tightest_limit

# isort: split
import mlx.core as mx

GIB = 1 << 30
FREE = 1 << 63


def machine(root: Path, *, available: int = 20, total: int = 32, cgroup: str = "", mounts: str = "") -> Path:
    """What /proc says of a machine (in GiB) and of a process of 1 GiB."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {total << 20} kB\nMemAvailable:   {available << 20} kB\n")
    (root / "proc/self/status").write_text(f"Name:\tpython\nVmSize:\t{3 << 20} kB\nVmRSS:\t {1 << 20} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "proc/self/mountinfo").write_text(mounts)
    return root


def group(folder: Path, *, version: int, limit: int | None, used: int, files: int = 0, high: int | None = None) -> None:
    """A cgroup's files; sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 1:
        (folder / "memory.limit_in_bytes").write_text(f"{limit or FREE - 4096}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"cache 7\ntotal_active_file {files}\ntotal_inactive_file 0\n")
    else:
        (folder / "memory.max").write_text(f"{limit or 'max'}\n")
        (folder / "memory.high").write_text(f"{high or 'max'}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\nactive_file 0\ninactive_file {files}\n")


def least(root: Path) -> MemoryLimit:
    return min(host_limits(root), key=lambda limit: limit.size)


def test_available_ram_is_a_limit_with_a_margin_for_the_system(tmp_path: Path) -> None:
    """What the process holds already is its own to keep; 5 % of the RAM stays free."""
    found = least(machine(tmp_path))
    assert found.source == "available RAM"
    assert found.size == pytest.approx((1 + 20 - 0.05 * 32) * GIB)


def test_a_cgroup_of_version_2_is_found_at_every_level(tmp_path: Path) -> None:
    """The tightest level counts: its limit without what others use; pages of files can be taken back."""
    mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
    root = machine(tmp_path, cgroup="0::/batch/job\n", mounts=mounts)
    top = root / "sys/fs/cgroup"
    group(top / "batch/job", version=2, limit=16 * GIB, used=1 * GIB)
    group(top / "batch", version=2, limit=12 * GIB, used=9 * GIB, files=2 * GIB)
    found = least(root)
    assert str(top / "batch") in found.source
    assert found.size == pytest.approx(0.95 * (1 + 12 - 7) * GIB)
    group(top / "batch/job", version=2, limit=16 * GIB, used=1 * GIB, high=4 * GIB)
    assert least(root).size == pytest.approx(0.95 * (1 + 4 - 1) * GIB)  # beyond memory.high a process stands still


def test_a_cgroup_of_version_1_counts_its_children(tmp_path: Path) -> None:
    """Other controllers, and levels without a limit, say nothing."""
    mounts = "32 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    mounts += "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
    root = machine(tmp_path, cgroup="5:cpu,cpuacct:/other\n4:memory:/job/7\n0::/unified\n", mounts=mounts)
    top = root / "sys/fs/cgroup/memory"
    group(top / "job/7", version=1, limit=8 * GIB, used=3 * GIB, files=1 * GIB)
    group(top / "job", version=1, limit=None, used=30 * GIB)
    found = least(root)
    assert found.size == pytest.approx(0.95 * (1 + 8 - 2) * GIB)
    assert str(top / "job/7") in found.source


@pytest.mark.parametrize("path", ["/docker/abc", "/"], ids=["of the host", "of the container"])
def test_a_container_sees_its_own_part_of_the_hierarchy(tmp_path: Path, path: str) -> None:
    """Its mount is the container's cgroup, whatever path the process is said to be in."""
    mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n"
    root = machine(tmp_path, cgroup=f"4:memory:{path}\n", mounts=mounts)
    group(root / "sys/fs/cgroup/memory", version=1, limit=2 * GIB, used=1 * GIB)
    assert least(root).size == pytest.approx(0.95 * 2 * GIB)


def test_a_full_machine_has_no_less_than_nothing(tmp_path: Path) -> None:
    """Where others hold more than their cgroup should allow, or almost all RAM; names of mounts may be any bytes."""
    root = machine(tmp_path, available=0, cgroup="0::/job\n")
    top = root / "sys/fs/cgroup"
    mounts = b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 23 8:1 / /mnt/caf\xe9 rw - ext4 /dev/sdb1 rw\n"
    (root / "proc/self/mountinfo").write_bytes(mounts)
    group(top / "job", version=2, limit=16 * GIB, used=1 * GIB)
    group(top, version=2, limit=4 * GIB, used=9 * GIB)
    assert {limit.source: limit.size for limit in host_limits(root)} == {
        "available RAM": 0.0, f"the memory limit of cgroup {top}": 0.0,
        f"the memory limit of cgroup {top / 'job'}": pytest.approx(0.95 * 16 * GIB),
    }  # fmt: skip


def test_without_proc_there_is_still_a_limit(tmp_path: Path) -> None:
    """A Mac's: a share of its RAM."""
    assert [limit.size > 0 for limit in host_limits(tmp_path)][:1] == [True]


def test_ulimit_v_is_a_limit() -> None:
    """In a real process: the limit less the addresses that have no memory behind them."""
    code = "import os; from smolsum.policy.device_memory import tightest_limit as f; x = f(os.environ)"
    code += "; print(x.size, x.source)"
    command = f"ulimit -v 6000000; exec {sys.executable} -c '{code}'"
    environ = {key: value for key, value in os.environ.items() if key != "SMOLSUM_MEMORY_GB"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=environ)
    size, source = done.stdout.strip().split(" ", 1)
    assert source == "ulimit -v"
    assert 4e9 < float(size) < 6.144e9


def test_the_variable_replaces_every_limit(tmp_path: Path) -> None:
    """Smaller or larger than what is there, and without a margin."""
    root = machine(tmp_path)
    assert tightest_limit({"SMOLSUM_MEMORY_GB": "7.5"}, root=root) == MemoryLimit(7.5 * GB, "SMOLSUM_MEMORY_GB")
    assert tightest_limit({"SMOLSUM_MEMORY_GB": "900"}, root=root).size == 900 * GB
    assert tightest_limit({"SMOLSUM_MEMORY_GB": " "}, root=root).source == "available RAM"


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf"])
def test_a_variable_that_is_no_size_is_an_error(text: str) -> None:
    with refuses("SMOLSUM_MEMORY_GB", text, "export SMOLSUM_MEMORY_GB=8"):
        tightest_limit({"SMOLSUM_MEMORY_GB": text})


def test_a_limit_on_arrays_leaves_the_process_out() -> None:
    """A GPU holds MLX's arrays alone; RAM holds the libraries too."""
    assert MemoryLimit(8.0, "free memory of the GPU", of_arrays=True).for_arrays(1.0) == 8.0
    assert MemoryLimit(8.0, "available RAM").for_arrays(1.0) == 7.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """MLX's default device is a GPU, whose `device_info` is the dictionary that this gives: it stands in for hardware
    that most machines lack. 3 GiB of arrays are alive, and 1 GiB cached."""
    info: dict[str, int] = {}
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.DeviceType.gpu, 0))
    monkeypatch.setattr(mx, "device_info", lambda: info)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 3 * GIB)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: GIB)
    outside_arrays.cache_clear()
    yield info
    outside_arrays.cache_clear()


@pytest.mark.parametrize(
    ("info", "size", "source"),
    [
        ({"free_memory": 12, "total_memory": 24}, 0.95 * 16, "free memory of the GPU"),
        ({"max_recommended_working_set_size": 10, "memory_size": 16}, 10, "the working set that Metal recommends"),
    ],
    ids=["CUDA", "Metal"],
)
def test_a_gpu_limits_arrays(
    gpu: dict[str, int], info: dict[str, int], size: float, source: str, tmp_path: Path
) -> None:
    """Free memory, of which 5 % stay free, with what MLX holds already, or the working set as Metal recommends it. Host
    memory is the limit where it leaves less room, and the variable counts arrays there, as a budget does."""
    gpu |= {key: value * GIB for key, value in info.items()}
    found = tightest_limit({}, root=machine(tmp_path / "large"))
    assert found == MemoryLimit(pytest.approx(size * GIB), source, of_arrays=True, blind="Metal" in source)
    small = tightest_limit({}, root=machine(tmp_path / "small", available=8, total=16))
    assert (small.source, small.of_arrays) == ("available RAM", False)
    assert tightest_limit({"SMOLSUM_MEMORY_GB": "7.5"}) == MemoryLimit(7.5 * GB, "SMOLSUM_MEMORY_GB", of_arrays=True)


def test_a_limit_that_knows_of_no_other_process_loses_what_workers_hold(gpu: dict[str, int], tmp_path: Path) -> None:
    """Metal's working set, with its source; a limit that the system measures does not, and then nobody is asked; nor
    does the variable, which the user has chosen."""
    root, taken = machine(tmp_path / "m"), lambda: 4.0 * GIB
    gpu |= {"max_recommended_working_set_size": 10 * GIB}
    found = tightest_limit({}, root=root, reserved=taken)
    assert found.size == 6 * GIB
    assert "4.3 GB of workers on this machine" in found.source
    assert tightest_limit({}, root=root, reserved=lambda: 20.0 * GIB).size == 0
    assert tightest_limit({"SMOLSUM_MEMORY_GB": "9"}, root=root, reserved=taken).size == 9 * GB
    gpu.clear()
    gpu |= {"free_memory": 12 * GIB, "total_memory": 24 * GIB}
    assert tightest_limit({}, root=root, reserved=lambda: pytest.fail("asked")).source == "free memory of the GPU"


def test_the_cpu_has_no_limit_of_a_device(gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Although MLX may know a GPU; nor is memory kept resident for it."""
    gpu |= {"max_recommended_working_set_size": 1 * GIB}
    set_sizes: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", set_sizes.append)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    raise_wired_limit()
    assert set_sizes == [1 * GIB]
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.DeviceType.cpu, 0))
    raise_wired_limit()
    assert set_sizes == [1 * GIB]
    assert "working set" not in tightest_limit({}).source


def test_memory_that_arrays_leave_behind_is_not_counted_again() -> None:
    """A process that trained one run plans the next one from what it held before: Python and libraries."""
    before = outside_arrays()
    large = mx.ones((256, 1 << 18))
    mx.eval(large)
    del large
    assert 20e6 < before < 4e9
    assert outside_arrays() == before
