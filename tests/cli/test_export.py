"""`smolsum export`: the files answer as the run was evaluated, every number of the card is the run's, nothing private
leaves the machine."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tomli
import yaml
from support.calls import Call, done
from support.disks import mounted
from support.judge_server import JudgeServer, failure
from support.refusals import assert_refused
from support.training import arguments, make_data

from smolsum.cli import main
from smolsum.errors import SmolsumError, UsageError
from smolsum.files import locked, read_jsonl
from smolsum.policy.load import load_policy
from smolsum.policy.logprobs import group_logprobs
from smolsum.policy.sampling import generate
from smolsum.results.report.card import CardFacts, card_files
from smolsum.results.report.results import mean_interval
from smolsum.runs.paths import RunPaths

LINK = re.compile(r'\[([^\]]+)\]\(([^) ]+) "([^"]+)"\)')
NUMBER = re.compile(r"(?<![\w.])[\N{MINUS SIGN}+-]?\d+(?:\.\d+)?(?:e-?\d+)?")
Export = Callable[..., Path]
SYSTEM = "Summarise the post. Keep the key points and who did what."
SHORT: dict[str, Any] = {
    "stages__length__steps": 2, "stages__quality__steps": 1, "train__checkpoint_every": 1, "train__validate_every": 1,
    "sampling__rollouts": 2, "sampling__max_new_tokens": 24, "task__target_tokens": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `posts`, and `runs` with the runs `whole` and `adapters`."""
    folder = tmp_path_factory.mktemp("home-of-ann")
    data = make_data(folder / "posts")
    for name, more in (("whole", {}), ("adapters", {"model__adapter": "lora", "optimizer__learning_rate": 0.003})):
        assert main.main([*arguments(data, folder / "runs", name, **SHORT, **more), "--quiet"]) == 0
    return folder


@pytest.fixture(scope="module")
def exported(home: Path) -> Path:
    folder = home / "my-model"
    arguments = ["export", "whole", str(folder), "--license", "mit", "--runs-dir", str(home / "runs")]
    assert main.main(arguments) == 0
    return folder


@pytest.fixture
def copied(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "runs" / "whole", tmp_path / "runs" / "whole", symlinks=True))


@pytest.fixture
def export(tmp_path: Path, call: Call) -> Export:
    """The export of a run, and what stderr names of it."""

    def exported(run: Path, *named: object) -> Path:
        done(call("export", run, tmp_path / "out", "--license", "mit"), *named)
        return tmp_path / "out"

    return exported


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The metadata and the text of a card."""
    _, metadata, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


def field_of(path: Path, field: str) -> Any:
    """What a link's title names: a field of a JSON or TOML file, a number made of a column of metrics."""
    if path.suffix == ".jsonl":
        rows = read_jsonl(path)
        if field == "step":
            return len(rows)
        kind, _, key = field.split(" ")
        values = [row[key] for row in rows if row.get(key) is not None]
        return max(values) if kind == "max" else sum(values) / 60
    value = tomli.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())
    while field:
        if field in value:
            return value[field]
        key, _, field = field.partition(".")
        value = value[key]
    return value


def says(text: str, value: Any) -> bool:
    """Whether a cell's text is the value, rounded as far as the text is."""
    if isinstance(value, dict):  # weights of signals
        return text == ", ".join(f"{name} {weight:g}" for name, weight in value.items())
    if not isinstance(value, int | float):
        return text.replace("\\", "") == str(value)
    shown = text.replace("\N{MINUS SIGN}", "-")
    digits = len(shown.rstrip("%").partition(".")[2])
    scale = 100 if shown.endswith("%") else 1
    return abs(float(shown.rstrip("%")) - value * scale) <= 0.5 * 10**-digits + 1e-9


