"""Users' rewards: what they get, what they return, and what happens when they fail."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.custom_rewards import score
from support.refusals import refuses
from support.training import PATIENCE_S

import smolsum
from smolsum.config.sections import Config, DataConfig, RewardsConfig
from smolsum.errors import PluginError
from smolsum.rewards import REWARDS
from smolsum.rewards.combine import score_all, score_and_combine
from smolsum.rewards.custom import make_reward
from smolsum.rewards.signal import Values
from smolsum.types import Prompt, RolloutGroup

Group = Callable[..., RolloutGroup]
MISSING = Config(rewards=RewardsConfig(on_error="missing", timeout_s=PATIENCE_S))


def with_columns(group: RolloutGroup, **columns: Any) -> RolloutGroup:
    """A group whose prompt has a text, and columns of the data."""
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "a post"})
    prompt = Prompt(group.prompt.id, messages, (1,), group.prompt.references, columns)
    return RolloutGroup(prompt, group.rollouts)


@pytest.fixture(name="group")
def _group(group: Group) -> Group:
    """A maker of one prompt's rollouts, where the prompt has a text."""
    return lambda *given: with_columns(group(*given))


def test_a_function_of_trl_gets_what_trl_gives(group: Group) -> None:
    """Texts, ids, the columns and the references, in the order of the groups, once for each completion."""
    seen: dict[str, Any] = {}

    def solution_length(prompts: Any, completions: Any, completion_ids: Any, solution: Any, **kwargs: Any) -> Any:
        seen.update(kwargs, prompts=prompts, completions=completions, completion_ids=completion_ids, solution=solution)
        return [float(len(text)) for text in completions]

    one = with_columns(group(["a b", "c"], ["x"]), solution=3, level="easy")
    two = with_columns(group(["d", "e f g"], ["y", "z"]), solution=4)
    assert score(solution_length, [one, two]) == [[3.0, 1.0], [1.0, 5.0]]
    assert {name for name in seen if not isinstance(seen[name], list)} == {"trainer_state", "log_extra", "log_metric"}
    assert {name: values for name, values in seen.items() if isinstance(values, list)} == {
        "prompts": ["a post"] * 4,
        "completions": ["a b", "c", "d", "e f g"],
        "completion_ids": [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2, 3]],
        "solution": [3, 3, 4, 4],
        "level": ["easy", "easy", None, None],
        "references": [["x"], ["x"], ["y", "z"], ["y", "z"]],
        "completion": ["x", "x", ["y", "z"], ["y", "z"]],
    }


def test_the_column_of_references_keeps_its_name(group: Group) -> None:
    def same(completions: list[str], summary: list[str]) -> list[float]:
        return [float(a == b) for a, b in zip(completions, summary, strict=True)]

    config = Config(data=DataConfig(completion_column="summary"))
    assert score(same, [group(["x", "y"], ["x"])], config) == [[1.0, 0.0]]


