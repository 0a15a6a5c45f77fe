"""Functions of users that hang, end their event loop or freeze the process."""

import asyncio
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.custom_rewards import score
from support.processes import python
from support.refusals import refuses
from support.training import wait_until

from smolsum.config.sections import Config, RewardsConfig
from smolsum.errors import PluginError
from smolsum.rewards import background
from smolsum.rewards.combine import score_all
from smolsum.rewards.custom import make_reward
from smolsum.types import RolloutGroup

Group = Callable[..., RolloutGroup]
SOON = Config(rewards=RewardsConfig(timeout_s=0.3))
LATE = Config(rewards=RewardsConfig(timeout_s=0.3, on_error="missing"))


def loops_forever(completions: list[str]) -> list[float]:
    """Never ends, and keeps ordinary exceptions."""
    while completions:
        try:
            time.sleep(0.01)
        except Exception:
            continue
    return []


async def never_awaits(completions: list[str]) -> list[float]:
    """Never ends, and never lets the event loop run."""
    return loops_forever(completions)


async def waits_forever(completions: list[str]) -> list[float]:
    """Never ends."""
    await asyncio.sleep(3600)
    return [0.0] * len(completions)


async def goes_on_once(completions: list[str]) -> list[float]:
    """Hangs, and keeps every exception, the first one."""
    try:
        return loops_forever(completions)
    except BaseException:
        return [0.0] * len(completions)


def exits_softly(completions: list[str]) -> list[float]:
    """Never ends, and keeps what a parser of arguments raises."""
    while completions:
        try:
            time.sleep(0.01)
        except (Exception, SystemExit):
            continue
    return []


def generates_forever(completions: list[str]) -> Iterator[float]:
    """Never ends while it is listed."""
    yield from loops_forever(completions)


async def works(completions: list[str]) -> list[float]:
    """Never fails."""
    await asyncio.sleep(0.001)
    return [1.0] * len(completions)


async def ends_the_loop(completions: list[str]) -> list[float]:
    """Waits, with a callback that wants to end the interpreter."""
    asyncio.get_running_loop().call_soon(sys.exit, "no key")
    return await waits_forever(completions)