def test_the_files_answer_as_the_run_was_evaluated(home: Path, exported: Path) -> None:
    """The same texts from the chat template's own system message, and no file of the trainer."""
    policy = load_policy(str(exported))
    rows = read_jsonl(home / "runs" / "whole" / "eval" / "quality-test" / "generations.jsonl")
    posts = pl.read_parquet(home / "posts" / "test.parquet")["prompt"]
    chats = [[{"role": "user", "content": post}] for post in posts]
    prompts = policy.tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    seeds = [[place] for place in range(len(prompts))]
    answers = generate(policy.model, prompts, seeds, eos_ids=policy.eos_ids, temperature=0.0, max_new_tokens=24)
    assert [list(one.token_ids) for (one,) in answers] == [row["token_ids"] for row in rows]
    assert not list(exported.rglob("optimizer*"))
    assert not (exported / "meta.json").exists()


def test_merged_adapters_score_as_the_trained_policy(home: Path, call: Call) -> None:
    """Log-probs of the exported whole model are those of base and adapters."""
    out, _ = done(call("export", "adapters", home / "merged", "--runs-dir", home / "runs"), "no licence")
    assert out.strip() == str(home / "merged")
    from smolsum.results.export import find_exported, load_exported

    run, checkpoint = find_exported("adapters", home / "runs", best=False)
    trained, whole, start = (
        load_exported(run, checkpoint),
        load_policy(str(home / "merged")),
        load_policy("builtin:tiny"),
    )
    ids = [[5, 9, 33, 4], [60, 12, 8]]
    scores = [np.array(group_logprobs(one.model, [2, 7, 11], ids)[0]) for one in (trained, whole, start)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)
    assert np.abs(scores[0] - scores[2]).max() > 1e-3


def test_every_linked_number_is_that_of_its_file(exported: Path, home: Path) -> None:
    """Each link's file, next to the card and in the run, has the value that the cell shows."""
    _, text = card_of(exported)
    links = LINK.findall(text)
    assert len(links) > 60
    for shown, path, title in links:
        name, field = title.split(": ", 1)
        copy = exported / path
        own = home / "runs" / "whole" / Path(path).relative_to("evidence/whole")
        assert copy.name == own.name == name
        for file in (copy, own):
            value = field_of(file, field)
            assert says(shown.strip("*"), value), (shown, file, field, value)


@pytest.fixture
def report(home: Path, tmp_path: Path) -> dict[str, Any]:
    """A report about the run `whole` itself."""
    run = home / "runs" / "whole"
    assert main.main(["report", str(run), "--format", "json", "--output", str(tmp_path / "report")]) == 0
    return dict(json.loads((tmp_path / "report" / "report.json").read_text()))


def tables_of(text: str) -> dict[str, list[dict[str, str]]]:
    """The rows of a card's tables by title: texts without links and escapes, by heading without arrow."""
    found = {}
    for title, lines in re.findall(r"\*\*Table \d+: (.*)\*\*\n\n((?:\|.*\n)+)", text):
        head, _, *rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", LINK.sub(r"\1", line))[1:-1]]
            for line in lines.replace("\\_", "_").splitlines()
        ]
        keys = [name.rstrip(" ↑↓") for name in head]
        found[title] = [
            {key: re.sub(r"\\(.)", r"\1", cell) for key, cell in zip(keys, row, strict=True)} for row in rows
        ]
    return found


def test_every_table_is_that_of_the_report(exported: Path, report: dict[str, Any], home: Path) -> None:
    """Each row has the report's text under each heading; a column that was left out is empty there."""
    items = [item for section in report["sections"] for item in section["items"] if "rows" in item]
    # the card shows no folder, and a report of the study calls prompts posts
    known = {item["title"].replace(f"{home}/", "").replace("Post tokens", "Prompt tokens"): item for item in items}
    tables = tables_of(card_of(exported)[1])
    assert len(tables) > 7
    assert tables.keys() - known.keys() == {"Stages"}  # all of its cells are links
    for title, rows in tables.items():
        if title == "Stages":
            continue
        heads = [name.rstrip(" ↑↓") for name in known[title]["columns"]]
        theirs = [{k: c["text"] or "-" for k, c in zip(heads, row, strict=True)} for row in known[title]["rows"]]
        ours = [{head: row.get(head, "-") for head in heads} for row in rows]
        assert not [row for row in ours if row not in theirs], title


