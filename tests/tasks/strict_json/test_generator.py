"""Prompts from a seed, their schemas, and what is refused."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.calls import Call, done
from support.refusals import assert_refused, refuses

from smolsum.tasks.strict_json.generator import HELD_OUT, LEVELS, TEMPLATES, split_of
from smolsum.tasks.strict_json.schema import conformance, contradiction, satisfies
from smolsum.tasks.strict_json.settings import StrictJsonConfig


def right(schema: dict[str, Any], rng: Random) -> Any:
    """A value that satisfies a schema of the generator."""
    match schema["type"]:
        case "object":
            made = {key: right(part, rng) for key, part in schema["properties"].items()}
            return made | {f"more{n}": n for n in range(schema.get("minProperties", 0) - len(made))}
        case "array":
            return [right(schema["items"], rng) for _ in range(schema["minItems"])]
        case "string":
            return rng.choice(schema.get("enum", ["a", "b"]))
        case "boolean":
            return rng.random() < 0.5
        case _:
            return rng.randrange(0, 10)


@given(st.integers(0, 2**32), st.sampled_from(TEMPLATES))
def test_every_template_asks_for_something_possible(seed: int, template: Any) -> None:
    """Each drawing has a schema without contradiction that a right answer satisfies and conforms to wholly; its text
    names every key and every allowed value, and its depth is that of a right answer."""
    rng = Random(seed)
    asked = template.draw(rng)
    assert contradiction(asked.schema) == ""
    value = right(asked.schema, rng)
    assert satisfies(value, asked.schema, asked.depth)
    assert conformance(value, asked.schema, asked.depth) == 1.0
    assert not asked.depth or not satisfies(value, asked.schema, asked.depth + 1)
    for word in words(asked.schema):
        assert word in asked.text


def words(schema: dict[str, Any]) -> set[str]:
    """The keys and allowed values of a schema."""
    found = {f'"{key}"' for key in schema.get("properties", {})} | set(schema.get("enum", ()))
    for part in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found |= words(part)
    return found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 120) | st.floats(allow_nan=False) | st.sampled_from(["a", "todo"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "age", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, st.integers(0, 500), st.booleans())
def test_conformance_is_1_only_for_what_satisfies(value: Any, seed: int, repaired: bool) -> None:
    """The checks and the library agree on who is right, for arbitrary values and for right ones with one part
    replaced."""
    rng = Random(seed)
    asked = rng.choice(TEMPLATES).draw(rng)
    schema = asked.schema
    if repaired:
        value = right(schema, rng) if rng.random() < 0.2 else spoilt(right(schema, rng), value, rng)
    assert (conformance(value, schema) == 1.0) == Draft202012Validator(schema).is_valid(value)


def spoilt(value: Any, part: Any, rng: Random) -> Any:
    """The value with something in it replaced by `part`."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: part if rng.random() < 0.5 else spoilt(value[key], part, rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], part if rng.random() < 0.5 else spoilt(value[place], part, rng), *value[place + 1 :]]
    return part


def test_splits() -> None:
    """24 templates, as many of each level as the shares say, no prompt twice, the same again from the same seed."""
    assert Counter(t.level for t in TEMPLATES) == dict.fromkeys(LEVELS, 8)
    assert len({t.name for t in TEMPLATES}) == 24
    task = StrictJsonConfig()
    splits = {name: split_of(task, name) for name in ("train", "validation", "test")}
    assert {name: Counter(e.metadata["level"] for e in split.examples) for name, split in splits.items()} == {
        "train": {"simple": 300, "medium": 450, "hard": 750},
        "validation": {"simple": 20, "medium": 30, "hard": 50},
        "test": {"simple": 60, "medium": 90, "hard": 150},
    }
    texts = [e.source for split in splits.values() for e in split.examples]
    assert len(set(texts)) == len(texts) == 1900
    assert len({e.metadata["template"] for e in splits["test"].examples}) == 24
    more = StrictJsonConfig(train_prompts=2000)
    assert split_of(more, "test").fingerprint == splits["test"].fingerprint
    other = StrictJsonConfig(data_seed=1)
    assert split_of(other, "test").fingerprint != splits["test"].fingerprint
    assert splits["test"].fingerprint == "a16b7cf0c27b8325c955a260f110e52c"  # the built-in model has not seen these


def test_balanced_test_split() -> None:
    """A third of each level to report on, as grpo-strict-generation has it; the other splits keep their shares."""
    task = StrictJsonConfig(balanced_test=True, train_prompts=40, validation_prompts=10)
    assert Counter(e.metadata["level"] for e in split_of(task, "test").examples) == dict.fromkeys(LEVELS, 100)
    shares = Counter(e.metadata["level"] for e in split_of(task, "validation").examples)
    assert shares == {"simple": 2, "medium": 3, "hard": 5}
    uneven = split_of(StrictJsonConfig(balanced_test=True, test_prompts=100, train_prompts=40), "test")
    assert sorted(Counter(e.metadata["level"] for e in uneven.examples).values()) == [33, 33, 34]


def test_disjoint_templates() -> None:
    task = StrictJsonConfig(held_out_templates=True, train_prompts=400)
    seen = {name: {e.metadata["template"] for e in split_of(task, name).examples} for name in ("train", "test")}
    assert seen["test"] == set(HELD_OUT)
    assert seen["train"] == {t.name for t in TEMPLATES} - set(HELD_OUT)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"simple": 0.5}, "make 1.3, not 1"),
        ({"simple": 1.0, "medium": 0.0, "hard": 0.0, "held_out_templates": True, "test_prompts": 2000}, "about 814"),
    ],
)
def test_an_impossible_mix(changes: dict[str, Any], says: str) -> None:
    with refuses(says):
        split_of(StrictJsonConfig(**changes), "train")


def test_one_template_goes_on_where_others_are_exhausted() -> None:
    """As many prompts as there are: most simple templates have a few hundred, one has thousands."""
    task = StrictJsonConfig(simple=1.0, medium=0.0, hard=0.0, train_prompts=9000)
    made = Counter(example.metadata["template"] for example in split_of(task, "train").examples)
    assert sum(made.values()) == 9000
    assert made["flat"] > 3 * made["integers"]


def test_data_command(tmp_path: Path, call: Call) -> None:
    """What `smolsum data` writes gives the same splits when it is read; it is never written over."""
    write = ["data", "strict-json", *(f"--set=task.{name}_prompts=20" for name in ("train", "validation", "test"))]
    write += ["--output", str(tmp_path / "made")]
    out, first = done(call(*write))
    assert out == f"{tmp_path / 'made'}\n"
    out, second = done(call("data", "strict-json", f"--set=data.path={tmp_path / 'made'}", "--preview", "2"))
    assert [json.loads(line)["id"] for line in out.splitlines()][:2] == ["train-1", "train-2"]
    prints = [[word for word in text.split() if len(word) == 32] for text in (first, second)]
    assert prints[0] == prints[1]
    assert len(prints[0]) == 3
    assert_refused(call(*write), tmp_path / "made")
    assert_refused(call("data", "stric-json"), "did you mean strict-json?")
