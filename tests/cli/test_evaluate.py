"""`smolsum eval` and `smolsum baseline` as a user meets them: the command line, a real model, a judge over HTTP."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call, done
from support.data_files import lines
from support.judge_server import JudgeServer, answer, failure
from support.refusals import assert_refused, refuses
from support.terminals import Terminal
from support.training import PATIENCE_S, SIZES, arguments, make_data

from smolsum.cli import main
from smolsum.errors import SmolsumError, UnreachableError
from smolsum.files import read_jsonl
from smolsum.results.evaluate.storage import check_origin
from smolsum.tasks import TASKS
from smolsum.tasks.base import Metric, MetricTable, TaskEvaluation, TaskPrompts
from smolsum.types import Criterion

TESTS = SIZES["test"]
MAX_NEW_TOKENS = 16
CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
QUESTIONS = TESTS * len(CRITERIA)
"""of a judge, in a round"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps, with its data."""
    root = tmp_path_factory.mktemp("runs")
    small = {"stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": MAX_NEW_TOKENS}
    assert main.main(arguments(make_data(root / "data"), root, "mine", **small)) == 0
    return root / "mine"


def folder_of(result: tuple[int, str, str], *named: object) -> Path:
    """The folder of an evaluation that ended well and names each of these."""
    return Path(done(result, *named)[0].splitlines()[-1])


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_bytes()))


def scores(folder: Path) -> list[dict[str, Any]]:
    return read_jsonl(folder / "scores.jsonl")


def _settings(run: Path) -> list[str]:
    return [f"--set=data.path={run.parent / 'data'}", f"--set=sampling.max_new_tokens={MAX_NEW_TOKENS}"]


def test_a_run_is_evaluated_without_a_judge(run: Path, call: Call) -> None:
    """The run's own evaluation gains what it lacked; the columns that need a judge are named, with the way to them."""
    missing = f"missing: {', '.join(CRITERIA)}, composite, pass_rate"
    folder = folder_of(call("eval", run), missing, "OPENAI_API_KEY", "--judge gpt-5-mini-2025-08-07", "P99")
    assert folder == run / "eval" / "quality-test"
    rows = scores(folder)
    assert len(rows) == TESTS
    columns = {"id", "split", "data", "tokens", "within_tol", "over_budget", "off_target", "rouge", "meteor", "bleu"}
    columns |= {"copied", "novel_bigrams", "repeated_trigrams", "empty", "truncated", "facts_right", "facts_missing"}
    columns |= {"supported"}
    assert columns <= rows[0].keys()
    metrics = summary(folder)["metrics"]
    lengths = [f"completions/{name}_length" for name in ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")]
    for name in (*lengths, "length/within_tol", "length/over_budget", "length/off_target", "facts/right"):
        assert isinstance(metrics[name], float)


def test_training_and_eval_agree(run: Path, call: Call) -> None:
    """A checkpoint evaluated again scores as the training's own evaluation did, and in its own folder."""
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1]
    folder = folder_of(call("eval", checkpoint, "--name", "again"))
    assert folder == run / "eval" / "again"

    def kept(name: str) -> list[list[Any]]:
        return [[row[key] for key in ("id", "text", "tokens", "meteor")] for row in scores(run / "eval" / name)]

    assert kept("again") == kept("quality-test")