def test_every_other_number_is_in_the_report_or_the_settings(
    exported: Path, report: dict[str, Any], home: Path
) -> None:
    """Differences, intervals and prose agree with a report about the run itself."""
    items = [item for section in report["sections"] for item in section["items"]]
    cells = [cell.get("text") or "" for item in items for row in item.get("rows", ()) for cell in row]
    texts = [report["verdict"], *cells, *(item.get("alt", "") for item in items)]
    texts += [note for item in items for note in item["notes"]]
    texts += [line for section in report["sections"] for line in section["text"]]
    known = set(NUMBER.findall(" ".join(texts)))
    _, text = card_of(exported)
    assert report["verdict"] in text.replace("\\", "")
    said = ("up to 24 tokens", "max_new_tokens=24", "--max-tokens 24", "step 3 of the run `whole`", "0.99 million")
    assert [line for line in said if line not in text] == []
    for apart in (LINK, r"\*\*(Table|Figure) \d+:", r"\(figures/figure-\d+\.svg\)", r"- Made with .*"):
        text = re.sub(apart, "", text)
    settings = (home / "runs" / "whole" / "config.toml").read_text()
    own = {"2", "3", "0.99", "24", *NUMBER.findall(settings)}  # steps, millions of parameters, most tokens
    unknown = [one for one in NUMBER.findall(text.replace("\\", "")) if one not in known | own]
    assert not unknown


def test_the_metadata_are_the_evaluations(exported: Path) -> None:
    """model-index has each headline metric, unrounded, with its file; the hub's own parser reads it."""
    from huggingface_hub import ModelCard

    card = ModelCard.load(exported / "README.md")
    summary = json.loads((exported / "evidence/whole/eval/quality-test/summary.json").read_text())
    scores = read_jsonl(exported / "evidence/whole/eval/quality-test/scores.jsonl")
    results = card.data.eval_results
    assert {one.metric_type: one.metric_value for one in results} == {
        one["metric"]: summary["metrics"][one["metric"]]
        for one in summary["headlines"]
        if summary["metrics"][one["metric"]] is not None
    }
    for one in results:
        assert field_of(exported / one.metric_args["file"], one.metric_args["field"]) == one.metric_value
        assert one.metric_args["n"] == 4
        column = {"length/within_tol": "within_tol"}.get(one.metric_type, one.metric_type)
        if "interval_95" in one.metric_args and column in scores[0]:  # the share of wrong facts is a ratio of sums
            own = mean_interval(np.array([row[column] for row in scores], dtype=float))
            np.testing.assert_allclose(one.metric_args["interval_95"], (own.low, own.high), rtol=1e-9)
    assert card.data.license == "mit"
    assert card.data.library_name == "transformers"
    assert any("interval_95" in one.metric_args for one in results)


def test_what_is_private_stays(exported: Path, home: Path) -> None:
    """No text of data or completions, no folder, no host; the system message is needed and is there."""
    rows = read_jsonl(home / "runs" / "whole" / "eval" / "quality-test" / "scores.jsonl")
    posts = pl.read_parquet(home / "posts" / "test.parquet")
    private = [str(home), "home-of-ann", json.loads((home / "runs/whole/status.json").read_text())["host"] + '"']
    private += [row["text"] for row in rows if len(row["text"]) > 20] + posts["prompt"].to_list()
    private += posts["completion"].to_list()
    for path in sorted(exported.rglob("*")):
        if path.is_file() and path.suffix in (".md", ".json", ".jsonl", ".toml", ".svg"):
            text = path.read_text(encoding="utf-8")
            assert not [one for one in private if one in text or json.dumps(one)[1:-1] in text], path
    assert SYSTEM in (exported / "README.md").read_text()


