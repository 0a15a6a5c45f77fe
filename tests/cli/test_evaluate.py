"""`smolsum eval` and `smolsum baseline` as a user meets them: the command line, a real model, a judge over HTTP."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.calls import Call
from support.judge_server import JudgeServer, answer, failure, serving
from support.training import PATIENCE_S, SIZES, arguments, make_data

from smolsum import console
from smolsum.cli import main
from smolsum.errors import UsageError
from smolsum.evaluate.storage import check_origin
from smolsum.files import read_jsonl
from smolsum.tasks import TASKS
from smolsum.tasks.base import Metric, MetricTable, TaskEvaluation, TaskPrompts
from smolsum.types import Criterion

TESTS = SIZES["test"]
MAX_NEW_TOKENS = 16
CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps, with its data."""
    root = tmp_path_factory.mktemp("runs")
    small = {"stages__length__steps": 1, "stages__quality__steps": 1, "sampling__max_new_tokens": MAX_NEW_TOKENS}
    assert main.main(arguments(make_data(root / "data"), root, "mine", **small)) == 0
    return root / "mine"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SMOLSUM_RUNS_DIR", "SMOLSUM_JUDGE_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield
    console.set_plain(False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    """A judge, which the environment names."""
    with serving() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_bytes()))


def eval_folder(out: str) -> Path:
    return Path(out.splitlines()[-1])


def test_a_run_is_evaluated_without_a_judge(run: Path, call: Call) -> None:
    """The run's own evaluation gains what it lacked; the columns that need a judge are named, with the way to them."""
    code, out, err = call("eval", run)
    assert code == 0
    assert eval_folder(out) == run / "eval" / "quality-test"
    assert "missing: faithfulness, coverage, conciseness, clarity, composite, pass_rate" in err
    assert "OPENAI_API_KEY" in err
    assert "--judge gpt-5-mini-2025-08-07" in err
    rows = read_jsonl(eval_folder(out) / "scores.jsonl")
    assert len(rows) == TESTS
    columns = {"id", "split", "data", "tokens", "within_tol", "over_budget", "off_target", "rouge", "meteor", "bleu"}
    columns |= {"copied", "novel_bigrams", "repeated_trigrams", "empty", "truncated", "facts_right", "facts_missing"}
    assert columns <= rows[0].keys()
    metrics = summary(eval_folder(out))["metrics"]
    lengths = [f"completions/{name}_length" for name in ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")]
    for name in (*lengths, "length/within_tol", "length/over_budget", "length/off_target", "facts/right"):
        assert isinstance(metrics[name], float)
    assert "P99" in err


def test_training_and_eval_agree(run: Path, call: Call) -> None:
    """A checkpoint evaluated again scores as the training's own evaluation did, and in its own folder."""
    before = read_jsonl(run / "eval" / "quality-test" / "scores.jsonl")
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1]
    code, out, _ = call("eval", checkpoint, "--name", "again")
    assert code == 0
    assert eval_folder(out) == run / "eval" / "again"
    after = read_jsonl(eval_folder(out) / "scores.jsonl")
    for old, new in zip(before, after, strict=True):
        assert {key: new[key] for key in ("id", "text", "tokens", "meteor")} == {
            key: old[key] for key in ("id", "text", "tokens", "meteor")
        }


