"""Evidence: what may be shared of a run, and what stays."""

import json
from pathlib import Path

import tomli

from smolsum.files import read_jsonl
from smolsum.runs.evidence import write_evidence
from smolsum.runs.paths import RunPaths

CONFIG = """
[run]
dir = "/home/ann/runs"
mirror = "s3://acme/runs"
track = "wandb"
track_project = "acme"
plugins = "/home/ann/a.py,rewards/b.py"
[model]
path = "~/models/base"
chat_template = "/home/ann/base.jinja"
[data]
path = "owner/name@main"
[difficulty]
scores = "/home/ann/runs/tiny/eval/start-train"
[workers]
urls = "http://10.0.0.7:8000"
timeout_s = 300.0
[stages.length.rewards]
length = 1.0
[stages.quality.rewards]
meteor = 1.0
"""
INFO = {
    "argv": ["smolsum", "train", "--set=data.path=/home/ann"],
    "steps": {"length": 2, "quality": 2},
    "revisions": {"owner/name@main": "0" * 40},
    "meteor": "wordnet (/home/ann/nltk_data/corpora/wordnet.zip)",
    "plugins": [{"path": "rewards/b.py", "sha256": "ab"}, {"path": "/home/ann/a.py", "sha256": "cd"}],
    "blas": "/home/ann/lib/libopenblas.so",
    "memory": {"limit": 7, "source": "the memory limit of cgroup /sys/fs/cgroup/user.slice/ann"},
}
SUMMARY = {
    "n": 1, "step": 1, "judge": "judge-a at http://10.0.0.8/v1, 2 rounds", "judging": {
        "endpoint": "http://10.0.0.8/v1", "missing": [{"id": "a", "error": "it said: my post", "attempts": 3}],
    },
}  # fmt: skip
SCORE = {
    "id": "a", "data": "ff", "text": "my post", "judge": SUMMARY["judge"], "meteor": 0.5, "note": "my post",
    "rounds": {"clarity": [0.5, None]}, "more": {"said": ["my post"]},
}  # fmt: skip


def test_what_stays_and_what_is_shared(tmp_path: Path) -> None:
    """Every key of a record that may name a machine, a folder or a text."""
    run = RunPaths(tmp_path / "runs" / "mine")
    folder = run.evaluation("start-test")
    folder.mkdir(parents=True)
    run.config.write_text(CONFIG)
    run.info.write_text(json.dumps(INFO))
    rows = [{"step": step, "stage": "length", "loss": 0.5, "workers/http://10.0.0.7:8000": 1} for step in (1, 2, 3)]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    (folder / "scores.jsonl").write_text(f"{json.dumps(SCORE)}\n")
    said: list[str] = []

    made = write_evidence(run, 1, tmp_path / "out", "again", said.append)

    assert not said
    config = tomli.loads(made.config.read_text())
    assert config == {
        "run": {"plugins": "a.py,b.py"},
        "model": {"path": "base", "chat_template": "base.jinja"},
        "data": {"path": "owner/name@main"},
        "difficulty": {"scores": "start-train"},
        "workers": {"timeout_s": 300.0},
        "stages": {"length": {"rewards": {"length": 1.0}}},
    }
    info = json.loads(made.info.read_text())
    assert info == {
        "steps": {"length": 1},
        "revisions": INFO["revisions"],
        "meteor": "wordnet (wordnet.zip)",
        "memory": {"limit": 7, "source": "the memory limit of cgroup"},
        "plugins": [{"path": "b.py", "sha256": "ab"}, {"path": "a.py", "sha256": "cd"}],
    }
    assert read_jsonl(made.metrics) == [{"step": 1, "stage": "length", "loss": 0.5}]
    summary = json.loads((made.evaluation("start-test") / "summary.json").read_text())
    assert summary["judging"] == {"missing": [{"id": "a", "attempts": 3}]}
    assert summary["judge"].startswith("judge-a at endpoint ")
    assert summary["judge"].endswith(", 2 rounds")
    (score,) = read_jsonl(made.evaluation("start-test") / "scores.jsonl")
    assert score == {
        "id": "a", "data": "ff", "judge": summary["judge"], "meteor": 0.5, "rounds": {"clarity": [0.5, None]},
    }  # fmt: skip


def test_a_start_that_is_not_complete_is_not_shared(tmp_path: Path) -> None:
    """The sample of a run that was stopped compares with no other evaluation; what completes it is said."""
    run, said = RunPaths(tmp_path / "runs" / "mine"), list[str]()
    run.evaluation("start-test").mkdir(parents=True)
    run.config.write_text(CONFIG)
    run.info.write_text(json.dumps(INFO))
    (run.evaluation("start-test") / "summary.json").write_text(json.dumps({**SUMMARY, "whole": 2}))
    (run.evaluation("start-test") / "scores.jsonl").write_text(f"{json.dumps(SCORE)}\n")
    made = write_evidence(run, 1, tmp_path / "out", "again", said.append)
    assert not made.evaluation("start-test").exists()
    assert "1 of 2 examples" in said[0]
    assert run.resume_command in said[0]