def test_the_evidence_is_a_run_for_reports_and_tests(exported: Path, home: Path, call: Call) -> None:
    """A reader of the card repeats its numbers with the same tools."""
    evidence = exported / "evidence" / "whole"
    out, _ = done(call("report", evidence, "--format", "md", "--output", home / "again"))
    verdict = Path(out.strip()).read_text().splitlines()[2]
    assert verdict in (exported / "README.md").read_text()
    out, _ = done(call("stats", evidence / "eval" / "start-test", evidence / "eval" / "quality-test"))
    assert "meteor" in out.lower()


def test_an_earlier_checkpoint_has_its_own_card(home: Path, call: Call, tmp_path: Path, export: Export) -> None:
    """The card of the length stage knows nothing of what followed; a step without results gets none."""
    run = home / "runs" / "whole"
    early = export(run / "checkpoints" / "step-000002")
    _, text = card_of(early)
    assert "quality" not in text.partition("## Limits")[0]
    assert "step 2 of the run `whole`, in its stage `length`" in text
    assert '[length 1](evidence/whole/config.toml "config.toml: stages.length.rewards")' in text
    evidence = RunPaths(early / "evidence" / "whole")
    assert [row["step"] for row in read_jsonl(evidence.metrics)] == [1, 2]
    assert sorted(path.name for path in evidence.evaluations.iterdir()) == ["length-test", "start-test"]
    step = run / "checkpoints" / "step-000001"
    assert_refused(call("export", step, tmp_path / "none"), f"hint: smolsum eval {step}")
    assert list(tmp_path.iterdir()) == [early]


def texts_of(folder: Path) -> str:
    """All that an export says, apart from weights and tokenizer."""
    paths = [path for path in folder.rglob("*") if path.suffix in (".md", ".json", ".jsonl", ".toml", ".svg")]
    return "".join(path.read_text() for path in paths if path.name != "tokenizer.json")


def test_a_judges_scores_are_in_the_card_and_its_address_is_not(
    copied: Path, server: JudgeServer, call: Call, export: Export
) -> None:
    """Nor what it answered where it failed, nor a command for the folder that the card was made in."""
    first = read_jsonl(copied / "eval" / "quality-test" / "scores.jsonl")[0]
    server.mischief = lambda prompt, before: failure(400, "no: a post") if first["text"] in prompt else None
    done(call("eval", copied, "--judge", "judge-a", "--rounds", 1, "--yes"))
    summary = json.loads((copied / "eval" / "quality-test" / "summary.json").read_text())
    assert server.url in summary["judge"]
    assert "a post" in summary["judging"]["missing"][0]["error"]
    folder = export(copied)
    said = texts_of(folder)
    assert not [one for one in (server.url, "127.0.0.1", "a post", ".tmp", "To judge the rest") if one in said]
    _, text = card_of(folder)
    assert f"[{summary['metrics']['composite']:.3f}](evidence/whole/eval/quality-test/summary.json" in text
    assert re.search(r"Judge: judge-a at endpoint [0-9a-f]{8}, 1 round", text)


def test_a_path_that_looks_like_a_name_of_the_hub(home: Path, copied: Path, export: Export) -> None:
    """The card claims no data set or model of the hub that the run never read, and shows no folder."""
    for path in (copied / "config.toml", copied / "run.json", *copied.glob("eval/*/summary.json")):
        text = path.read_text().replace(str(home / "posts"), "acme/posts").replace("builtin:tiny", "secret/base")
        path.write_text(text.replace('track_project = ""', 'track_project = "acme"'))
    folder = export(copied)
    metadata, text = card_of(folder)
    assert not {"base_model", "base_model_relation", "datasets"} & metadata.keys()
    assert "trained from `base` with GRPO on `posts`" in text
    assert not [one for one in ("acme", "secret") if one in texts_of(folder)]


