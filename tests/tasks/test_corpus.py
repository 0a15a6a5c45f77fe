"""What run.json says of the data: sizes, and lengths in the model's own tokens."""

from smolsum.config.sections import DataConfig
from smolsum.policy.load import load_policy
from smolsum.tasks.data import load_split
from smolsum.training.setup import corpus_facts


def test_facts_of_a_split() -> None:
    """The built-in test split as the built-in model reads it; every length is that of a text."""
    tokenizer = load_policy("builtin:tiny", shapes_only=True).tokenizer
    split = load_split(DataConfig(), "test")
    facts = corpus_facts(split, tokenizer)
    lengths = [len(tokenizer.encode(e.source, add_special_tokens=False)) for e in split.examples]
    assert facts["examples"] == 200
    assert (facts["posts"]["min"], facts["posts"]["max"]) == (min(lengths), max(lengths))
    assert facts["posts"]["mean"] == sum(lengths) / 200
    assert list(facts["references"]) == ["mean", "std", "min", "p50", "p90", "p95", "p99", "max"]
    assert facts["references"]["p50"] == 26
