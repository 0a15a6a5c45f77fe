"""Write SciTLDR's abstracts as data: the abstract is the prompt, its TLDRs the references.

    git clone --depth 1 https://github.com/allenai/scitldr clone
    python3 scripts/scitldr.py clone OUT             # train.jsonl, validation.jsonl and test.jsonl

The splits are those of the data set (Cachola et al. 2020, arXiv:2004.15011). An abstract of the test split is left
out of the others, and one of the validation split out of the training split; so are repeats within a split.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SPLITS = {"test": "test", "validation": "dev", "train": "train"}


def main() -> None:
    """Write the three splits of a clone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    source = args.clone / "SciTLDR-Data" / "SciTLDR-A"
    if not source.is_dir():
        raise SystemExit(f"{args.clone} is no clone of allenai/scitldr: it has no folder SciTLDR-Data/SciTLDR-A")
    args.out.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for split, name in SPLITS.items():
        rows = []
        for line in (source / f"{name}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n"):
            paper = json.loads(line)
            abstract = joined(" ".join(paper["source"]))
            references = [text for text in map(joined, paper["target"]) if text]
            if abstract and references and abstract not in seen:
                seen.add(abstract)
                rows.append({"id": paper["paper_id"], "prompt": abstract, "completion": references})
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        (args.out / f"{split}.jsonl").write_text(text, encoding="utf-8")
        print(f"{split}: {len(rows)}")


def joined(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


if __name__ == "__main__":
    main()
