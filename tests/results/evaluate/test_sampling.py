"""Completions that are not made here. By models behind an endpoint: measured as a policy of our own is, with the same
prompts and questions, in one table, also where readers and corruptors are such models. By workers: the same as here,
whatever becomes of the workers."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.data_files import lines
from support.judge_server import JudgeServer, Reply, answer, failure, score_of, serving
from support.reading_server import DOCUMENT, QUESTIONS, brain
from support.refusals import assert_refused
from support.serving import process
from support.training import PATIENCE_S, SIZES, start, trained

from smolsum.cli.main import main
from smolsum.config.sections import DataConfig
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.files import read_jsonl
from smolsum.runs.typed_json import read_summary
from smolsum.tasks.data import load_split
from smolsum.tasks.doc_qa.documents import from_facts, known_forms
from smolsum.tasks.doc_qa.reader import read
from smolsum.tasks.doc_qa.reader_model import clients_of
from smolsum.tasks.text_metrics import count_words, first_words

COMMAND = ("baseline", "--task=doc-qa", "--judge=none", "--attempts=1")
ROLES = ("baseline", "--task=doc-qa", "--api=judge-a", "--set=data.path=documents", "--set=task.reader=judge-a")


def head(prompt: str, before: int) -> Reply:
    """A summary that any model could write: the post's first 30 words."""
    return answer(" ".join(prompt.split()[:30]))


def cells(page: str) -> list[dict[str, Any]]:
    found = json.loads(page)["sections"]
    return [cell for s in found for item in s["items"] for row in item.get("rows", []) for cell in row]


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


Evaluate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """An endpoint with two models."""
    with serving(mischief=head) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        yield served


def test_models_behind_an_endpoint(server: JudgeServer, data: Path, call: Call) -> None:
    """Each has the scores that its summaries earn, by hand; what failed is asked again by the same command, and nothing
    else is; the report has them side by side with intervals."""
    command = [*COMMAND, "--api=judge-a", "--api=judge-b", f"--set=data.path={data}", "--set=task.max_words=20"]
    examples = load_split(DataConfig(path=str(data)), "test").examples
    server.mischief = lambda p, n: failure(500, "oops") if p == examples[1].source and n == 0 else head(p, n)
    gaps = [f"{model} gave no completion for 1 of 4 prompts" for model in ("judge-a", "judge-b")]
    assert_refused(call(*command), *gaps, error=SmolsumError)
    assert len(server.asked) == 8
    folders = [Path(line) for line in done(call(*command))[0].split()]
    assert len(server.asked) == 8 + 2
    known = known_forms(DataConfig(path=str(data)))
    for folder, model in zip(folders, ("judge-a", "judge-b"), strict=True):
        assert (summary(folder)["model"]["path"], summary(folder)["n"]) == (model, 4)
        rows = {row["id"]: row for row in read_jsonl(folder / "scores.jsonl")}
        for example in examples:
            text = " ".join(example.source.split()[:30])
            questions = from_facts(example.id, example.metadata["facts"])
            within = read(first_words(text, 20), questions, example.metadata["facts"], known)
            row = rows[example.id]
            assert row["text"] == text
            assert row["answered_within"] == pytest.approx(sum(within) / len(within))
            assert row["words"] == count_words(text)
            assert row["tokens"] > 0
    done(call("report", *folders, "--format=json", "--output=report"))
    page = Path("report/report.json").read_text()
    assert "Side by side" in page
    assert "answered_within with 95 % intervals" in page
    assert {cell["command"] for cell in cells(page) if "command" in cell} == {"smolsum train --task doc-qa"}
    assert "judge-a: " in (verdict := json.loads(page)["verdict"])
    assert verdict.count("in answered within the limit, without training.") == 2
    samples = [item for s in json.loads(page)["sections"] if s["title"] == "Samples" for item in s["items"]]
    assert [len(item["rows"]) for item in samples] == [4, 4]
    assert len(server.asked) == 8 + 2