def test_conversations_and_whole_steps(group: Group) -> None:
    """With `chats`, TRL's conversational form; with `whole_step`, that of built-in signals, whose values may depend on
    the group."""

    @smolsum.reward(chats=True)
    def polite(prompts: Any, completions: Any) -> list[float]:
        assert prompts[0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a post"}]
        return [float("please" in completion[0]["content"]) for completion in completions]

    @smolsum.reward(whole_step=True)
    def longest(groups: Sequence[RolloutGroup], config: Config) -> Values:
        best = [max(rollout.length for rollout in one.rollouts) for one in groups]
        return [[float(r.length == n) for r in one.rollouts] for one, n in zip(groups, best, strict=True)]

    assert score(polite, [group(["please go", "go"])]) == [[1.0, 0.0]]
    assert score(longest, [group(["a", "a b"]), group(["a b c", "a"])]) == [[0.0, 1.0], [1.0, 0.0]]


def given(values: Any) -> Callable[..., Any]:
    """A reward that returns this."""
    return smolsum.reward(name="given")(lambda completions: values)


@pytest.mark.parametrize(
    "values", [[1, None], (True, None), np.array([1.0, None], dtype=object), iter([np.float32(1), None])]
)
def test_lists_of_all_kinds(values: Any, group: Group) -> None:
    """Whole numbers, booleans and NumPy's numbers; None has no value."""
    assert score(given(values), [group(["a", "b"])]) == [[1.0, None]]


def test_functions_of_a_step_run_at_the_same_time(group: Group) -> None:
    """Two that wait for each other both end; an async one runs beside them, and so does a built-in signal."""
    barrier = threading.Barrier(2, timeout=PATIENCE_S)

    def first(completions: list[str]) -> list[float]:
        barrier.wait()
        return [1.0] * len(completions)

    def second(completions: list[str]) -> list[float]:
        barrier.wait()
        return [2.0] * len(completions)

    async def third(completions: list[str]) -> list[float]:
        await asyncio.sleep(0)
        return [3.0] * len(completions)

    own = {f.__name__: make_reward(f, file=__file__, sha256="") for f in (first, second, third)}
    weights = dict.fromkeys([*own, "rouge"], 1.0)
    scores = score_all([group(["the cat sat on the mat"])], weights, Config(), {**REWARDS, **own})
    assert scores == {"first": [[1.0]], "second": [[2.0]], "third": [[3.0]], "rouge": [[1.0]]}


def test_async_functions_share_an_event_loop_over_steps(group: Group) -> None:
    """What a client made in an earlier step waits on is still of the running loop."""
    lock = asyncio.Lock()

    async def locked(completions: list[str]) -> list[float]:
        async with lock:
            return [float(id(asyncio.get_running_loop()))] * len(completions)

    assert score(locked, [group(["a"])]) == score(locked, [group(["a"])])


def fails_on_b(completions: list[str]) -> list[float]:
    """Divides by zero where a text is b."""
    return [1.0 / (text != "b") for text in completions]


def leaves(completions: list[str]) -> list[float]:
    """Must not end a run without a word."""
    raise SystemExit(len(completions))


async def leaves_the_loop(completions: list[str]) -> list[float]:
    """Must not end the event loop that others share."""
    raise SystemExit(len(completions))


class WeirdError(Exception):
    """Its own class stands for it."""

    def __str__(self) -> str:
        raise ValueError


def weird(completions: list[str]) -> list[float]:
    """Raises what cannot be shown."""
    raise WeirdError


@pytest.mark.parametrize(
    ("function", "named"),
    [
        # the second of the four completions is the first that fails alone
        (fails_on_b, ["sample 1 of prompt 'p'", "ZeroDivisionError", "for text in completions"]),
        (leaves, ["sample 0 of prompt 'p'", "SystemExit 1", "raise SystemExit"]),
        (leaves_the_loop, ["sample 0 of prompt 'p'", "SystemExit 1", "raise SystemExit"]),
        (weird, ["sample 0 of prompt 'p'", "WeirdError: <WeirdError>"]),
    ],
)
def test_an_exception_names_function_sample_and_line(
    function: Callable[..., Any], named: list[str], group: Group
) -> None:
    line = function.__code__.co_firstlineno
    place = [f"'{function.__name__}' (test_custom.py:{line})", f"line {line + 2} of test_custom.py"]
    with refuses(*place, *named, "on_error=missing", error=PluginError):
        score(function, [group(["a", "b"]), group(["b", "c"])])


def test_missing_where_a_sample_fails(group: Group, notes: list[str]) -> None:
    """The other samples keep their values, and one event says how many have none."""
    assert score(fails_on_b, [group(["a", "b"]), group(["b", "c"])], MISSING) == [[1.0, None], [None, 1.0]]
    (note,) = notes
    assert note.startswith("reward_missing: reward 'fails_on_b'")
    assert "2 of 4 completions on sample 1 of prompt 'p'" in note


SHAPES = [(None, "None"), (1.0, "float"), ("ab", "str"), ({"a": 1, "b": 2}, "dict"), ([1.0], "1 v"), ([1.0] * 3, "3 v")]


@pytest.mark.parametrize("config", [Config(), MISSING])
@pytest.mark.parametrize(("returned", "found"), SHAPES)
def test_a_wrong_shape_is_an_error_and_never_missing(returned: Any, found: str, config: Config, group: Group) -> None:
    """There is no telling which values lack."""
    with refuses(f"returned {found}", "2 ", error=PluginError):
        score(given(returned), [group(["a", "b"])], config)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ([1.0, float("nan")], ["sample 1 of prompt 'p'", "nan"]),
        ([float("inf"), 1.0], ["sample 0 of prompt 'p'", "inf"]),
        ([1.0, "good"], ["sample 1 of prompt 'p'", "'good'"]),
        ([1.0, [2.0]], ["sample 1 of prompt 'p'", "[2.0]"]),
        ([1.0, 10**400], ["sample 1 of prompt 'p'", "1000"]),
        ([1.0, 10**5000], ["sample 1 of prompt 'p'", "<int>"]),
        ([1.0, -1e300], ["sample 1 of prompt 'p'", "-1e+300"]),
    ],
)
def test_what_is_no_finite_number_is_named(returned: Any, named: list[str], group: Group) -> None:
    with refuses(*named, error=PluginError):
        score(given(returned), [group(["a", "b"])])