def test_judged_runs_can_be_compared(run: Path, call: Call, server: JudgeServer) -> None:
    """Scores with all rounds, which `stats` takes; other judges are refused; nothing is asked twice."""
    judged = ("--judge", "judge-a", "--rounds", 2)
    folder = folder_of(call("eval", run, *judged, "--second-judge", "judge-b"), f"judge-a: {2 * QUESTIONS} calls")
    assert len(server.asked) == 2 * 2 * QUESTIONS
    row = scores(folder)[0]
    assert row["composite"] == pytest.approx(sum(row[name] for name in CRITERIA))
    assert all(len(row["rounds"][name]) == 2 for name in (*CRITERIA, "composite", "passed"))
    assert row["judge"].startswith(f"judge-a at {server.url}, 2 rounds, prompts ")
    facts = summary(folder)["judging"]
    assert facts["missing"] == []
    assert facts["usage"]["calls"] >= 2 * QUESTIONS  # one whose connection had gone is asked again
    assert facts["second"]["agreement"]["composite"]["n"] == TESTS
    server.asked.clear()
    # the second judge's scores stay, whichever judge is asked later, and a command without a judge keeps all
    for asked in (judged, ("--judge", "none")):
        done(call("eval", run, *asked))
        assert scores(folder)[0] == row
        assert summary(folder)["judging"]["second"]["agreement"] == facts["second"]["agreement"]
    assert not server.asked

    other = folder_of(call("eval", run, "--judge", "judge-b", "--rounds", 2, "--name", "other"))
    assert_refused(call("stats", "--paired", folder, other), "judge judge-a")
    as_trained = [*_settings(run), "--set=task.target_tokens=42"]
    baseline = folder_of(call("baseline", "--prompt", "64-tokens", *as_trained, *judged))
    out, _ = done(call("stats", "--paired", baseline, folder, "--format", "json"))
    assert {"composite", "faithfulness", "tokens"} <= {row["metric"] for row in json.loads(out)["results"]}


def test_baseline_has_a_folder_for_each_prompt(run: Path, call: Call) -> None:
    """Also for instructions that begin alike, which are prompts too; the same folders every time."""
    out, _ = done(call("baseline", *_settings(run)))
    assert out.splitlines() == ["runs/baseline-tiny-50-words-test", "runs/baseline-tiny-64-tokens-test"]
    first, second = (summary(Path(folder)) for folder in out.splitlines())
    assert first["task"]["system_prompt"].endswith("Use exactly 50 words.")
    assert second["task"]["system_prompt"].endswith("Use exactly 64 tokens.")
    assert first["data"]["test"]["fingerprint"] == second["data"]["test"]["fingerprint"]
    assert first["data"]["test"]["prompts"] != second["data"]["test"]["prompts"]
    texts = [f"Summarise the post for somebody who has never met its author, in {n} sentences." for n in (2, 3)]
    command = ["baseline", *(f"--prompt={text}" for text in texts), *_settings(run)]
    out, _ = done(call(*command))
    assert [summary(Path(line))["task"]["system_prompt"] for line in out.splitlines()] == texts
    assert call(*command)[:2] == (0, out)


def test_a_prompt_is_shown_as_the_model_gets_it(tmp_path: Path, call: Call) -> None:
    """With the numbers of the settings, and not the words that stand for them."""
    lines(tmp_path / "test.jsonl", [{"text": "My aunt Edith broke seven cups in March."}])
    own = [f"--set=data.path={tmp_path}", "--set=data.prompt_column=text", "--set=sampling.max_new_tokens=4"]
    _, err = done(call("baseline", "--task=ab-judge", "--prompt=7-tokens", "--prompt=9-tokens", *own, "--judge=none"))
    shown = [line for line in err.splitlines() if line.startswith("evaluation ")]
    for line, tokens in zip(shown, (7, 9), strict=True):
        assert line.endswith(f"Notes of {tokens} tokens, then A or B.")


def test_a_run_keeps_its_own_evaluation(run: Path, call: Call) -> None:
    """A run's own evaluation is not written over with measures of other settings, and a run keeps its model."""
    own = [run / "eval" / "quality-test" / name for name in ("origin.json", "scores.jsonl", "summary.json")]
    before = [path.read_bytes() for path in own]
    assert_refused(call("eval", run, "--set", "task.target_tokens=40"), "task.target_tokens 42 then, 40 now")
    assert before == [path.read_bytes() for path in own]
    folder = folder_of(call("eval", run, "--set", "task.target_tokens=40", "--name", "shorter"))
    assert summary(folder)["task"]["target_tokens"] == 40
    for setting in ("model.path=builtin:tiny-lfm", "lora.rank=4"):
        assert_refused(call("eval", run, "--set", setting), f"--set {setting}")


