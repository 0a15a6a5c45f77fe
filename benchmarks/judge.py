"""The rate of questions to a judge over real HTTP on this machine, against the rate that its latency allows.

    uv run python benchmarks/judge.py                # 400 calls, 500 ms, 16 at a time
    uv run python benchmarks/judge.py --deepeval     # and through DeepEval's own client

The server is another process. The ideal time is calls / concurrency * latency.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smolsum.llm.endpoints import Endpoint
from smolsum.llm.request_policy import RequestPolicy
from smolsum.results.evaluate.judge_cost import JudgeCost
from smolsum.results.evaluate.judging import JudgeJob, JudgeOptions, ask_judge
from smolsum.tasks.tldr.criteria import CRITERIA
from smolsum.types import Prompt, Rollout, RolloutGroup

SERVER = Path(__file__).parents[1] / "tests" / "support" / "judge_server.py"
POST = "My flatmate sold my bike on Monday. She says it was hers, and I have the receipt. What can I do? " * 10


def ours(url: str, calls: int, concurrency: int) -> float:
    """Return the seconds for all calls through smolsum, with every judgement written to disk."""
    groups = [
        RolloutGroup(
            Prompt(f"post-{n}", ({"role": "user", "content": f"{n} {POST}"},), (), (), {}),
            (Rollout((), (), "stop", 0, "", 0, f"Summary {n}."),),
        )
        for n in range(calls // len(CRITERIA))
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        job, endpoint = JudgeJob(Path(folder), groups, CRITERIA, "again"), Endpoint(url, "judge-a")
        cost = JudgeCost(None, agreed=True, quiet=True)
        options = JudgeOptions(endpoint, (), 1, RequestPolicy(concurrency=concurrency), cost)
        began = time.perf_counter()
        judged, failure = ask_judge(job, endpoint, options)
        seconds = time.perf_counter() - began
    assert failure is None
    assert not judged.missing
    return seconds


def theirs(url: str, calls: int, concurrency: int) -> float:
    """Return the seconds for as many calls through DeepEval's model for OpenAI, which makes a client for each."""
    import smolsum.results.evaluate.geval  # noqa: F401  its settings

    # isort: split
    from deepeval.metrics import GEval
    from deepeval.models import OpenAIModel
    from deepeval.test_case import LLMTestCase, SingleTurnParams

    model = OpenAIModel(model="judge-a", base_url=url, api_key="none", cost_per_input_token=0, cost_per_output_token=0)
    shown = [SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT]

    async def measure(gate: asyncio.Semaphore, n: int) -> None:
        async with gate:
            metric = GEval("m", evaluation_params=shown, evaluation_steps=list(CRITERIA[0].steps), model=model)
            await metric.a_measure(LLMTestCase(input=f"{n} {POST}", actual_output="Summary."), _show_indicator=False)

    async def everything() -> None:
        gate = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(measure(gate, n) for n in range(calls)))

    began = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - began


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400, metavar="N", help="a multiple of four")
    parser.add_argument("--latency", type=float, default=0.5, metavar="S")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N")
    parser.add_argument("--deepeval", action="store_true", help="also DeepEval's own client")
    arguments = parser.parse_args()
    import smolsum.results.evaluate.geval  # noqa: F401  leaves its import out of the measurement

    command = [sys.executable, str(SERVER), "--latency", str(arguments.latency)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        ideal = arguments.calls / arguments.concurrency * arguments.latency
        print(
            f"{arguments.calls} calls of {arguments.latency:g} s, {arguments.concurrency} at once: ideal {ideal:.2f} s"
        )
        for name, measure in (("smolsum", ours), *([("DeepEval", theirs)] if arguments.deepeval else [])):
            cpu = time.process_time()
            seconds = measure(url, arguments.calls, arguments.concurrency)
            cpu = 1000 * (time.process_time() - cpu) / arguments.calls
            print(f"{name}: {seconds:.2f} s, {ideal / seconds:.0%} of the ideal rate, {cpu:.1f} ms of CPU a call")
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
