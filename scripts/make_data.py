"""Write `builtin:tldr-mini`: seeded posts with references and facts, one Parquet file for each split.

    uv run python scripts/make_data.py

The same command gives the same bytes of text. All of it comes from scripts/tldr_mini.
"""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
from tldr_mini.compose import Story, draw_story, facts, reference

SIZES = {"train": 4000, "validation": 200, "test": 200}
SEED = 64
WORDS = (45, 200)
"""shortest and longest post, in words: about 60 to 250 tokens"""


def stories() -> dict[str, list[Story]]:
    """Return the stories of every split; no two have the same post."""
    rng, seen, splits = random.Random(SEED), set[str](), dict[str, list[Story]]()
    for split, size in SIZES.items():
        splits[split] = []
        while len(splits[split]) < size:
            story = draw_story(rng)
            if story.post not in seen and WORDS[0] <= len(story.post.split()) <= WORDS[1]:
                seen.add(story.post)
                splits[split].append(story)
    return splits


def main() -> None:
    """Make and write the three splits."""
    folder = Path(__file__).parents[1] / "smolsum" / "tasks" / "builtin" / "tldr-mini"
    folder.mkdir(parents=True, exist_ok=True)
    for split, written in stories().items():
        frame = pl.DataFrame(
            {
                "id": [f"{split}-{n:04d}" for n in range(len(written))],
                "prompt": [story.post for story in written],
                "completion": [reference(story) for story in written],
                "facts": [facts(story) for story in written],
            }
        )
        frame.write_parquet(folder / f"{split}.parquet", compression="zstd", compression_level=19)
        print(split, len(written), (folder / f"{split}.parquet").stat().st_size)


if __name__ == "__main__":
    main()