def test_judged_runs_can_be_compared(run: Path, call: Call, server: JudgeServer) -> None:
    """Scores with all rounds, which `stats` takes; other judges are refused; nothing is asked twice."""
    code, out, err = call("eval", run, "--judge", "judge-a", "--rounds", 2, "--second-judge", "judge-b")
    assert code == 0, err
    assert len(server.asked) == 2 * 2 * TESTS * len(CRITERIA)
    assert f"judge judge-a: {2 * TESTS * len(CRITERIA)} calls" in err
    folder = eval_folder(out)
    row = read_jsonl(folder / "scores.jsonl")[0]
    assert row["composite"] == pytest.approx(sum(row[name] for name in CRITERIA))
    assert all(len(row["rounds"][name]) == 2 for name in (*CRITERIA, "composite", "passed"))
    assert row["judge"].startswith(f"judge-a at {server.url}, 2 rounds, prompts ")
    facts = summary(folder)["judging"]
    assert facts["missing"] == []
    assert facts["usage"]["calls"] >= 2 * TESTS * len(CRITERIA)  # one whose connection had gone is asked again
    assert facts["second"]["agreement"]["composite"]["n"] == TESTS
    server.asked.clear()
    # the second judge's scores stay, whichever judge is asked later
    assert call("eval", run, "--judge", "judge-a", "--rounds", 2)[0] == 0
    assert not server.asked
    assert summary(folder)["judging"]["second"]["agreement"] == facts["second"]["agreement"]
    # the same run without a judge keeps what was judged
    assert call("eval", run, "--judge", "none")[0] == 0
    assert read_jsonl(folder / "scores.jsonl")[0] == row
    assert summary(folder)["judging"]["second"]["agreement"] == facts["second"]["agreement"]

    code, out, _ = call("eval", run, "--judge", "judge-b", "--rounds", 2, "--name", "other")
    code, _, err = call("stats", "--paired", folder, eval_folder(out))
    assert code == 2
    assert "judge judge-a" in err
    as_trained = [*_settings(run), "--set=task.target_tokens=42"]
    code, out, err = call("baseline", "--prompt", "64-tokens", *as_trained, "--judge", "judge-a", "--rounds", 2)
    assert code == 0, err
    code, out, err = call("stats", "--paired", eval_folder(out), folder, "--format", "json")
    assert code == 0, err
    assert {"composite", "faithfulness", "tokens"} <= {row["metric"] for row in json.loads(out)["results"]}


def _settings(run: Path) -> list[str]:
    return [f"--set=data.path={run.parent / 'data'}", f"--set=sampling.max_new_tokens={MAX_NEW_TOKENS}"]


def test_baseline_has_a_folder_for_each_prompt(run: Path, call: Call) -> None:
    """Each prompt variant has its folder; a text is a prompt too, a typing error an error."""
    code, out, err = call("baseline", *_settings(run))
    assert code == 0, err
    assert out.splitlines() == ["runs/baseline-tiny-50-words-test", "runs/baseline-tiny-64-tokens-test"]
    first, second = (summary(Path(folder)) for folder in out.splitlines())
    assert first["task"]["system_prompt"].endswith("Use exactly 50 words.")
    assert second["task"]["system_prompt"].endswith("Use exactly 64 tokens.")
    assert first["data"]["test"]["fingerprint"] == second["data"]["test"]["fingerprint"]
    assert first["data"]["test"]["prompts"] != second["data"]["test"]["prompts"]
    code, out, _ = call("baseline", "--prompt", "Say it in one line.", *_settings(run))
    assert code == 0
    assert summary(eval_folder(out))["task"]["system_prompt"] == "Say it in one line."
    code, _, err = call("baseline", "--prompt", "50-wrods")
    assert code == 2
    assert "error: no prompt '50-wrods'" in err
    assert "error: no prompt '0-words'" in call("baseline", "--prompt", "0-words")[2]


def test_a_prompt_is_shown_as_the_model_gets_it(tmp_path: Path, call: Call) -> None:
    """With the numbers of the settings, and not the words that stand for them."""
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "My aunt Edith broke seven cups in March."}) + "\n")
    own = [f"--set=data.path={tmp_path}", "--set=data.prompt_column=text", "--set=sampling.max_new_tokens=4"]
    code, _, err = call("baseline", "--task=ab-judge", "--prompt=7-tokens", "--prompt=9-tokens", *own, "--judge=none")
    assert code == 0, err
    shown = [line for line in err.splitlines() if line.startswith("evaluation ")]
    for line, tokens in zip(shown, (7, 9), strict=True):
        assert line.endswith(f"Notes of {tokens} tokens, then A or B.")