def test_an_endpoint_is_asked_what_the_prompt_asks(server: JudgeServer, tmp_path: Path, call: Call) -> None:
    """The length that is wanted, after the post, and the turns of a chat before it."""
    chat = [
        {"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Ho"), ("user", "A post."))
    ]
    path = lines(tmp_path / "test.jsonl", [{"prompt": chat, "completion": "Short."}])
    done(
        call(
            *("baseline", "--task=tldr", "--judge=none", "--api=judge-a", f"--set=data.path={path}"),
            *("--set=task.targets=16", "--set=data.test_split=train", "--set=data.validation_share=0"),
        )
    )
    system, *turns, last = server.chats[0]
    assert (system["role"], turns) == ("system", chat[:2])
    assert last["content"].startswith("A post.")
    assert "16 tokens" in last["content"].removeprefix("A post.")


def test_a_reader_that_fails_for_all(server: JudgeServer, data: Path, call: Call) -> None:
    """Nothing was read: that is said, with the command that asks again and no sentence without an end."""
    command = [*COMMAND, "--api=judge-b", f"--set=data.path={data}", "--set=task.reader=judge-a"]
    command.append("--set=task.attempts=1")
    again = f"smolsum {' '.join(command)}"

    def every_other(prompt: str, before: int) -> Reply:
        """A reader that leaves questions of each document without an answer."""
        if not prompt.startswith("Answer a question"):
            return head(prompt, before)
        return answer('{"answer": null}' if score_of("judge-a", f"{prompt}Test Case:") % 2 else "no idea")

    server.mischief = every_other
    out, err = done(call(*command), f"4 of 4 not read, and in no mean; {again} asks again")
    assert "to fill them" not in err
    done(call("report", out.strip(), "--format=json", "--output=report"))
    commands = {cell.get("command") for cell in cells(Path("report/report.json").read_text())}
    assert {again} <= commands <= {None, "smolsum train --task doc-qa", again}
    server.mischief = lambda p, n: answer('{"answer": null}') if p.startswith("Answer a question") else head(p, n)
    clients_of.cache_clear()
    assert "not read" not in done(call(*command))[1]


@pytest.fixture
def _documents() -> None:
    """A data set of one document in each split, with its three questions."""
    for split in ("train", "validation", "test"):
        text = {"document_id": split, "document_extracted": f"{DOCUMENT} ({split})"}
        rows = [text | {"question": question, "answer": said} for question, said in QUESTIONS.items()]
        lines(Path("documents") / f"{split}.jsonl", rows)


def name_endpoints(monkeypatch: pytest.MonkeyPatch, **servers: JudgeServer) -> None:
    """In the environment: each role's server, with its key where it has one."""
    for role, server in servers.items():
        monkeypatch.setenv(f"SMOLSUM_{role}_URL", server.url)
        if server.key:
            monkeypatch.setenv(f"SMOLSUM_{role}_API_KEY", server.key)