def test_what_a_reward_prints_goes_to_stderr(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout has the run's directory and nothing else."""

    def talks(completions: list[str]) -> list[float]:
        print("scoring")
        return [0.0] * len(completions)

    score(talks, [group(["a"])])
    assert capsys.readouterr() == ("", "scoring\n")


def test_a_reward_changes_neither_data_nor_folder(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gets is its own, and relative paths of the run stay what they were."""
    monkeypatch.chdir(tmp_path)

    def wild(completions: list[str], facts: list[Any], references: list[Any]) -> list[float]:
        values = [float(len(text)) for text in completions]
        completions.clear()
        for one in (*facts, *references):
            one.clear()
        os.chdir("/")
        return values

    found = with_columns(group(["a", "bc"], ["x"]), facts=["f"])
    assert score(wild, [found]) == [[1.0, 2.0]]
    assert (found.prompt.metadata, found.prompt.references) == ({"facts": ["f"]}, ("x",))
    assert Path.cwd() == tmp_path


def positional(completions: list[str], /) -> list[float]:
    """Cannot be called by name."""
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda completions: completions, "name"),
        (smolsum.reward(name="two-words")(lambda completions: completions), "'two-words'"),
        (smolsum.reward(name="_hidden")(lambda completions: completions), "'_hidden'"),
        (positional, "by position only"),
    ],
)
def test_functions_that_cannot_be_signals(function: Callable[..., Any], named: str) -> None:
    with refuses(named):
        make_reward(function, file=__file__, sha256="")


def test_a_column_that_the_data_lack() -> None:
    """Named with the columns that there are; a default makes it optional."""

    def needs(completions: Any, solution: Any, level: Any = None, **kwargs: Any) -> Any:
        return [0.0 for _ in zip(completions, solution, level, kwargs, strict=True)]

    made = make_reward(needs, file=__file__, sha256="")
    made.check_columns("train", ["solution"])
    with refuses("'solution'", "test", "prompts, "):
        made.check_columns("test", ["answer"])


def test_the_first_line_of_the_docstring_is_the_meaning() -> None:
    """Unless a meaning is given."""

    def short(completions: list[str]) -> list[float]:
        """How short it is.

        In words.
        """
        return [0.0] * len(completions)

    assert make_reward(short, file="", sha256="").facts.meaning == "How short it is"
    assert make_reward(smolsum.reward(meaning="brevity")(short), file="", sha256="").facts.meaning == "brevity"


def test_none_is_left_out_of_the_sum_and_a_failure_is_not(group: Group, notes: list[str]) -> None:
    """As in TRL, None says that a reward does not apply to a completion; where it fails, the total is missing."""

    def code(completions: list[str]) -> list[float | None]:
        return [1.0 if text.startswith("code") else None for text in completions]

    def maths(completions: list[str]) -> list[float | None]:
        return [1 / (text != "maths: broken") if "maths" in text else None for text in completions]

    signals = {one.__name__: make_reward(one, file=__file__, sha256="") for one in (code, maths)}
    groups = [group(["code", "maths", "code and maths", "maths: broken", "neither"])]
    scores, totals = score_and_combine(groups, {"code": 1.0, "maths": 2.0}, MISSING, signals)
    assert scores == {"code": [[1.0, None, 1.0, None, None]], "maths": [[None, 1.0, 1.0, None, None]]}
    assert totals == [[1.0, 2.0, 3.0, None, None]]
    (note,) = notes
    assert "1 of 5 completions" in note


@pytest.mark.parametrize("get", [lambda one: one[0]["content"], lambda one: one[-1].get("content")])
def test_a_function_for_messages_needs_chats(get: Callable[[Any], str], group: Group) -> None:
    """The hint of its error says so; with `chats` it works."""

    def polite(completions: list[Any]) -> list[float]:
        return [float("please" in get(completion)) for completion in completions]

    with refuses("@smolsum.reward(chats=True)", error=PluginError):
        score(polite, [group(["please go", ""])])
    assert score(smolsum.reward(chats=True)(polite), [group(["please go", ""])]) == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"range": 3}, "range=3"), ({"name": None}, "name=None"), ({"chats": "yes"}, "chats='yes'"),
        ({"better": "more"}, "higher or lower"), ({"function": "brevity"}, "'brevity'"),
    ],
)  # fmt: skip
def test_options_of_another_type(options: dict[str, Any], named: str) -> None:
    """Refused where the function is marked, with what helps."""
    with refuses(named):
        smolsum.reward(**options)
