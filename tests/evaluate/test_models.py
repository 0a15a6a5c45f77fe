"""`eval` of tasks that ask models behind endpoints, over real HTTP: who is asked, about what, and what compares."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from support.calls import Call, done
from support.judge_server import Reply, answer, serving
from support.refusals import assert_refused

from smolsum.errors import UnreachableError
from smolsum.runs.record_io import read_summary
from smolsum.tasks.doc_qa.reader_model import clients_of

Evaluate = Callable[..., tuple[int, str, str]]


def brain(prompt: str, before: int) -> Reply:
    """A reader that finds nothing, and a grader that is never content."""
    return answer(json.dumps({"right": False} if prompt.startswith("Somebody was asked") else {"answer": None}))


@pytest.fixture
def evaluate(data: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """`smolsum eval` as in a process of its own, with an endpoint in the environment."""

    def invoke(url: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        clients_of.cache_clear()
        sets = [f"data.path={data}", "sampling.max_new_tokens=8", "train.eval_batch=50"]
        return call("eval", "builtin:tiny", "--runs-dir=.", *(f"--set={key}" for key in sets), *more)

    return invoke


ASKED = ("--task=doc-qa", "--set=task.reader=judge-a", "--set=task.system_prompt=")


def test_readers_elsewhere_do_not_compare(evaluate: Evaluate, call: Call) -> None:
    """Two servers may call anything judge-a: evaluations by both are refused, with who they were; by one they are not,
    and what one measured is not measured over by the other."""
    with serving(mischief=brain) as one, serving(mischief=brain) as other:
        for name, server in (("a", one), ("again", one), ("b", other)):
            done(evaluate(server.url, *ASKED, "--name", name))
        done(call("stats", "--paired", "./a", "./again"))
        both = [f"reader judge-a at {url}, grader judge-a at {url}" for url in (one.url, other.url)]
        assert_refused(call("stats", "--paired", "./a", "./b"), " against ".join(both))
        assert_refused(evaluate(other.url, *ASKED, "--name", "a"), "something else: task.reader")


def test_a_reader_may_move_while_nothing_is_measured(evaluate: Evaluate) -> None:
    """Completions are kept over an outage, and read by the reader that answers then."""
    command = (*ASKED, "--set=task.wait_s=0.1", "--name", "a")
    assert_refused(evaluate("http://127.0.0.1:9/v1", *command), "127.0.0.1:9", error=UnreachableError)
    with serving(mischief=brain) as server:
        done(evaluate(server.url, *command))
        assert (read_summary(Path("a")).task or {})["reader"] == f"judge-a at {server.url}"


def text_of(prompt: str) -> str:
    return re.search(r"Text:\n(.*)", prompt, re.S)[1]  # type: ignore[index]


def test_only_the_split_is_corrupted(data: Path, evaluate: Evaluate) -> None:
    """Texts of the other splits cost requests only in training."""

    def worse(prompt: str, before: int) -> Reply:
        return answer(json.dumps({"text": text_of(prompt).replace("my", "the").replace("My", "The") + " Or not."}))

    with serving(mischief=worse) as server:
        done(evaluate(server.url, "--task=ab-judge", "--set=task.corruptor=judge-a", "--name", "pairs"))
        assert {text_of(prompt) for _, prompt in server.asked} == set(pl.read_parquet(data / "test.parquet")["prompt"])