@pytest.mark.usefixtures("_documents")
def test_each_role_has_its_server_and_its_key(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command: a model behind one endpoint writes the summary, the reader answers from it at another, the grader
    grades at a third. By hand: the summary answers two of three questions, one of them wrongly. Each server gets its
    own key and no other, and no key is in any file or message."""
    with (
        serving(key="key-of-policy", mischief=lambda p, n: answer("The car is red. The hat is blue.")) as policy,
        serving(key="key-of-reader", mischief=brain) as reader,
        serving(key="key-of-grader", mischief=brain) as grader,
    ):
        name_endpoints(monkeypatch, POLICY=policy, READER=reader, GRADER=grader)
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
        out, err = done(call(*ROLES, "--set=task.grader=judge-b"))
    for server in (policy, reader, grader):
        assert server.authorizations == {f"Bearer {server.key}"}
    assert [prompt for _, prompt in policy.asked] == [f"{DOCUMENT} (test)"]
    assert all(prompt.startswith("Answer a question") for _, prompt in reader.asked)
    assert all((model, prompt[:18]) == ("judge-b", "Somebody was asked") for model, prompt in grader.asked)
    folder = Path(out.split()[-1])
    (row,) = read_jsonl(folder / "scores.jsonl")
    assert (row["answered"], row["ceiling"]) == (pytest.approx(1 / 3), 1.0)
    found = summary(folder)
    assert found["model"]["weights"].endswith(policy.url)
    assert found["task"]["reader"] == f"judge-a at {reader.url}"
    assert found["task"]["grader"] == f"judge-b at {grader.url}"
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert not any("key-of-" in text for text in [out, err, *written])


@pytest.mark.usefixtures("_documents")
def test_a_role_without_a_key_of_its_own_gets_none(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's key stays at home: the reader refuses the request, and the error names the reader's variable."""
    with (
        serving(mischief=lambda p, n: answer("The car is red.")) as policy,
        serving(key="key-of-reader", mischief=brain) as reader,
    ):
        name_endpoints(monkeypatch, POLICY=policy)
        monkeypatch.setenv("SMOLSUM_READER_URL", reader.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
        assert_refused(call(*ROLES), "export SMOLSUM_READER_API_KEY=…")
        assert (policy.authorizations, reader.authorizations) == ({""}, {""})
        monkeypatch.setenv("SMOLSUM_GRADER_URL", policy.url)
        clients_of.cache_clear()
        assert_refused(call(*ROLES), "--set task.grader=MODEL", "unset SMOLSUM_GRADER_URL")


def test_two_judges_of_one_name_at_two_servers(data: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are two judges, asked with their own keys while a third server is the policy; at one server they are the
    same."""
    command = ["baseline", "--api=judge-a", "--prompt=50-words", "--rounds=1", "--judge=judge-b"]
    command += [f"--set=data.path={data}", "--set=data.test_rows=2"]
    with serving(key="p", mischief=head) as policy, serving(key="j1") as first, serving(key="j2") as second:
        name_endpoints(monkeypatch, POLICY=policy, JUDGE=first)
        assert_refused(call(*command, "--second-judge=judge-b"), "judge-b", "second judge")
        name_endpoints(monkeypatch, SECOND_JUDGE=second)
        folder = Path(done(call(*command, "--second-judge=judge-b"))[0].split()[-1])
        assert [one.authorizations for one in (policy, first, second)] == [{"Bearer p"}, {"Bearer j1"}, {"Bearer j2"}]
        assert len(first.asked) == len(second.asked) == 8
        judging = summary(folder)["judging"]
        assert (judging["endpoint"], judging["second"]["endpoint"]) == (first.url, second.url)
        done(call(*command))  # the second judge's scores stay
    assert summary(folder)["judging"]["second"]["endpoint"] == second.url


def test_an_endpoint_has_its_own_way_of_sampling(server: JudgeServer, data: Path, call: Call) -> None:
    """What would not be sent is refused; what was answered is asked again on wish alone."""
    command = [*COMMAND, "--api=judge-a", f"--set=data.path={data}"]
    for flag in ("--temperature=1", "--seed=3", "--seeds=2", "--samples=2"):
        assert_refused(call(*command, flag), f"{flag.partition('=')[0]} is not for --api")
    done(call(*command))
    asked = len(server.asked)
    done(call(*command, "--name=again"))
    assert len(server.asked) == asked
    done(call(*command, "--name=fresh", "--fresh"))
    assert len(server.asked) == 2 * asked


def test_an_endpoint_without_a_key(call: Call) -> None:
    assert_refused(call("baseline", "--task=doc-qa", "--api=gpt-4.1"), "gpt-4.1", "export OPENAI_API_KEY")


def test_no_prompt_is_compared_on_data_that_bring_theirs(tmp_path: Path, call: Call) -> None:
    """A chat's system message stands for that of the task, so all variants would ask the same."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A post."}]
    lines(tmp_path / "test.jsonl", [{"messages": chat}])
    command = ["baseline", "--model=tiny", "--judge=none", "--prompt=50-words", f"--set=data.path={tmp_path}"]
    assert_refused(call(*command), "1 of 1 chats of the test split", "'50-words'")


def silent(prompt: str, before: int) -> Reply:
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
    with serving(mischief=silent) as one, serving(mischief=silent) as other:
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
    with serving(mischief=silent) as server:
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


LORA = {"lora__rank": 4, "lora__keys": "self_attn.q_proj"}


@pytest.mark.parametrize(
    "settings", [pytest.param({}, id="whole"), pytest.param(LORA, id="adapter", marks=pytest.mark.slow)]
)
def test_workers_give_what_this_machine_gives(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """Two workers that hold the untrained model are given the trained weights; every completion is that of the run's
    own evaluation on this machine, and says which worker sampled it."""
    steps = {"stages__length__steps": 2, "stages__quality__steps": 1, "stages__length__learning_rate": 3e-3}
    run = trained(data, tmp_path, "mine", **steps, **settings)
    ours = {row["id"]: row for row in read_jsonl(run / "eval" / "quality-test" / "scores.jsonl")}
    evaluated = ["eval", str(run), "--name", "far", "--set", "train.eval_batch=4"]
    with (
        process("--model", "tiny", log=tmp_path / "a") as (_, a),
        process("--model", "tiny", log=tmp_path / "b") as (_, b),
    ):
        assert main([*evaluated, "--worker", str(a.base_url), "--worker", str(b.base_url)]) == 0
    far = run / "eval" / "far"
    rows = read_jsonl(far / "generations.jsonl")
    assert {row["id"]: row["text"] for row in rows} == {name: row["text"] for name, row in ours.items()}
    assert len(rows) == SIZES["test"]
    assert {row["worker"] for row in rows} <= {client.base_url.netloc.decode() for client in (a, b)}
    assert {row["policy_version"] for row in rows} == {3}
    scores = read_jsonl(far / "scores.jsonl")
    assert {row["id"]: row["meteor"] for row in scores} == {name: row["meteor"] for name, row in ours.items()}


@pytest.mark.slow
def test_evaluation_survives_dying_workers(tmp_path: Path) -> None:
    """One is killed: the other takes over its posts. Both are: exit 3, and the same command without workers makes only
    what is missing."""
    sizes = ["--set=train.eval_batch=2", "--set=workers.wait_s=1", "--set=sampling.max_new_tokens=24"]
    evaluated = ["eval", "tiny", "--runs-dir", str(tmp_path), *sizes]
    saved = tmp_path / "eval-tiny-test" / "generations.jsonl"
    with (
        process("--model", "tiny", log=tmp_path / "a") as (first, a),
        process("--model", "tiny", log=tmp_path / "b") as (second, b),
    ):
        evaluation = start([*evaluated, "--worker", str(a.base_url), "--worker", str(b.base_url)])
        until(evaluation, saved, 10)
        first.kill()
        until(evaluation, saved, 60)
        second.kill()
        _, said = evaluation.communicate(timeout=PATIENCE_S)
    assert evaluation.returncode == 3, said
    assert "error: no worker came back in" in said
    then = read_jsonl(saved)
    assert 60 <= len(then) < 200
    assert main(evaluated) == 0
    now = read_jsonl(saved)
    assert now[: len(then)] == then
    assert len({row["id"] for row in now}) == len(now) == 200
    assert {row["worker"] for row in now[len(then) :]} == {"local"}
    assert {row["worker"] for row in then} == {client.base_url.netloc.decode() for client in (a, b)}


def until(evaluation: subprocess.Popen[str], saved: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not saved.exists() or len(saved.read_bytes().splitlines()) < count:
        assert evaluation.poll() is None, evaluation.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