def test_the_cards_commands_can_be_pasted(copied: Path, export: Export) -> None:
    """Names with spaces are quoted, and a plugin is named."""
    run = copied.rename(copied.with_name("my run (2)"))
    info = json.loads((run / "run.json").read_text())
    plugin = {"path": "/home/ann/brevity.py", "version": "", "sha256": "ab", "rewards": ["brevity"], "tasks": []}
    (run / "run.json").write_text(json.dumps(info | {"plugins": [plugin]}))
    folder = export(run)
    lines = [shlex.split(line) for line in re.findall(r"`(smolsum .*?)`", card_of(folder)[1])]
    commands = {words[1]: words for words in lines if words}
    assert (folder / commands["report"][2] / "run.json").is_file()
    assert (folder / commands["train"][3]).is_file()
    assert commands["train"][4:] == ["--plugin", "brevity.py"]


def test_a_system_message_is_shown_as_it_is(exported: Path) -> None:
    """Tags, Markdown and fences in it are no part of the card's own."""
    system = "Answer in <answer> tags.\n\n# Not a title\n```json\n{}\n```"
    facts = CardFacts("mine", 3, 1000, "float32", system)
    card = card_files(RunPaths(exported / "evidence" / "whole"), facts, exported)["README.md"]
    assert f"\n````text\n{system}\n````\n" in card


def test_adapters_with_a_template_of_the_users_own_need_it(exported: Path) -> None:
    """mlx-lm's server is the program of its that takes one; the template has the system message."""
    facts = CardFacts("mine", 3, 1000, "float32", "Be brief.", adapter=True, own_template=True)
    card = card_files(RunPaths(exported / "evidence" / "whole"), facts, exported)["README.md"]
    assert "which its chat template adds to a chat without one:\n\n```text\nBe brief.\n" in card
    assert '--chat-template "$(cat adapters/chat_template.jinja)"\n' in card
    assert "mlx_lm.generate" not in card


def test_damaged_evaluations_are_left_out_aloud(copied: Path, export: Export) -> None:
    """The card is that of the others, and whole."""
    scores = copied / "eval" / "start-test" / "scores.jsonl"
    scores.write_bytes(scores.read_bytes().partition(b"\n")[2])
    (copied / "eval" / "length-test" / "scores.jsonl").write_text("{\n")
    folder = export(copied, "start-test has 3 scores for 4 examples", "length-test/scores.jsonl:1")
    assert os.listdir(folder / "evidence/whole/eval") == ["quality-test"]


def of_another_base(info: bytes) -> bytes:
    """The model has changed since the training: the card's results would not be its own."""
    found = json.loads(info)
    return json.dumps(found | {"model": found["model"] | {"weights": "0" * 32}}).encode()


@pytest.mark.parametrize(
    ("name", "file", "damage", "named", "error"),
    [
        ("whole", "config.toml", lambda text: text.partition(b"[stages")[0], "config.toml", SmolsumError),
        ("adapters", "run.json", of_another_base, "builtin/tiny", UsageError),
        ("whole", "checkpoints/step-000003/model.safetensors", lambda content: content[:-1], "model.safetensors",
         UsageError),
    ],
)  # fmt: skip
def test_a_damaged_run_is_refused(
    name: str, file: str, damage: Callable[[bytes], bytes], named: str, error: type[SmolsumError], home: Path,
    tmp_path: Path, call: Call,
) -> None:  # fmt: skip
    """Before anything is written."""
    run = Path(shutil.copytree(home / "runs" / name, tmp_path / "runs" / name, symlinks=True))
    content = (run / file).read_bytes()
    (run / file).unlink()  # it may be linked to the run's own
    (run / file).write_bytes(damage(content))
    assert_refused(call("export", run, tmp_path / "out"), named, error=error)
    if damage is of_another_base:
        assert_refused(call("eval", run, "--split", "validation"), named, error=error)
    assert not (tmp_path / "out").exists()


