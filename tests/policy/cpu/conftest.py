"""Functions in C keep to one thread, unless a test chooses: several test processes share the cores, and threads that
wait for each other's turn would take minutes."""

import ctypes
import platform

import pytest

from smolsum.policy.cpu import native


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "threads", lambda: 1)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors"))
        for name in ("x86-64", "x86-64-v3")
    ],
)
def older_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library compiled for an older processor, without OpenMP: with AVX2, or with no vectors that are named, as on
    an Arm."""
    flags = tuple(f"-march={request.param}" if flag.startswith("-march") else flag for flag in native.FLAGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLAGS", flags)
        patch.setattr(native, "PARALLEL", "-fno-openmp")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("older")))
        library = ctypes.CDLL(str(native.compiled()))
    library.products_forward(ctypes.cast(ctypes.CDLL(None).cblas_sgemm, ctypes.c_void_p))  # the BLAS in use
    return library