def test_prompts_that_begin_alike_get_folders_of_their_own(run: Path, call: Call) -> None:
    """Each instruction has its folder, the same one every time; both are evaluated."""
    texts = [f"Summarise the post for somebody who has never met its author, in {n} sentences." for n in (2, 3)]
    prompts = [flag for text in texts for flag in ("--prompt", text)]
    code, out, err = call("baseline", *prompts, *_settings(run))
    assert code == 0, err
    folders = [Path(line) for line in out.splitlines()]
    assert [summary(folder)["task"]["system_prompt"] for folder in folders] == texts
    assert len(set(folders)) == 2
    assert call("baseline", *prompts, *_settings(run))[:2] == (0, out)


def test_a_run_keeps_its_own_evaluation(run: Path, call: Call) -> None:
    """A run's own evaluation is not written over with measures of other settings, and a run keeps its model."""
    own = [run / "eval" / "quality-test" / name for name in ("origin.json", "scores.jsonl", "summary.json")]
    before = [path.read_bytes() for path in own]
    code, _, err = call("eval", run, "--set", "task.target_tokens=40")
    assert code == 2
    assert "task.target_tokens 42 then, 40 now" in err
    assert before == [path.read_bytes() for path in own]
    code, out, _ = call("eval", run, "--set", "task.target_tokens=40", "--name", "shorter")
    assert code == 0
    assert summary(eval_folder(out))["task"]["target_tokens"] == 40
    for setting in ("model.path=builtin:tiny-lfm", "lora.rank=4"):
        code, _, err = call("eval", run, "--set", setting)
        assert code == 2
        assert f"so it takes no --set {setting}" in err


def test_other_data_do_not_represent_the_run(run: Path, tmp_path: Path, call: Call) -> None:
    """Whatever their names, they change neither what `eval` nor what `stats` takes for the run."""
    rows = pl.read_parquet(run.parent / "data" / "test.parquet").head(3).to_dicts()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = Path(shutil.copytree(run, tmp_path / "mine"))
    for name in ("aa-test", "zz-test"):
        code, out, err = call("eval", run, "--set=data.path=other", "--name", name)
        assert (code, eval_folder(out)) == (0, run / "eval" / name), err
    code, out, err = call("eval", run)
    assert (code, eval_folder(out)) == (0, run / "eval" / "quality-test"), err
    code, out, err = call("stats", f"{run}/eval/start-test", run)
    assert code == 0, err
    assert "mine: quality-test, the evaluation of its last step; not taken: aa-test (other data)" in err
    assert "zz-test (other data)" in err