def test_folders_to_write_to(home: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link leads to its target, ~ is the home; the current folder stays."""
    export = ("export", "whole", "--license", "mit", "--runs-dir", home / "runs")
    for folder in ("empty", "here"):
        (tmp_path / folder).mkdir()
    for link, target in (("link", "empty"), ("new", "fresh"), ("loop", "loop")):
        (tmp_path / link).symlink_to(target)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, made in (("link", "empty"), ("new", "fresh"), ("~/mine", "mine")):
        done(call(*export, given))
        assert (tmp_path / made / "README.md").is_file()
    monkeypatch.chdir(tmp_path / "here")
    for given, message in ((".", "in use"), ("x" * 300, "cannot write"), ("../loop", "cannot write")):
        assert_refused(call(*export, given), message)
    assert not os.listdir(".")
    assert sorted(os.listdir(tmp_path)) == ["empty", "fresh", "here", "link", "loop", "mine", "new"]


def test_a_step_that_was_evaluated_elsewhere_has_no_card(copied: Path, tmp_path: Path, call: Call) -> None:
    """On another split; the command that helps comes before anything is written."""
    for folder in (copied / "eval").iterdir():
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"split": "validation"}))
    refused = call("export", copied, tmp_path / "out")
    assert_refused(refused, "was not evaluated on the test split", "hint: smolsum eval")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kilobytes", [100, 2000, 4000])
def test_a_full_disk(home: Path, tmp_path: Path, call: Call, kilobytes: int) -> None:
    """One error, whichever library runs into it, and nothing half-written."""
    with mounted(tmp_path / "disk", kilobytes) as disk:
        full = call("export", "whole", disk / "mine", "--runs-dir", home / "runs")
        assert_refused(full, "the disk is full at", "smolsum export", error=SmolsumError)
        assert not os.listdir(disk)
        assert_refused(call("export", "whole", disk, "--runs-dir", home / "runs"), "in use, as a mount")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nothing OUT", "'nothing'"),
        ("tiny OUT", "'tiny'"),
        ("HOME/posts OUT", "is not a run"),
        ("whole HOME/posts", "is not an empty directory"),
        ("whole HOME/posts/test.parquet", "is not an empty directory"),
        ("whole HOME/posts/test.parquet/x", "hint: choose another directory"),
        ("whole OUT --adapter", "hint: leave --adapter out"),
        ("adapters OUT --adapter", "builtin:tiny, is not on the hub"),
    ],
)
def test_what_cannot_be_exported(line: str, named: str, home: Path, tmp_path: Path, call: Call) -> None:
    given = line.replace("HOME", str(home)).replace("OUT", str(tmp_path / "out"))
    assert_refused(call("export", *given.split(), "--runs-dir", home / "runs"), named)
    assert not list(tmp_path.iterdir())


def test_best_exports_what_eval_calls_the_best(home: Path, tmp_path: Path, call: Call) -> None:
    _, err = done(call("eval", "whole", "--best", "--runs-dir", home / "runs"))
    best = re.search(r"step (\d+) of whole did best", err)
    assert best is not None, err
    done(call("export", "whole", tmp_path / "best", "--best", "--runs-dir", home / "runs"))
    assert f"step {best[1]} of the run `whole`" in card_of(tmp_path / "best")[1]


def test_two_exports_to_one_directory(home: Path, call: Call, tmp_path: Path) -> None:
    """The second is refused while the first is at work; what a killed one left is cleared away."""
    left = tmp_path / ".mine.tmp"
    (left / "figures").mkdir(parents=True)
    (left / "old.safetensors").write_text("half")
    command = ("export", home / "runs" / "whole", tmp_path / "mine", "--license", "mit")
    with locked(left / ".lock", "", ""):
        assert_refused(call(*command), f"{tmp_path / 'mine'} is being exported to by process")
        assert (left / "old.safetensors").exists()
    assert call(*command)[0] == 0
    assert not [name for name in (".lock", "old.safetensors") if (tmp_path / "mine" / name).exists()]
    assert not left.exists()
