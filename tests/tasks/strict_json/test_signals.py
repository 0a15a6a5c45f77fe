"""The seven signals on cases worked by hand from their formulas, and on any text whatever."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smolsum.tasks import TASKS
from smolsum.tasks.strict_json import signals
from smolsum.tasks.strict_json.answer import depth, take_apart
from smolsum.tasks.strict_json.settings import StrictJsonConfig
from smolsum.types import Prompt

GOOD = '```json\n{"a": 1}\n```'


def prompt(schema: dict[str, Any], asked: int | None = None) -> Prompt:
    return Prompt("p", (), (1,), (), {"schema": schema, "depth": asked})


def fenced(value: object) -> str:
    return f"```json\n{json.dumps(value)}\n```"


def same_lines(*lines: str, times: int = 1) -> str:
    return "\n".join([*lines] * times)


SCORES: dict[str, dict[float, list[str]]] = {
    # a block marked as JSON, another, none; a block inside the thoughts is no answer
    "format": {
        1.0: [GOOD, '```JSON\n{"a": 1}```'],
        0.5: ['```\n{"a": 1}\n```', '```python\n{"a": 1}\n```', '```json5\n{"a": 1}\n```'],
        0.0: ['{"a": 1}', '```json\n{"a": 1}', f"<think>{GOOD}</think>", ""],
    },
    # by the place of the first error; 0.1 for what Python would let pass and JSON does not
    "validity": {
        1.0: [GOOD, '{"a": 1}'],
        0.7: [
            '```json\n{"a": [1, 2, 3, 4, 5, 6, 7], }\n```',  # fails at 29 of 31 characters
            '```json\n{"a": 1',  # cut off at its end
        ],
        0.4: ['```json\n{"abc": 1, "d": x, "efg": 2222}\n```'],  # at 16 of 30
        0.2: ['```json\n{a: 1, "b": 2}\n```'],  # at 1 of 14
        0.1: ['```json\n{"a": NaN}\n```', '```json\n{"a": 1, "a": 2}\n```', f"```json\n{'[' * 100_000}\n```"],
        0.0: ["no JSON here"],
    },
    # by the length of the first thoughts, stripped
    "reasoning": {
        -0.5: [
            GOOD, f"<think>...</think>{GOOD}", f"<think>Your reasoning here</think>{GOOD}",
            f"<think>your reasoning here. Your reasoning here!</think>{GOOD}", "<think>never closed",
        ],
        -0.2: [
            f"<think></think>{GOOD}", f"<think> \n</think>{GOOD}", f"<think>hm</think>{GOOD}",
            f"<think>{'x' * 9}</think>",
        ],
        0.0: [f"<think>{'x' * 10}</think>"],
        10 / 70: [f"<think>here is my reasoning</think>{GOOD}"],
        0.5: [f"<think>  {'x' * 45}\n</think>"],
        1.0: [f"<think>{'x' * 80}</think>", f"<think>{'x' * 500}</think>"],
    },
    # 1 for a closed block or what parses, -1 for signs of an end too soon, 0 without JSON or without such signs
    "truncation": {
        1.0: [
            GOOD, '{"a": 1}', "```json\n{]\n```", '{"a": "{"}', "<think>{</think>[1, 2]",
            '{"a": 1}\n```',  # complete, and closed by a fence that nothing opened
        ],
        0.0: [
            'He said "here: {"a": 1, "b"}',  # the open quote is not in the JSON
            '{"a": 1} and no more', 'Here it is: {"a": 1}',  # bare JSON is all there is, or it does not parse
            "<think>a plan", "{a}", '{"a": NaN}', '{"a": 1, "a": 2}', "I do not know:", "",
        ],
        -1.0: [
            '{"a": 1\n```', '```json\n{"a": 1', '{"a": [1, 2', '{"a": 1},', '{"a": "b}', "```", '{"a": "x\\',
            'Sure:\n```json\n{"a": 1}', 'Here it is: {"a": [1, 2', 'Here it is: {"a": 1, "b":', '{"a": "}", "b": [',
            "```json\n[1, 2]",  # parses, but nothing closed it
            '{"a": 1, "b": "}]',  # open quote, and what would close the bracket is in it
        ],
    },
    # blocks, loops, and the share of distinct lines and trigrams
    "repetition": {
        1.0: [
            GOOD, "ab" * 4, '{"a":' + " " * 40 + "1}", "a " * 5,
            json.dumps([True] * 6, indent=2),  # a loop does not run over the ends of lines
            "\n".join(f"line number {n} of it" for n in range(8)),
            same_lines(*["the very same line"] * 3, "another line here", "the third of them"),  # too few words
            same_lines("same line", "the other", times=3),  # 59 characters are short
        ],
        0.0: [
            same_lines("the same line", "the other one", times=3),  # 2 of 6 lines
            "\n".join(f"key number {n % 3} is here" for n in range(7)),  # 3 of 7 lines
        ],
        -1.0: [
            f"{GOOD}\n{GOOD}", "ab" * 5, "a " * 6, json.dumps([True] * 6),
            "\n".join(f"key number {n % 2} is here" for n in range(8)),  # 2 of 8
            " ".join(["one two three four five six"] * 4),  # of 22 trigrams 6 differ
        ],
    },
    # by the share of the text outside the block
    "strictness": {
        1.0: [GOOD, f"<think>a plan</think>\n{GOOD}"],
        0.5: [f"JSON:{GOOD}", f"0123456789{GOOD}"],
        0.0: [f"Here it is: {fenced(list(range(30)))}", "no block"],  # 12 of 133
        -0.5: [f"Here it is: {GOOD}"],  # 12 of 32
        -1.0: [f"Here is the JSON that you have asked for: {GOOD}"],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("signal", "value", "text"),
    [(name, value, text) for name, scores in SCORES.items() for value, texts in scores.items() for text in texts],
)
def test_a_signal_of_a_text_by_hand(signal: str, value: float, text: str) -> None:
    assert getattr(signals, f"{signal}_reward")(text) == pytest.approx(value)


RECORD = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
FULL = RECORD | {"required": ["name", "age"]}
THREE = {"type": "array", "items": FULL, "minItems": 3, "maxItems": 3}
ANN = {"name": "Ann", "age": 3}


@pytest.mark.parametrize(
    ("value", "schema", "asked", "score"),
    [
        (ANN, FULL, None, 1.0),
        ({"name": "Ann"}, FULL, None, (1 + 0.5 + 1) / 3),  # type, keys, types of those there
        ({"name": 1, "age": "3"}, FULL, None, (1 + 1 + 0) / 3),
        ([], FULL, None, (0 + 0) / 2),
        ([ANN] * 3, THREE, None, 1.0),
        ([ANN] * 2, THREE, None, (1 + 0.7 + 1 + 1 + 1) / 5),  # type, count, item types, keys, types
        ([ANN] * 5, THREE, None, (1 + 0.1 + 3) / 5),  # two off, and 3 // 3 is one
        ([ANN] * 8, THREE | {"minItems": 6, "maxItems": 6}, None, (1 + 0.4 + 3) / 5),  # two off, and 6 // 3 is two
        ([ANN, {}, 7], THREE, None, (1 + 1 + 2 / 3 + (1 + 0 + 0) / 3 + 1) / 5),
        ([1], {"type": "array", "minItems": 4}, None, (1 + 0.25) / 2),
        ({"x": 1}, {"type": "object", "minProperties": 2}, None, (1 + 0.5) / 2),
        ({"s": "no"}, {"type": "object", "properties": {"s": {"enum": ["a", "b"]}}}, None, (1 + 0) / 2),
        ({"a": {"b": 1}}, {"type": "object"}, 4, (1 + 0.5) / 2),
        ([1, 99], {"type": "array", "items": {"type": "integer", "exclusiveMaximum": 9}}, None, (1 + 1 + 0) / 3),
        ({"a": {"b": 1}}, {"type": "object", "properties": {"a": FULL}}, None, (1 + 1 + 0) / 3),  # a's keys
        ({"l": [1]}, {"type": "object", "properties": {"l": {"type": "array", "minItems": 2}}}, None, 2.5 / 3),
        (7, {}, None, 1.0),
    ],
)
def test_schema(value: object, schema: dict[str, Any], asked: int | None, score: float) -> None:
    """The plain mean of the checks that the schema makes."""
    assert signals.schema_reward(fenced(value), prompt(schema, asked)) == pytest.approx(score)


@pytest.mark.parametrize(
    "value", ["9" * 400, "-" + "9" * 400, '{"a":' * 700 + "1" + "}" * 700, "[" * 700 + "]" * 700], ids=len
)
def test_what_a_model_that_loops_may_write(value: str) -> None:
    """Numbers beyond every float and brackets beyond every reader have a score, and no error."""
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "depth": 2}
    check_ranges(f'```json\n{{"age": {value}}}\n```', schema)


LOOPS = (
    ("", "```json {"), ("```json {", " "), ("```", "x"), ("", "``` "), ("", "<think>"), ("<think>", "<think></think"),
    ("{", '"\\"'), ("[", "["), ("", '{"a":'), ("", '{"a": "x", '), ("", "ab1"),
)  # fmt: skip
"""how a text begins, and what a model that loops says then without an end"""


@pytest.mark.parametrize(("start", "said"), LOOPS)
def test_time_does_not_grow_with_the_square_of_the_length(start: str, said: str) -> None:
    """All signals of four million characters end in a moment, where a pattern that begins anew at every fence or tag
    would take hours."""
    text = start + said * (4_000_000 // len(said))
    for name in (*RANGES, "reasoning"):
        getattr(signals, f"{name}_reward")(text)
    take_apart.cache_clear()


def test_weights() -> None:
    """The weights of each stage make 1; without thinking that of reasoning goes to the others in proportion."""
    strategies = TASKS["strict-json"].presets.strategies
    weights = [stage["rewards"] for strategy in strategies.values() for stage in strategy["stages"].values()]
    assert [sum(each.values()) for each in weights] == pytest.approx([1] * 8)
    plain_weights, think_weights = (
        strategies[n]["stages"]["standard"]["rewards"] for n in ("standard", "think-standard")
    )
    plain, think = StrictJsonConfig(), StrictJsonConfig(think=True)
    assert signals.redistributed(think_weights, think) == think_weights
    moved = signals.redistributed(think_weights, plain)
    assert moved == pytest.approx(
        {"format": 0.4 / 3, "validity": 0.2, "schema": 0.8 / 3, "truncation": 0.4 / 3, "repetition": 0.4 / 3}
        | {"strictness": 0.4 / 3, "reasoning": 0.0}
    )
    assert signals.redistributed(plain_weights, plain) == plain_weights
    assert signals.redistributed({"reasoning": 1.0}, plain) == {"reasoning": 1.0}


def test_depth() -> None:
    """Objects inside one another; lists and empty objects do not count."""
    found = [depth(value) for value in (1, [], {}, {"a": 1}, [{"a": []}], {"a": {"b": {}}}, {"a": [{"b": {"c": 1}}]})]
    assert found == [0, 0, 0, 1, 1, 2, 3]


PIECES = st.sampled_from(
    ["```", "```json\n", "<think>", "</think>", "{", "}", "[", "]", '"', '"name"', ":", ",", "1", "true", "NaN", "\n"]
)
TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=40).map("".join),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=12).map(
        lambda value: f"<think>so</think>```json\n{json.dumps(value)}\n```"
    ),
)
SCHEMAS = st.sampled_from([FULL, THREE, {}, {"type": "object", "properties": {"name": THREE}, "minProperties": 2}])
RANGES = {name: set(scores) for name, scores in SCORES.items() if name != "reasoning"}


@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_ranges_hold_for_any_text(examples: int) -> None:
    """Garbled texts and near misses among them: no exception, and each signal in its range."""
    settings(max_examples=examples)(given(TEXTS, SCHEMAS)(check_ranges))()


def check_ranges(text: str, schema: dict[str, Any]) -> None:
    for name, values in RANGES.items():
        assert getattr(signals, f"{name}_reward")(text) in values
    assert -0.5 <= signals.reasoning_reward(text) <= 1.0
    score = signals.schema_reward(text, prompt(schema, 2))
    assert 0.0 <= score <= 1.0
    assert take_apart(text).parses or score == 0.0