def test_completions_of_other_settings_are_never_taken(run: Path, call: Call) -> None:
    """For those that were asked for: the folder keeps what it holds."""
    folder = folder_of(call("eval", "tiny", *_settings(run)))
    before = (folder / "scores.jsonl").read_bytes()
    for change in ("sampling.max_new_tokens=9", "model.dtype=bfloat16", "task.system_prompt=Say it."):
        assert_refused(call("eval", "tiny", *_settings(run), "--set", change), "something else", "--name")
    assert (folder / "scores.jsonl").read_bytes() == before


def test_what_else_an_evaluation_holds_is_said_in_words(tmp_path: Path) -> None:
    """Other data, other prompts, another tokenizer: fingerprints say nothing to a user."""
    origin = {"fingerprint": "f1", "prompts": "p1", "tokenizer": "t1", "dtype": "float32"}
    check_origin(tmp_path, origin, "")
    for change, said in (
        ({"fingerprint": "f2", "prompts": "p2"}, ": other data"),
        ({"prompts": "p2"}, ": other prompts"),
        ({"tokenizer": "t2", "dtype": "bfloat16"}, ": another tokenizer; dtype float32 then, bfloat16 now"),
    ):
        with refuses(tmp_path, said) as refused:
            check_origin(tmp_path, origin | change, "again")
        assert str(refused.value).endswith(said)


def test_other_data_do_not_represent_the_run(run: Path, tmp_path: Path, call: Call) -> None:
    """Whatever their names, they change neither what `eval` nor what `stats` takes for the run."""
    lines(Path("other/test.jsonl"), pl.read_parquet(run.parent / "data" / "test.parquet").head(3).to_dicts())
    run = Path(shutil.copytree(run, tmp_path / "mine"))
    for name in ("aa-test", "zz-test"):
        assert folder_of(call("eval", run, "--set=data.path=other", "--name", name)) == run / "eval" / name
    assert folder_of(call("eval", run)) == run / "eval" / "quality-test"
    named = ("mine: quality-test", "aa-test (other data)", "zz-test (other data)")
    done(call("stats", f"{run}/eval/start-test", run), *named)


def test_a_post_without_facts(run: Path, call: Call) -> None:
    """It is counted; the facts of the others are still measured."""
    rows = pl.read_parquet(run.parent / "data" / "test.parquet").to_dicts()
    lines(Path("data/test.jsonl"), [rows[0] | {"facts": []}, *rows[1:]])
    small = ("--set=data.path=data", f"--set=sampling.max_new_tokens={MAX_NEW_TOKENS}")
    folder = folder_of(call("eval", "tiny", *small), "posts without facts")
    metrics = summary(folder)["metrics"]
    right = [row["facts_right"] for row in scores(folder) if row["facts_right"] is not None]
    assert (len(right), metrics["facts/posts_without"]) == (TESTS - 1, 1)
    assert metrics["facts/right"] == pytest.approx(sum(right) / len(right))


def test_damaged_files_of_an_evaluation_are_an_error(run: Path, call: Call) -> None:
    """Generations with file and line; without that line only its example is completed again."""
    command = ("eval", "tiny", *_settings(run))
    folder = folder_of(call(*command))
    path = folder / "generations.jsonl"
    first, second, *rest = path.read_text().splitlines(keepends=True)
    for damage in ({"finish_reason": "eos"}, {"id": 3}, {"text": None}, {"token_ids": ["a"]}):
        path.write_text("".join([first, json.dumps(json.loads(second) | damage) + "\n", *rest]))
        assert_refused(call(*command), "generations.jsonl:2", error=SmolsumError)
    path.write_text("".join([first, *rest]))
    done(call(*command))
    assert path.read_text() == "".join([first, *rest, second])
    for name, content in (("summary.json", "{"), ("origin.json", "{"), ("origin.json", "[1]")):
        (folder / name).write_text(content)
        assert_refused(call(*command), name, "hint: remove ", error=SmolsumError)