def test_results_may_be_named(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of results is no run and no path."""
    monkeypatch.setenv("SMOLSUM_RUNS_DIR", str(run.parent))
    before = sorted(path.name for path in run.iterdir())
    for command in (["eval", "tiny"], ["baseline", "--prompt", "50-words"]):
        code, _, err = call(*command, *_settings(run), "--name", run.name)
        assert code == 2
        assert "is a run, and not a folder for results" in err
        assert sorted(path.name for path in run.iterdir()) == before
        code, _, err = call(*command, *_settings(run), "--name", "../elsewhere")
        assert code == 2
        assert "--name must be a plain name" in err
    code, _, err = call("eval", run, "--name", "a/b")
    assert code == 2
    assert "--name must be a plain name" in err


def test_a_post_without_facts(run: Path, tmp_path: Path, call: Call) -> None:
    """It is counted; the facts of the others are still measured."""
    (tmp_path / "data").mkdir()
    rows = pl.read_parquet(run.parent / "data" / "test.parquet").to_dicts()
    rows[0]["facts"] = []
    (tmp_path / "data" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = call("eval", "tiny", "--set=data.path=data", f"--set=sampling.max_new_tokens={MAX_NEW_TOKENS}")
    assert code == 0, err
    metrics = summary(eval_folder(out))["metrics"]
    rows = [row for row in read_jsonl(eval_folder(out) / "scores.jsonl") if "facts_right" in row]
    assert len(rows) == TESTS - 1
    assert metrics["facts/right"] == pytest.approx(sum(row["facts_right"] for row in rows) / len(rows))
    assert metrics["facts/posts_without"] == 1
    assert "posts without facts" in err


def test_damaged_generations_are_an_error_with_file_and_line(run: Path, call: Call) -> None:
    """Without that line only its example is completed again."""
    path = Path("runs/eval-tiny-test/generations.jsonl")
    assert call("eval", "tiny", *_settings(run))[0] == 0
    lines = path.read_text().splitlines(keepends=True)
    for damage in ({"finish_reason": "eos"}, {"id": 3}, {"text": None}, {"token_ids": ["a"]}):
        path.write_text("".join([lines[0], json.dumps(json.loads(lines[1]) | damage) + "\n", *lines[2:]]))
        code, _, err = call("eval", "tiny", *_settings(run))
        assert code == 1
        assert "generations.jsonl:2 is damaged" in err
    path.write_text("".join([lines[0], *lines[2:]]))
    assert call("eval", "tiny", *_settings(run))[0] == 0
    assert path.read_text().splitlines(keepends=True) == [lines[0], *lines[2:], lines[1]]


def test_seeds_repeat_completions(run: Path, call: Call) -> None:
    """Above temperature 0 the seed decides, and the folder says so."""
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        code, out, _ = call("eval", "tiny", *_settings(run), "--temperature", 1, "--seed", seed, "--name", name)
        assert code == 0
        texts.append([row["text"] for row in read_jsonl(eval_folder(out) / "scores.jsonl")])
    assert texts[0] == texts[1] != texts[2]
    code, out, _ = call("eval", "tiny", *_settings(run), "--temperature", 1, "--seed", 1)
    assert eval_folder(out).name == "eval-tiny-test-t1-seed1"
    code, _, err = call("eval", "tiny", *_settings(run), "--name", "a")
    assert code == 2
    assert "temperature 1, seed 1 then, greedy now" in err


def test_failed_judgements_are_missing_and_asked_again(run: Path, call: Call, server: JudgeServer) -> None:
    """Gaps are counted, listed and in no mean; the command again fills them."""
    first = read_jsonl(run / "eval" / "quality-test" / "scores.jsonl")[0]
    broken = failure(400, "too long")
    server.mischief = lambda prompt, before: broken if first["text"] in prompt else None
    code, out, err = call("eval", run, "--judge", "judge-a", "--rounds", 1, "--name", "gaps")
    assert code == 0
    assert "warning: 4 judgements are missing" in err
    assert "HTTP 400: too long" in err
    rows = read_jsonl(eval_folder(out) / "scores.jsonl")
    assert [row["id"] for row in rows if row["composite"] is None] == [first["id"]]
    assert len(summary(eval_folder(out))["judging"]["missing"]) == 4
    server.mischief = lambda prompt, before: None
    code, out, err = call("eval", run, "--judge", "judge-a", "--rounds", 1, "--name", "gaps")
    assert (code, "missing" in err) == (0, False)
    assert all(row["composite"] is not None for row in read_jsonl(eval_folder(out) / "scores.jsonl"))


def test_a_second_judge_is_asked_though_the_first_fails(run: Path, call: Call, server: JudgeServer) -> None:
    """The first one fails on the way; its scores are kept with all of the second's."""
    broke = failure(429, "no credit", "insufficient_quota")
    server.mischief = lambda prompt, before: (
        broke if server.asked[-1][0] == "judge-a" and len(server.asked) > 9 else None
    )
    command = ["eval", run, "--judge", "judge-a", "--rounds", 1, "--concurrency", 1, "--name", "second"]
    code, _, err = call(*command, "--second-judge", "judge-b")
    assert code == 1
    assert "no credit" in err
    facts = summary(run / "eval" / "second")["judging"]
    assert facts["endpoint"] == facts["second"]["endpoint"] == server.url
    assert len(facts["missing"]) == TESTS * len(CRITERIA) - 9
    assert not facts["second"]["missing"]
    server.mischief = lambda prompt, before: None
    server.asked.clear()
    assert call(*command, "--fresh")[0] == 0
    assert len(server.asked) == TESTS * len(CRITERIA) - 9


def test_a_judge_that_answers_prose(run: Path, call: Call, server: JudgeServer) -> None:
    """No score at all is a failure of the work; what needs no judge is there."""
    server.mischief = lambda prompt, before: answer("A splendid summary.")
    code, _, err = call("eval", run, "--judge", "judge-a", "--rounds", 1, "--attempts", 1, "--name", "prose")
    assert code == 1
    assert "error: the judge judge-a" in err
    assert "A splendid summary." in err
    assert "hint: " in err
    rows = read_jsonl(run / "eval" / "prose" / "scores.jsonl")
    assert "meteor" in rows[0]
    assert "composite" not in rows[0]


def test_a_judge_that_fails_keeps_the_scores_of_another(run: Path, call: Call, server: JudgeServer) -> None:
    """The scores of one judge stay if the next one gives none."""
    command = ["eval", run, "--rounds", 1, "--attempts", 1, "--name", "kept", "--judge"]
    assert call(*command, "judge-a")[0] == 0
    before = (run / "eval" / "kept" / "scores.jsonl").read_bytes()
    server.mischief = lambda prompt, before: failure(500, "oops")
    code, _, err = call(*command, "judge-b")
    assert code == 1
    assert "the judge judge-b gave no score at all: HTTP 500: oops" in err
    assert (run / "eval" / "kept" / "scores.jsonl").read_bytes() == before


def test_other_settings_are_another_evaluation(run: Path, call: Call) -> None:
    """Completions of other settings are never taken for those that were asked for."""
    assert call("eval", "tiny", *_settings(run))[0] == 0
    before = Path("runs/eval-tiny-test/scores.jsonl").read_bytes()
    for change in ("sampling.max_new_tokens=9", "model.dtype=bfloat16", "task.system_prompt=Say it."):
        code, _, err = call("eval", "tiny", *_settings(run), "--set", change)
        assert code == 2
        assert "holds the evaluation of something else" in err
    assert Path("runs/eval-tiny-test/scores.jsonl").read_bytes() == before


def test_what_else_an_evaluation_holds_is_said_in_words(tmp_path: Path) -> None:
    """Other data, other prompts, another tokenizer: fingerprints say nothing to a user."""
    origin = {"fingerprint": "f1", "prompts": "p1", "tokenizer": "t1", "dtype": "float32"}
    check_origin(tmp_path, origin, "")
    for change, said in (
        ({"fingerprint": "f2", "prompts": "p2"}, "other data"),
        ({"prompts": "p2"}, "other prompts"),
        ({"tokenizer": "t2", "dtype": "bfloat16"}, "another tokenizer; dtype float32 then, bfloat16 now"),
    ):
        with pytest.raises(UsageError) as caught:
            check_origin(tmp_path, origin | change, "")
        assert str(caught.value).endswith(f"holds the evaluation of something else: {said}")


def test_a_damaged_summary_is_an_error(run: Path, call: Call) -> None:
    """With a remedy."""
    assert call("eval", run, "--name", "torn")[0] == 0
    (run / "eval" / "torn" / "summary.json").write_text("{")
    code, _, err = call("eval", run, "--name", "torn")
    assert code == 1
    assert "hint: remove " in err


@pytest.mark.parametrize(
    ("args", "environ", "code", "says"),
    [
        (["--judge", "judge-a"], {}, 2, "no key for the judge judge-a"),
        (["--judge", "judge-x"], {"OPENAI_BASE_URL": ""}, 2, "no key"),
        (["--judge", "judge-a"], {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, 3, "does not answer"),
        (["--second-judge", "judge-b"], {}, 2, "needs a first one"),
        (["--judge", "a", "--second-judge", "a"], {}, 2, "its own second judge"),
        (["--rounds", "0"], {}, 2, "--rounds"),
        (["--temperature", "inf"], {}, 2, "--temperature inf is not a finite number"),
        (["--temperature", "nan"], {}, 2, "--temperature"),
        (["--deadline", "inf"], {}, 2, "--deadline inf is not a finite number"),
        (["--config", "x.toml"], {}, 2, "takes no --config"),
        (["--preset", "tiny"], {}, 2, "takes no --preset"),
    ],
)
def test_bad_requests_are_one_error(
    args: list[str],
    environ: dict[str, str],
    code: int,
    says: str,
    run: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One error, one hint, the exit code of its kind."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    got, out, err = call("eval", run, *args)
    assert (got, out) == (code, "")
    assert says in err
    assert len([line for line in err.splitlines() if line.startswith(("error:", "hint:"))]) == 2


def test_unknown_judge_is_one_error(run: Path, call: Call, server: JudgeServer) -> None:
    """The endpoint's own names are offered."""
    code, _, err = call("eval", run, "--judge", "judge-x", "--name", "unknown")
    assert code == 2
    assert "has no judge 'judge-x'" in err
    assert "hint: did you mean judge-" in err


def test_unknown_target_is_one_error(call: Call) -> None:
    """What is neither run, checkpoint nor model is an error, without a download."""
    for reference in ("runs/nothing", "/nowhere/at/all", "missing"):
        code, _, err = call("eval", reference)
        assert code == 2
        assert "hint: " in err


@pytest.mark.parametrize(
    ("content", "says"), [("", "test"), ('{"id": 1, "prompt": "a", "completion": "b"}\n' * 2, "id")]
)
def test_bad_splits_are_usage_errors(content: str, says: str, tmp_path: Path, call: Call) -> None:
    """An empty split and ids that occur twice are errors before anything is generated."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").write_text(content)
    code, _, err = call("eval", "tiny", "--set=data.path=data")
    assert code == 2
    assert err.count("error:") == 1
    assert says in err


def test_one_split_without_facts_and_references(tmp_path: Path, call: Call) -> None:
    """Data of one's own need no other split, no facts and no references: what needs them is missing, by name."""
    (tmp_path / "data").mkdir()
    row = {"prompt": "My cat ate my lunch, and I do not know what to do."}
    (tmp_path / "data" / "test.jsonl").write_text(json.dumps(row) + "\n")
    code, out, err = call("eval", "tiny", "--set=data.path=data", "--set=sampling.max_new_tokens=8")
    assert code == 0, err
    assert "has no column 'completion', only prompt; not measured on test: rouge, meteor, bleu" in err
    assert "missing: ROUGE-L, METEOR, BLEU; the data have no references" in err
    assert "posts without facts; the data have no facts" in err
    assert "column `facts`" not in err
    scored = read_jsonl(eval_folder(out) / "scores.jsonl")[0]
    assert scored["truncated"] == 1.0
    assert scored["rouge"] is scored["meteor"] is scored["bleu"] is None
    assert summary(eval_folder(out))["metrics"]["meteor"] is None


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
    code, out, err = call("baseline", *_settings(run), "--judge", "judge-a", "--rounds", 1)
    assert code == 0, err
    assert eval_folder(out).name == "baseline-tiny-plain-test"
    row = read_jsonl(eval_folder(out) / "scores.jsonl")[0]
    assert row["composite"] == row["answers"]
    assert "valid" in err
    assert "meteor" not in row


@pytest.mark.parametrize("task", ["doc-qa", "strict-json"])
@pytest.mark.parametrize("flags", [("--judge", "judge-a"), ("--second-judge", "judge-b")])
def test_a_judge_is_refused_where_the_task_has_no_criteria(
    task: str, flags: tuple[str, ...], call: Call, server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a flag, before anything is loaded or asked."""

    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("something was loaded")

    monkeypatch.setattr("smolsum.evaluate.run.evaluate", load)
    code, out, err = call("baseline", "--task", task, *flags, "--runs-dir", tmp_path)
    assert (code, out) == (2, ""), err
    assert f"error: task {task} has no criteria for a judge" in err
    assert not server.asked


def test_a_judge_of_the_environment_is_passed_over_where_the_task_has_no_criteria(
    call: Call, server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that serves other tasks is no reason to fail."""
    monkeypatch.setenv("SMOLSUM_JUDGE_MODEL", "judge-a")
    few = ("--set", "task.test_prompts=3", "--set", "sampling.max_new_tokens=4")
    code, out, err = call("baseline", "--task", "strict-json", *few, "--prompt", "plain", "--runs-dir", tmp_path)
    assert code == 0, err
    assert "judge" not in summary(eval_folder(out))
    assert "judge" not in err
    assert not server.asked


@pytest.mark.slow
def test_the_user_may_decline_on_a_terminal(run: Path, call: Call, server: JudgeServer) -> None:
    """Before the first call; nothing is asked then, and all other metrics are saved."""
    command = [sys.executable, "-m", "smolsum", "eval", str(run), "--judge", "judge-a", "--name", "declined"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=dict(os.environ))
    os.close(theirs)
    seen, answered = b"", False
    try:
        with suppress(OSError):  # the terminal is gone once its process is
            while select.select([ours], [], [], PATIENCE_S)[0] and (part := os.read(ours, 1024)):
                seen += part
                if b"go on?" in seen and not answered:
                    answered = bool(os.write(ours, b"n\n"))
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(ours)
        process.kill()
    assert (process.returncode, out) == (130, b"")
    assert f"judge judge-a: {5 * TESTS * len(CRITERIA)} calls".encode() in seen
    assert b"judging cancelled" in seen
    assert not server.asked
    assert (run / "eval" / "declined" / "scores.jsonl").exists()
    assert call("eval", run, "--judge", "judge-a", "--rounds", 1, "--name", "declined", "--yes")[0] == 0


def test_judging_goes_on_after_an_interruption(run: Path, call: Call, server: JudgeServer) -> None:
    """Ctrl-C says how to go on and keeps what was judged; the same command asks the rest."""
    command = ["eval", run, "--judge", "judge-a", "--rounds", 2, "--concurrency", 1, "--name", "stopped"]
    server.mischief = lambda prompt, before: os.kill(os.getpid(), signal.SIGINT) if len(server.asked) == 6 else None
    code, out, err = call(*command)
    assert (code, out) == (130, "")
    assert f"hint: smolsum {' '.join(map(str, command))}" in err
    known = len(read_jsonl(run / "eval" / "stopped" / "judgements.jsonl"))
    assert known == 5
    server.asked.clear()
    server.mischief = lambda prompt, before: None
    assert call(*command)[0] == 0
    assert len(server.asked) == 2 * TESTS * len(CRITERIA) - known


@pytest.mark.slow
def test_judging_goes_on_after_a_kill(run: Path, call: Call, server: JudgeServer) -> None:
    """After kill -9 the same command asks only what is missing: no judgement that was written is asked again."""
    command = ["eval", run, "--judge", "judge-a", "--rounds", 3, "--concurrency", 1, "--name", "killed"]
    lines = run / "eval" / "killed" / "judgements.jsonl"
    started = [sys.executable, "-m", "smolsum", *map(str, command)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        server.mischief = lambda prompt, before: process.kill() if len(server.asked) == 8 else None
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    before = read_jsonl(lines)
    total = 3 * TESTS * len(CRITERIA)
    assert len(before) == 7
    assert len(read_jsonl(run / "eval" / "killed" / "generations.jsonl")) == TESTS
    server.asked.clear()
    server.mischief = lambda prompt, before: None
    code, out, err = call(*command)
    assert code == 0, err
    assert len(server.asked) == total - len(before)
    after = read_jsonl(lines)
    assert after[: len(before)] == before
    assert len({(row["id"], row["round"], row["metric"]) for row in after}) == len(after) == total
    assert out == f"{run / 'eval' / 'killed'}\n"
