"""A process that is stopped while it scores, as by Ctrl-Z, goes on where it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STOPS = """
import os, signal, time
from smolsum.config.sections import Config, RewardsConfig
from smolsum.rewards import background
from smolsum.rewards.combine import score_all
from smolsum.rewards.decorator import make_reward
from smolsum.types import Prompt, Rollout, RolloutGroup

def stops(completions):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
    return [1.0 for _ in completions]

background.FROZEN_S = 1.0
rollout = Rollout((1,), (0.0,), "stop", 0, "local", 0, "a")
group = RolloutGroup(Prompt("p", ({"role": "user", "content": "?"},), (1,), (), {}), (rollout,))
config = Config(rewards=RewardsConfig(timeout_s=2.0))
print(score_all([group], {"stops": 1.0}, config, {"stops": make_reward(stops, file=__file__, sha256="")}))
"""


def test_time_in_which_the_process_is_stopped_does_not_count(tmp_path: Path) -> None:
    """Neither for a reward's deadline nor for the watchdog over rewards that freeze Python."""
    file = tmp_path / "stops.py"
    file.write_text(STOPS)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(4.5)  # longer than the deadline and the watchdog's limit
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate()
    assert (process.returncode, out) == (0, b"{'stops': [[1.0]]}\n"), err
