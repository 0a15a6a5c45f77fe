"""`smolsum verify`: an honest run is derived again, bit for bit, and every change of it is found, even with new digests
of everything."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.calls import Call, done
from support.serving import process
from support.training import make_data, trained

from smolsum.files import read_jsonl, replace, to_json
from smolsum.grpo.replay import unequal
from smolsum.policy.cpu.gradient import why_no_bfloat16
from smolsum.runs import checkpoints
from smolsum.runs.digests import EVALUATED, changes, of_bytes, record, record_files
from smolsum.runs.paths import RunPaths, step_name
from smolsum.runs.typed_json import read_object

KEPT = {"train__keep_checkpoints": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "own")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps in two stages, with all checkpoints."""
    return trained(data, tmp_path_factory.mktemp("runs"), "run", "--strategy=finetuned", "--quiet", **KEPT)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "runs" / "run", symlinks=True))


def found(call: Call, run: Path, *flags: object, steps: int = 100) -> dict[str, Any]:
    """What verifying so many steps, all of them at most, and all posts finds."""
    _, out, _ = call("verify", run, f"--steps={steps}", "--posts=100", "--json", *flags)
    return dict(json.loads(out))


def differences(verified: dict[str, Any], part: str) -> list[str]:
    (own,) = (one for one in verified["parts"] if one["name"] == part)
    return list(own["differences"])


def test_an_honest_run_is_derived_bit_for_bit(run: Path, call: Call) -> None:
    out, err = done(call("verify", run, "--steps=100"))
    assert "8 of 8 derived bit for bit, 5 of the checkpoints" in out
    assert "differ" not in out
    assert re.search(r"digest of the run: [0-9a-f]{64}", err)


def test_a_few_steps_are_drawn_by_the_seed(run: Path, call: Call) -> None:
    verified = [found(call, run, f"--seed={seed}", steps=3) for seed in (1, 1, 2)]
    drawn = [one["drawn"] for one in verified]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 3
    assert not any(part["differences"] for one in verified for part in one["parts"])


def test_a_run_with_workers(data: Path, tmp_path: Path, call: Call) -> None:
    """Rollouts that are an update old are sampled again with the weights that they had."""
    with process("--model=tiny", log=tmp_path / "log") as (_, client):
        url = str(client.base_url)
        run = trained(data, tmp_path, "run", "--quiet", "--strategy=finetuned", "--worker", url, **KEPT)
    verified = found(call, run)
    assert not any(part["differences"] for part in verified["parts"])
    (steps,) = (part["verified"] for part in verified["parts"] if part["name"] == "steps")
    # how many are stale at a checkpoint, whose sampler is then not there, depends on how fast the worker was
    words = re.fullmatch(
        r"8 of 8 derived bit for bit, (\d+) of (\d+) rollouts came out again, 5 of the checkpoints", steps
    )
    assert words
    assert words[1] == words[2]
    assert 0 < int(words[2]) <= 64


