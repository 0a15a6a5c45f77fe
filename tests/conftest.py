"""Sets MLX up as the package does before any test imports it, so that runs in this process round as runs in a process
of their own. Property-based tests have no deadline, as other processes may slow the machine down. Bytecode is kept.
Ctrl-C works: a shell starts a background job with SIGINT ignored, and what the tests start would inherit that. The
width of the terminal that the tests are started in does not count.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

# Some machines turn bytecode off, and each process that a test starts would then compile a thousand modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.pop("COLUMNS", None)
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from support.calls import call as call  # noqa: E402
from support.training import STARTED, make_data  # noqa: E402

import smolsum.policy  # noqa: E402, F401

gc.disable()  # until all tests are imported

# the same examples every time, so that no test fails by chance; `--hypothesis-profile=default` tries others
settings.register_profile("smolsum", deadline=None, derandomize=True)
settings.load_profile("smolsum")


def pytest_collection_finish() -> None:
    """Keep the imported modules out of every later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _no_training_outlives_its_test() -> Iterator[None]:
    """What a failed test started would take the processor from the next, and warn there."""
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set, of the numbers of rows that the test file has as `SIZES`."""
    return make_data(tmp_path_factory.mktemp("data") / "posts", **getattr(request.module, "SIZES", {}))