@pytest.mark.parametrize(
    "function", [loops_forever, exits_softly, never_awaits, goes_on_once, waits_forever, generates_forever]
)
def test_a_deadline_ends_what_hangs(
    function: Callable[..., Any], group: Group, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends too; the next async function has a loop that works."""
    monkeypatch.setattr(background, "END_S", 0.1)
    with refuses("rewards.timeout_s", error=PluginError):
        score(function, [group(["a", "b"])], SOON)
    assert score(function, [group(["a", "b"])], LATE) == [[None, None]]
    assert "gave no value for 2 of 2 completions" in notes[0]

    assert score(works, [group(["a"])]) == [[1.0]]
    wait_until(only_the_loop_runs)


@pytest.mark.parametrize(
    "functions", [(never_awaits, works), (works, never_awaits), (ends_the_loop, works), (works, ends_the_loop)]
)
def test_what_works_has_its_value_next_to_what_hangs(
    functions: tuple[Callable[..., Any], ...], group: Group, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the loop, and are asked at the same time."""
    monkeypatch.setattr(background, "END_S", 0.1)
    late = replace(LATE, rewards=replace(LATE.rewards, timeout_s=1.0))
    made = {one.__name__: make_reward(one, file=__file__, sha256="") for one in functions}
    scores = score_all([group(["a"])], dict.fromkeys(made, 1.0), late, made)
    assert scores == {name: [[1.0 if name == "works" else None]] for name in made}
    assert len(notes) == 1


def test_what_ends_every_loop_is_named(group: Group) -> None:
    """It is no deadline that it misses."""
    with refuses("'ends_the_loop'", "its event loop ended 3 times, at last by SystemExit no key", error=PluginError):
        score(ends_the_loop, [group(["a", "b"])])


def test_ctrl_c_while_a_function_is_stopped(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where the process goes on: what hangs ends all the same, and the next function works."""
    running = background.RunningAsync(partial(never_awaits, ["a"]), background.now() + 0.3)

    class Interrupted(queue.SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(background.queue, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.result()
    assert score(works, [group(["a"])]) == [[1.0]]
    wait_until(only_the_loop_runs)


def test_what_ends_with_its_loop_has_its_value(group: Group) -> None:
    """Another function that hung may end the loop in the very turn in which this one returns."""

    async def returns(completions: list[str]) -> list[float]:
        asyncio.get_running_loop().stop()
        return [1.0] * len(completions)

    assert score(returns, [group(["a"])]) == [[1.0]]
    assert score(returns, [group(["a"])]) == [[1.0]]


@pytest.mark.parametrize("end", [lambda loop: loop.stop(), lambda loop: loop.call_soon(sys.exit)], ids=["stop", "exit"])
def test_what_is_cut_off_with_its_loop_is_asked_again(
    end: Callable[[asyncio.AbstractEventLoop], object], group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Another function that hung, or a callback that wants to end the interpreter, may end the loop in which this one
    waits for an answer. asyncio says nothing of it."""
    asked = []

    async def waits(completions: list[str]) -> list[float]:
        asked.append(completions)
        if len(asked) == 1:
            end(asyncio.get_running_loop())
            await asyncio.sleep(3600)
        return [1.0] * len(completions)

    assert score(waits, [group(["a"])]) == [[1.0]]
    assert len(asked) == 2
    gc.collect()
    assert caplog.messages == []


def only_the_loop_runs() -> bool:
    """Whether all threads and tasks of rewards have ended, except the thread of the event loop in use."""
    used = background._Loop._kept[-1:]
    left = [one for one in threading.enumerate() if one.name in ("reward", "rewards")]
    return not {*left} - {one.thread for one in used} and not any(asyncio.all_tasks(one.loop) for one in used)


MADE_REWARD = """
import os, re, signal, time
from smolsum.config.sections import Config, RewardsConfig
from smolsum.rewards import background
from smolsum.rewards.combine import score_all
from smolsum.rewards.custom import make_reward
from smolsum.types import Prompt, Rollout, RolloutGroup

def backtracks(completions):
    return [float(bool(re.match(r"(a|aa)+$", text))) for text in completions]

def stops(completions):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1.0)
    return [1.0 for _ in completions]

def score(function, text, timeout_s, frozen_s):
    background.FROZEN_S = frozen_s
    rollout = Rollout((1,), (0.0,), "stop", 0, "local", 0, text)
    group = RolloutGroup(Prompt("p", ({"role": "user", "content": "?"},), (1,), (), {}), (rollout,))
    made = make_reward(function, file=__file__, sha256="")
    config = Config(rewards=RewardsConfig(timeout_s=timeout_s))
    print(score_all([group], {made.name: 1.0}, config, {made.name: made}), flush=True)

"""


def test_a_regular_expression_that_backtracks_for_ever_ends_the_process(tmp_path: Path) -> None:
    """It holds the interpreter's lock, so that no thread of Python runs: the process ends by itself, and says where."""
    (file := tmp_path / "freezes.py").write_text(
        f"{MADE_REWARD}score(backtracks, 'aaa', 0.5, 60.0)\nscore(backtracks, 'a' * 5000 + 'b', 0.5, 0.5)\n"
    )
    code, out, err = python(file)
    assert (code, out) == (-signal.SIGKILL, "{'backtracks': [[1.0]]}\n")
    line = MADE_REWARD.splitlines().index("def backtracks(completions):") + 2
    for named in ("error: ", "rewards.timeout_s + 0.5", f'File "{file}", line {line} in', "hint: "):
        assert named in err


def test_time_in_which_the_process_is_stopped_does_not_count(tmp_path: Path) -> None:
    """As by Ctrl-Z: neither for a reward's deadline nor for the watchdog over rewards that freeze Python."""
    (file := tmp_path / "stops.py").write_text(f"{MADE_REWARD}score(stops, 'a', 2.0, 1.0)\n")
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(4.5)  # longer than the deadline and the watchdog's limit
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate()
    assert (process.returncode, out) == (0, b"{'stops': [[1.0]]}\n"), err