def test_seeds_repeat_completions(run: Path, call: Call) -> None:
    """Above temperature 0 the seed decides, and the folder says so."""
    sampled = ("eval", "tiny", *_settings(run), "--temperature", 1, "--seed")
    texts = [
        [row["text"] for row in scores(folder_of(call(*sampled, seed, "--name", name)))]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert folder_of(call(*sampled, 1)).name == "eval-tiny-test-t1-seed1"
    assert_refused(call("eval", "tiny", *_settings(run), "--name", "a"), "temperature 1, seed 1 then, greedy now")


@pytest.mark.parametrize("command", [["eval"], ["baseline", "--model"]])
def test_a_model_that_cannot_be_read_leaves_no_folder(command: list[str], tmp_path: Path, call: Call) -> None:
    """A wrong request, said once, though a baseline has two prompts."""
    (broken := tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    _, _, err = refused = call(*command, broken, "--runs-dir", tmp_path / "runs")
    assert_refused(refused, "cut.gguf")
    assert err.count("cut off") == 1, err
    assert not list((tmp_path / "runs").glob("*"))


def test_failed_judgements_are_missing_and_asked_again(run: Path, call: Call, server: JudgeServer) -> None:
    """Gaps are counted, listed and in no mean; the command again fills them."""
    first = scores(run / "eval" / "quality-test")[0]
    server.mischief = lambda prompt, before: failure(400, "too long") if first["text"] in prompt else None
    command = ("eval", run, "--judge", "judge-a", "--rounds", 1, "--name", "gaps")
    folder = folder_of(call(*command), "4 judgements are missing", "HTTP 400: too long")
    assert [row["id"] for row in scores(folder) if row["composite"] is None] == [first["id"]]
    assert len(summary(folder)["judging"]["missing"]) == 4
    server.recover()
    assert "missing" not in done(call(*command))[1]
    assert all(row["composite"] is not None for row in scores(folder))


def test_a_second_judge_is_asked_though_the_first_fails(run: Path, call: Call, server: JudgeServer) -> None:
    """The first one fails on the way; its scores are kept with all of the second's."""
    broke = failure(429, "no credit", "insufficient_quota")
    server.mischief = lambda prompt, before: (
        broke if server.asked[-1][0] == "judge-a" and len(server.asked) > 9 else None
    )
    command = ["eval", run, "--judge", "judge-a", "--rounds", 1, "--concurrency", 1, "--name", "second"]
    assert_refused(call(*command, "--second-judge", "judge-b"), "no credit", error=SmolsumError)
    facts = summary(run / "eval" / "second")["judging"]
    assert facts["endpoint"] == facts["second"]["endpoint"] == server.url
    assert len(facts["missing"]) == QUESTIONS - 9
    assert not facts["second"]["missing"]
    server.recover()
    done(call(*command, "--fresh"))
    assert len(server.asked) == QUESTIONS - 9


def test_a_judge_that_gives_no_score_at_all(run: Path, call: Call, server: JudgeServer) -> None:
    """It is a failure of the work; what needs no judge is there, and the scores of another judge stay."""
    command = ["eval", run, "--rounds", 1, "--attempts", 1, "--name", "none", "--judge"]
    server.mischief = lambda prompt, before: answer("A splendid summary.")
    assert_refused(call(*command, "judge-a"), "judge-a", "A splendid summary.", error=SmolsumError)
    (row, *_) = scores(run / "eval" / "none")
    assert ("meteor" in row, "composite" in row) == (True, False)
    server.recover()
    done(call(*command, "judge-a"))
    before = (run / "eval" / "none" / "scores.jsonl").read_bytes()
    server.mischief = lambda prompt, before: failure(500, "oops")
    assert_refused(call(*command, "judge-b"), "judge-b", "HTTP 500: oops", error=SmolsumError)
    assert (run / "eval" / "none" / "scores.jsonl").read_bytes() == before


REFUSED: list[tuple[str, dict[str, str], list[str]]] = [
    ("eval RUN --judge judge-a", {}, ["judge-a", "OPENAI_API_KEY"]),
    ("eval RUN --judge judge-x", {"OPENAI_BASE_URL": ""}, ["judge-x", "OPENAI_API_KEY"]),
    ("eval RUN --second-judge judge-b", {}, ["--second-judge", "--judge MODEL"]),
    ("eval RUN --judge a --second-judge a", {}, ["its own second judge"]),
    ("eval RUN --rounds 0", {}, ["--rounds"]),
    ("eval RUN --temperature inf", {}, ["--temperature inf"]),
    ("eval RUN --temperature nan", {}, ["--temperature"]),
    ("eval RUN --deadline inf", {}, ["--deadline inf"]),
    ("eval RUN --config x.toml", {}, ["--config"]),
    ("eval RUN --preset tiny", {}, ["--preset"]),
    ("eval RUN --name a/b", {}, ["--name"]),
    ("eval tiny --name ../elsewhere", {}, ["--name"]),
    ("baseline --prompt 50-words --name ../elsewhere", {}, ["--name"]),
    ("eval tiny --name mine", {"SMOLSUM_RUNS_DIR": "RUNS"}, ["mine is a run"]),
    ("baseline --prompt 50-words --name mine", {"SMOLSUM_RUNS_DIR": "RUNS"}, ["mine is a run"]),
    ("baseline --prompt 50-wrods", {}, ["'50-wrods'"]),
    ("baseline --prompt 0-words", {}, ["'0-words'"]),
    ("eval runs/nothing", {}, ["runs/nothing"]),
    ("eval /nowhere/at/all", {}, ["/nowhere/at/all"]),
    ("eval missing", {}, ["'missing'"]),
    ("eval tiny --set data.path=empty", {}, ["empty/test.jsonl"]),
    ("eval tiny --set data.path=twice", {}, ["twice/test.jsonl", "id"]),
]


@pytest.mark.parametrize(("line", "environ", "named"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_cannot_be_meant_is_one_error(
    line: str, environ: dict[str, str], named: list[str], run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value.replace("RUNS", str(run.parent)))
    lines(Path("empty/test.jsonl"), [])
    lines(Path("twice/test.jsonl"), [{"id": 1, "prompt": "a", "completion": "b"}] * 2)
    before = sorted(run.rglob("*"))
    result = call(*shlex.split(line.replace("RUN", str(run))))
    assert_refused(result, *named)
    assert len([line for line in result[2].splitlines() if line.startswith(("error:", "hint:"))]) == 2
    assert sorted(run.rglob("*")) == before


def test_a_judge_that_is_not_there(run: Path, call: Call, server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an unknown one the endpoint's own names are offered; an endpoint that does not answer is no wrong request."""
    assert_refused(call("eval", run, "--judge", "judge-x", "--name", "unknown"), "'judge-x'", "did you mean judge-")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert_refused(call("eval", run, "--judge", "judge-a"), "http://127.0.0.1:9/v1", error=UnreachableError)


def test_one_split_without_facts_and_references(call: Call) -> None:
    """Data of one's own need no other split, no facts and no references: what needs them is missing, by name."""
    lines(Path("data/test.jsonl"), [{"prompt": "My cat ate my lunch, and I do not know what to do."}])
    result = call("eval", "tiny", "--set=data.path=data", "--set=sampling.max_new_tokens=8")
    named = ("'completion'", "bleu, rouge, meteor", "ROUGE-L, METEOR, BLEU; the data have no references")
    folder = folder_of(result, *named, "posts without facts; the data have no facts")
    assert "column `facts`" not in result[2]
    scored = scores(folder)[0]
    assert scored["truncated"] == 1.0
    assert scored["rouge"] is scored["meteor"] is scored["bleu"] is summary(folder)["metrics"]["meteor"] is None


def test_another_task_has_its_own_metrics(
    run: Path, call: Call, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, tables and criteria are the task's: another task needs no change to the evaluation."""
    criterion = Criterion("answers", ("Say whether the Actual Output answers the Input.",), ("source", "completion"))
    other = replace(
        TASKS["tldr"],
        evaluation=TaskEvaluation(
            measurer=lambda splits, config: lambda prompt, rollout: {"valid": float("{" in rollout.text)},
            headlines=(),
            tables=(MetricTable("JSON", (Metric("valid", "valid", ".0%"),)),),
            criteria=(criterion,),
        ),
        prompts=TaskPrompts(
            variant=lambda settings, text: replace(settings, system_prompt=f"Answer in JSON: {text}"),
            baselines=("plain",),
        ),
    )
    monkeypatch.setitem(TASKS, "tldr", other)
    folder = folder_of(call("baseline", *_settings(run), "--judge", "judge-a", "--rounds", 1), "valid")
    assert folder.name == "baseline-tiny-plain-test"
    row = scores(folder)[0]
    assert row["composite"] == row["answers"]
    assert "meteor" not in row


def test_a_task_without_criteria_has_no_judge(call: Call, server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a flag names is refused, before anything is loaded or asked; one of the environment is passed over, as
    an export that serves other tasks is no reason to fail."""
    with monkeypatch.context() as patch:
        patch.setattr("smolsum.results.evaluate.run.evaluate", lambda *_, **__: pytest.fail("something was loaded"))
        for task in ("doc-qa", "strict-json"):
            for flag in ("--judge=judge-a", "--second-judge=judge-b"):
                assert_refused(call("baseline", "--task", task, flag), task, "criteria")
    monkeypatch.setenv("SMOLSUM_JUDGE_MODEL", "judge-a")
    few = ("--set", "task.test_prompts=3", "--set", "sampling.max_new_tokens=4")
    out, err = done(call("baseline", "--task", "strict-json", *few, "--prompt", "plain"))
    assert "judge" not in summary(Path(out.strip()))
    assert "judge" not in err
    assert not server.asked


@pytest.mark.slow
def test_the_user_may_decline_on_a_terminal(run: Path, call: Call, server: JudgeServer) -> None:
    """Before the first call; nothing is asked then, and all other metrics are saved."""
    with Terminal(["eval", str(run), "--judge", "judge-a", "--name", "declined"]) as terminal:
        terminal.until("continue?")
        terminal.send("n\n")
        assert terminal.code() == 130
    assert f"judge judge-a: {5 * QUESTIONS} calls" in terminal.text
    assert "judging cancelled" in terminal.text
    assert not server.asked
    assert (run / "eval" / "declined" / "scores.jsonl").exists()
    done(call("eval", run, "--judge", "judge-a", "--rounds", 1, "--name", "declined", "--yes"))


def test_judging_goes_on_after_an_interruption(run: Path, call: Call, server: JudgeServer) -> None:
    """Ctrl-C says how to go on and keeps what was judged; the same command asks the rest."""
    command = ["eval", run, "--judge", "judge-a", "--rounds", 2, "--concurrency", 1, "--name", "stopped"]
    server.mischief = lambda prompt, before: os.kill(os.getpid(), signal.SIGINT) if len(server.asked) == 6 else None
    code, out, err = call(*command)
    assert (code, out) == (130, "")
    assert f"hint: smolsum {' '.join(map(str, command))}" in err
    assert len(read_jsonl(run / "eval" / "stopped" / "judgements.jsonl")) == 5
    server.recover()
    done(call(*command))
    assert len(server.asked) == 2 * QUESTIONS - 5


@pytest.mark.slow
def test_judging_goes_on_after_a_kill(run: Path, call: Call, server: JudgeServer) -> None:
    """After kill -9 the same command asks only what is missing: no judgement that was written is asked again."""
    command = ["eval", run, "--judge", "judge-a", "--rounds", 3, "--concurrency", 1, "--name", "killed"]
    file = run / "eval" / "killed" / "judgements.jsonl"
    started = [sys.executable, "-m", "smolsum", *map(str, command)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        server.mischief = lambda prompt, before: process.kill() if len(server.asked) == 8 else None
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    before = read_jsonl(file)
    assert len(before) == 7
    assert len(read_jsonl(run / "eval" / "killed" / "generations.jsonl")) == TESTS
    server.recover()
    assert folder_of(call(*command)) == run / "eval" / "killed"
    assert len(server.asked) == 3 * QUESTIONS - len(before)
    after = read_jsonl(file)
    assert after[: len(before)] == before
    assert len({(row["id"], row["round"], row["metric"]) for row in after}) == len(after) == 3 * QUESTIONS
