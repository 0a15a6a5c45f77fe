"""A short real training of the built-in model, on unseen posts."""

from pathlib import Path

from smolsum.cli.main import main
from smolsum.runs.record_io import read_summary


def test_forty_steps_move_the_length_to_its_target_and_text_stays_text(tmp_path: Path) -> None:
    """Lengths are nearer to the target than the untrained model's, METEOR has not fallen, and nothing is repeated
    instead of said."""
    command = ["train", "--model=tiny", "--strategy=included", "--reward=meteor", "--set=stages.included.steps=40"]
    assert main([*command, "--set=data.test_rows=100", f"--runs-dir={tmp_path}", "--name=short"]) == 0
    start, end = (read_summary(tmp_path / "short/eval" / f"{label}-test") for label in ("start", "included"))
    assert start.n == end.n == 100
    before, after = start.metrics, end.metrics
    assert after["length/off_target"] < before["length/off_target"]
    assert after["meteor"] > before["meteor"]
    assert after["repeated_trigrams"] < before["repeated_trigrams"] + 0.05