def test_on_another_machine(copy: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels are others, steps learn from the rollouts as written, and numbers may be rounded."""
    monkeypatch.setenv("SMOLSUM_NATIVE", "none")
    from smolsum.grpo.setup import prepare

    monkeypatch.setattr(prepare, "kernels", lambda: "another processor")
    rows = read_jsonl(copy / "metrics.jsonl")
    rows[3]["grad_norm"] *= 1.0001  # rounded
    rows[5]["grad_norm"] *= 1.1
    write(copy / "metrics.jsonl", rows)
    seal(copy)
    verified = found(call, copy)
    assert verified["exact"] is False
    assert [text.split(" is ")[0] for text in differences(verified, "steps")] == ["step 6: grad_norm"]


@pytest.mark.skipif(bool(why_no_bfloat16()), reason=why_no_bfloat16())
def test_products_in_bfloat16(data: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derived bit for bit where they were trained; on another machine they are named as not verified."""
    medium = "--set=optimizer.matmul_precision=medium"
    run = trained(data, tmp_path, "run", "--strategy=finetuned", "--quiet", medium, **KEPT)
    assert read_object(run / "run.json")["memory"]["chunking"]["bfloat16"] is True
    verified = found(call, run)
    assert not any(part["differences"] for part in verified["parts"])
    assert verified["parts"][2]["verified"].startswith("8 of 8 derived bit for bit")
    from smolsum.grpo.setup import prepare

    monkeypatch.setattr(prepare, "kernels", lambda: "another processor")
    elsewhere = found(call, run)
    assert any("products in bfloat16" in one for one in elsewhere["unverified"])
    assert "steps" not in [part["name"] for part in elsewhere["parts"]]


def test_rollouts_that_do_not_come_out_again(copy: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine a few may; where most do not, the weights or the seeds are not those of the run."""
    from smolsum.grpo import replay
    from smolsum.grpo.setup import prepare

    monkeypatch.setattr(prepare, "kernels", lambda: "another processor")
    own = replay.sample_seeded
    monkeypatch.setattr(
        replay, "sample_seeded", lambda *args, **more: own(args[0], args[1], [[n + 1 for n in row] for row in args[2]],
                                                           *args[3:], **more)
    )  # fmt: skip
    said = differences(found(call, copy, steps=1), "steps")
    assert len(said) == 1
    assert said[0].endswith("rollouts did not come out again")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    replace(path, b"".join(map(to_json, rows)), "")


def seal(run: Path) -> None:
    """Make new digests, as someone would who does not want to be found out."""
    paths = RunPaths(run)
    named = [row["of"] for row in read_jsonl(paths.digests)]
    paths.digests.unlink()
    record_files(paths, *(run / name for name in dict.fromkeys(named) if not name.startswith("step-")))
    for line in paths.metrics.read_bytes().splitlines(keepends=True):
        step = json.loads(line)["step"]
        record(paths, {step_name(step): of_bytes(line + paths.completions(step).read_bytes())})


def nudged(row: dict[str, Any], key: str) -> None:
    """Change a number as little as a number can be."""
    row[key] = float(np.nextafter(row[key], np.inf))


METRICS: list[tuple[int, str]] = [(1, "reward"), (1, "grad_norm"), (2, "validation/length/off_target"), (2, "kl")]
ROLLOUTS: list[tuple[int, str, Callable[[list[dict[str, Any]]], object]]] = [
    (3, "text", lambda rows: rows[1].update(text=rows[1]["text"] + " ")),
    (3, "token_ids", lambda rows: rows[2]["token_ids"].append(2)),
    (3, "reward", lambda rows: nudged(rows[3], "reward")),
    (4, "rewards: length", lambda rows: nudged(rows[0]["rewards"], "length")),
    (4, "advantage", lambda rows: nudged(rows[1], "advantage")),
    (4, "seed", lambda rows: rows[2].update(seed=rows[2]["seed"] + 1)),
    (5, "policy_version", lambda rows: rows[0].update(policy_version=3)),
    (5, "finish_reason", lambda rows: rows[1].update(finish_reason="other")),
    (6, "messages", lambda rows: rows[0]["messages"][1].update(content="Another post.")),
    (6, "references", lambda rows: rows[4].update(references=["Another summary."])),
    (7, "prompt_id", lambda rows: rows[0].update(prompt_id="train-999")),
    (8, "sample", lambda rows: rows.reverse()),
]


def test_what_was_changed_in_steps_is_found(copy: Path, call: Call) -> None:
    """Sixteen changes, each too small to be seen, with new digests."""
    paths, rows = RunPaths(copy), read_jsonl(copy / "metrics.jsonl")
    for step, key in METRICS:
        nudged(rows[step - 1], key)
    write(paths.metrics, rows)
    for step, _, change in ROLLOUTS:
        rollouts = read_jsonl(paths.completions(step))
        change(rollouts)
        write(paths.completions(step), rollouts)
    seal(copy)
    verified = found(call, copy)
    assert differences(verified, "files") == []
    said = differences(verified, "steps")
    for step, key in METRICS:
        assert any(text.startswith(f"step {step}: {key} is ") for text in said), key
    for step, key, _ in ROLLOUTS:
        assert any(text.startswith(f"step {step}, rollout ") and f": {key}" in text for text in said), key


def test_what_was_changed_in_evaluations_is_found(copy: Path, call: Call) -> None:
    """Scores, a summary, and a completion with all that follows from it."""
    start, after = (copy / "eval" / f"{label}-test" for label in ("start", "quality"))
    scores = read_jsonl(start / "scores.jsonl")
    nudged(scores[0], "meteor")
    write(start / "scores.jsonl", scores)
    summary = json.loads((start / "summary.json").read_text())
    nudged(summary["metrics"], "rouge")
    (start / "summary.json").write_bytes(to_json(summary))
    texts = read_jsonl(after / "generations.jsonl")
    texts[1] = {**texts[1], "text": texts[2]["text"], "token_ids": texts[2]["token_ids"]}
    write(after / "generations.jsonl", texts)
    seal(copy)
    verified = found(call, copy)
    said = differences(verified, "eval/start-test")
    assert [text.split(" is ")[0] for text in said] == [
        f"eval/start-test, {scores[0]['id']}: meteor", "eval/start-test/summary.json: metrics: rouge",
    ]  # fmt: skip
    said = differences(verified, "eval/quality-test")
    assert f"eval/quality-test: the model completes otherwise: {texts[1]['id']}" in said
    assert any(text.startswith(f"eval/quality-test, {texts[1]['id']}: text") for text in said)


def test_what_was_changed_in_checkpoints_is_found(copy: Path, call: Call) -> None:
    """Weights and moments of the optimizer that are others by a single bit, in checkpoints with new checksums."""
    paths = RunPaths(copy)
    for step, name in ((4, "model.safetensors"), (8, "optimizer.safetensors")):
        folder = paths.checkpoint(step)
        arrays = load_file(folder / name)
        key = max(arrays, key=lambda one: arrays[one].size)
        arrays[key] = np.nextafter(arrays[key], np.float32(np.inf))
        save_file(arrays, folder / name, {"format": "pt"})
        meta = json.loads((folder / "meta.json").read_text())
        kept = {k: meta[k] for k in ("stage", "stage_step", "validation", "best", "model", "stage_end") if k in meta}
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "meta.json"}
        shutil.rmtree(folder)
        checkpoints.save(paths, step, lambda at, own=files: [(at / k).write_bytes(v) for k, v in own.items()], kept)
    seal(copy)
    assert changes(paths) == ([], [])
    said = differences(found(call, copy), "steps")
    assert "checkpoint of step 4: another model.safetensors" in said
    assert "checkpoint of step 8: another optimizer.safetensors" in said


def test_a_column_that_no_post_has(copy: Path, call: Call) -> None:
    """An earlier version did not measure it, which is no difference; where one post alone lacks it, it is."""
    folder = copy / "eval" / "length-test"
    rows = [{key: row[key] for key in row if key != "unseen_pairs"} for row in read_jsonl(folder / "scores.jsonl")]
    summary = json.loads((folder / "summary.json").read_text())
    summary["metrics"].pop("unseen_pairs")
    write(folder / "scores.jsonl", rows)
    (folder / "summary.json").write_bytes(to_json(summary))
    seal(copy)
    verified = found(call, copy, steps=0)
    assert differences(verified, "eval/length-test") == []
    assert "eval/length-test: no post has unseen_pairs, which this version measures" in verified["unverified"]
    write(
        folder / "scores.jsonl",
        [{key: row[key] for key in row if key != "meteor"} if not n else row for n, row in enumerate(rows)],
    )
    seal(copy)
    assert any(
        ": meteor is null, derived" in one for one in differences(found(call, copy, steps=0), "eval/length-test")
    )


def test_what_a_run_is_made_from(copy: Path, data: Path, call: Call, tmp_path: Path) -> None:
    """Settings that were changed in both files, and steps that are left out."""
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("eps_high = 0.2", "eps_high = 0.3"))
    info = json.loads((copy / "run.json").read_text())
    info["corpus"]["train"]["examples"] = 13
    (copy / "run.json").write_bytes(to_json(info))
    write(copy / "metrics.jsonl", read_jsonl(copy / "metrics.jsonl")[:-1])
    seal(copy)
    said = differences(found(call, copy, steps=0), "origin")
    assert "run.json: corpus: train: examples is 13, derived 12" in said
    assert any(text.startswith("run.json: fingerprint of stage: length is ") for text in said)
    assert "metrics.jsonl lacks 1 steps: 8" in said


def test_a_run_of_another_version(copy: Path, call: Call) -> None:
    """Its fingerprints cannot be compared; what another version computes may be rounded otherwise."""
    info = json.loads((copy / "run.json").read_text())
    info["versions"]["smolsum"] = "0.0.9"
    (copy / "run.json").write_bytes(to_json(info))
    seal(copy)
    verified = found(call, copy, steps=1)
    assert verified["exact"] is False
    assert verified["unverified"] == ["fingerprints of stages: smolsum 0.0.9 made them, this is 0.1.0"]
    assert not any(part["differences"] for part in verified["parts"])


def test_a_byte_of_any_file(copy: Path) -> None:
    """A changed byte of any file that has a digest is found, and so is a file that is missing."""
    paths, rng = RunPaths(copy), random.Random(1)
    assert changes(paths) == ([], [])
    named = {row["of"] for row in read_jsonl(paths.digests)}
    files = [
        paths.metrics,
        *(copy / "completions").iterdir(),
        *(copy / of for of in named if not of.startswith("step-")),
    ]
    for file in files:
        content = bytearray(file.read_bytes())
        place = rng.randrange(len(content))
        content[place] ^= 1
        file.write_bytes(content)
        assert changes(paths)[0], file
        content[place] ^= 1
        file.write_bytes(content)
    assert changes(paths) == ([], [])
    paths.completions(2).unlink()
    assert changes(paths)[0] == ["step-000002 is not what was written: its line of metrics.jsonl or its completions"]


def test_a_published_digest(run: Path, call: Call) -> None:
    """Whoever has the digest finds even what nothing derives."""
    (digest,) = re.findall(r"digest of the run: (\w+)", done(call("verify", run, "--steps=0", "--posts=0"))[1])
    done(call("verify", run, "--steps=0", "--posts=0", "--digest", digest))
    code, out, err = call("verify", run, "--steps=0", "--posts=0", "--digest", digest[::-1])
    assert code == 1
    assert "as published" in out
    assert f"the digest of the run is {digest}" in err


def test_a_run_without_digests(copy: Path, call: Call) -> None:
    (copy / "digests.jsonl").unlink()
    _, err = done(call("verify", copy))
    assert "not verified: files: there is no digests.jsonl: an earlier version made the run, or it was removed" in err


def test_checkpoints_that_are_gone(copy: Path, call: Call) -> None:
    """A stage whose start is not left cannot be derived; the rest is."""
    shutil.rmtree(RunPaths(copy).checkpoint(5))
    verified = found(call, copy)
    assert "steps 6, 7, 8: no checkpoint before them, in their stage, is left" in verified["unverified"]
    assert any(text.startswith("eval/length-test: the checkpoint of step 5") for text in verified["unverified"])
    assert differences(verified, "steps") == []


def test_a_byte_of_a_checkpoint(copy: Path, call: Call) -> None:
    """Weights have their checksums in meta.json alone; a checkpoint that does not fit them is damaged, not gone."""
    weights = RunPaths(copy).checkpoint(4) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(content)
    said = differences(found(call, copy, steps=0), "files")
    assert said == ["the checkpoint of step 4 is damaged: model.safetensors does not match its checksum"]


def test_the_run_keeps_its_time(copy: Path, call: Call) -> None:
    """`smolsum runs` lists by the time of run.lock; a copy without one gets none."""
    lock = copy / "run.lock"
    os.utime(lock, (1e9, 1e9))
    found(call, copy, steps=0)
    assert lock.stat().st_mtime == 1e9
    lock.unlink()
    found(call, copy, steps=0)
    assert not lock.exists()


def test_files_that_cannot_be_read(copy: Path, call: Call) -> None:
    """What else was found is said."""
    evaluations = copy / "eval"
    (evaluations / "start-test" / "generations.jsonl").unlink()
    (evaluations / "length-test" / "summary.json").write_text('{"n": 2')
    shutil.rmtree(evaluations / "quality-test")
    (copy / "completions" / "step-000003.jsonl").write_text("[1, 2]\n")
    verified = found(call, copy)
    assert len(differences(verified, "files")) == 6
    assert differences(verified, "steps")[-1].startswith("step 3 cannot be derived: ")
    assert differences(verified, "eval/start-test") == ["eval/start-test/generations.jsonl lacks 4 of 4 posts"]
    assert "summary.json is damaged" in differences(verified, "eval/length-test")[0]
    assert "eval/quality-test: it is not there" in verified["unverified"]
    (copy / "metrics.jsonl").write_text("hello\n")
    (part,) = found(call, copy)["parts"]
    assert part["differences"][-1].startswith("nothing more could be verified: ")


def test_evaluations_that_the_training_did_not_make(copy: Path, call: Call) -> None:
    """Those by `smolsum eval` are named; one without a digest was not made by smolsum."""
    done(call("eval", copy, "--split=validation", "--quiet"))
    (own,) = {path.name for path in (copy / "eval").iterdir()} - {f"{n}-test" for n in ("start", "length", "quality")}
    verified = found(call, copy, steps=0)
    assert differences(verified, "files") == []
    assert f"eval/{own}: smolsum eval made it, after the training" in verified["unverified"]
    shutil.copytree(copy / "eval" / own, copy / "eval" / "other-test")
    said = differences(found(call, copy, steps=0), "files")
    assert said == [f"eval/other-test/{name} has no digest" for name in EVALUATED]


def test_a_run_that_an_earlier_version_began(copy: Path) -> None:
    """This one has evaluated it since: what had no digest then is no difference."""
    paths = RunPaths(copy)
    paths.digests.unlink()
    record_files(paths, copy / "eval" / "start-test" / "summary.json")
    assert changes(paths) == (
        [], ["8 steps and 8 files of evaluations have no digest: an earlier version made them, or it was removed"],
    )  # fmt: skip


def test_completions_that_are_not_measured_yet(copy: Path) -> None:
    """A run was killed that had more posts to complete."""
    completions = copy / "eval" / "start-test" / "generations.jsonl"
    content = completions.read_bytes()
    completions.write_bytes(content + content.splitlines(keepends=True)[0])
    assert changes(RunPaths(copy)) == ([], [])
    completions.write_bytes(content[:-1])
    assert changes(RunPaths(copy))[0] == ["eval/start-test/generations.jsonl is not what was written"]


def test_scores_that_are_missing(copy: Path, call: Call) -> None:
    scores = read_jsonl(copy / "eval" / "start-test" / "scores.jsonl")
    write(copy / "eval" / "start-test" / "scores.jsonl", scores[1:])
    said = differences(found(call, copy, steps=0), "eval/start-test")
    assert said == [f"eval/start-test/scores.jsonl lacks 1 of {len(scores)} posts: {scores[0]['id']}"]


def test_what_is_interrupted_tells_what_it_found(copy: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from smolsum.grpo import replay

    rows = read_jsonl(copy / "metrics.jsonl")
    rows[1]["loss"] += 1.0
    log = replay.ReplayKeeper.log

    def stop_after(keeper: replay.ReplayKeeper, metrics: dict[str, Any], rollouts: list[dict[str, Any]]) -> None:
        log(keeper, metrics, rollouts)
        if keeper.at.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(replay.ReplayKeeper, "log", stop_after)
    code, out, err = call("verify", copy, "--steps=8")
    assert code == 130, err
    assert "3 of 8 derived bit for bit" in out
    assert "interrupted; what was verified until then is the same" in err
    assert "not verified: eval/length-test, eval/quality-test, eval/start-test: interrupted" in err
    write(copy / "metrics.jsonl", rows)
    seal(copy)
    code, out, err = call("verify", copy, "--steps=8")
    assert code == 1
    assert "step 2: loss is" in err
    assert "1 difference; interrupted before the rest" in err
    assert found(call, copy)["interrupted"]


def test_long_texts_are_shown_where_they_differ() -> None:
    (said,) = unequal("a" * 200 + "b", "a" * 200 + "c", "text", 0.0)
    assert said == f'text is …{"a" * 28}c", derived …{"a" * 28}b"'


def test_a_digest_that_is_none(run: Path, call: Call) -> None:
    code, _, err = call("verify", run, "--digest=abc")
    assert code == 2
    assert "'abc' is no digest" in err
    assert "loading" not in err
