import json
from pathlib import Path
from typing import Any

import pytest
from support.calls import Call, done
from support.data_files import lines
from support.places import ROOT

from smolsum.config.hub import hub_name
from smolsum.config.resolve import resolve
from smolsum.tasks import TASKS

COLUMNS = {
    "news": ("article", "highlights", "id"), "xsum": ("document", "summary", "id"),
    "abstracts": ("article", "abstract", "section_names"), "dialogues": ("dialogue", "summary", "id"),
}  # fmt: skip
"""of each: post, reference, and one that is neither, as the cards of the data sets name them"""
OWN = sorted(name for name, table in TASKS["tldr"].presets.profiles.items() if "data" in table)


@pytest.mark.parametrize("preset", OWN)
def test_a_preset_reads_its_columns(preset: str, tmp_path: Path, call: Call) -> None:
    """`smolsum data` shows rows and prompt; a row without a post is left out, with a warning."""
    post, reference, other = COLUMNS[preset]
    for split in ("train", "validation", "test"):
        rows = [{post: f"Ann met Bo in {n}, at {split}.", reference: f"They met in {n}.", other: n} for n in range(5)]
        lines(tmp_path / f"{split}.jsonl", [*rows, {post: "", reference: "Nothing.", other: "5"}])
    shown = call("data", "tldr", "--preset", preset, f"--set=data.path={tmp_path}", "--preview=1")
    out, err = done(shown, "1 of 6 rows of the train split have an empty post")
    first = json.loads(out.splitlines()[0])
    assert (first["prompt"], first["completion"]) == ("Ann met Bo in 0, at train.", "They met in 0.")
    system = resolve(TASKS, flags={"task.name": "tldr"}, presets=(preset,)).config.task.system_prompt
    assert f"system prompt: {system}\n" in err


@pytest.mark.parametrize("preset", OWN)
def test_a_preset_can_reach_its_target(preset: str) -> None:
    """The names on the hub are names, and no completion is cut before its target."""
    config = resolve(TASKS, flags={"task.name": "tldr"}, presets=(preset,)).config
    assert hub_name(config.data.path)
    assert config.sampling.max_new_tokens >= config.task.needed_tokens + config.rewards.overlong_buffer
    assert TASKS["tldr"].check(config) == []
    assert config.data.long_prompts == "drop"


def test_a_preset_says_what_it_has_not_seen() -> None:
    """None of them has been run on its data, and each says so."""
    text = (ROOT / "presets" / "tasks" / "tldr.toml").read_text(encoding="utf-8")
    above = {name: text.split(f"\n[profiles.{name}.data]")[0].rsplit("\n\n", 1)[1] for name in OWN}
    assert all(
        "No table" in said and "not been run" in " ".join(said.replace("#", "").split()) for said in above.values()
    )


@pytest.mark.parametrize(
    ("task", "presets", "flags", "variant", "asked"),
    [
        ("tldr", ["dialogues"], {}, "40-words", "Say who does, wants or decides what. Use exactly 40 words."),
        ("tldr", [], {"task.system_prompt": "Sum up."}, "64-tokens", "Sum up. Use exactly 64 tokens."),
        ("doc-qa", [], {"task.system_prompt": "Sum up."}, "limit", "Sum up."),
    ],
)  # fmt: skip
def test_a_baseline_asks_with_the_prompt_that_is_set(
    task: str, presets: list[str], flags: dict[str, Any], variant: str, asked: str
) -> None:
    """By a preset or a setting; a length is added to it."""
    config = resolve(TASKS, flags={"task.name": task, **flags}, presets=presets).config
    assert TASKS[task].prompts.variant(config.task, variant).system_prompt.endswith(asked)
