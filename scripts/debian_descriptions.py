"""Write Debian's package descriptions as data: the long description is the prompt, the synopsis the reference.

    python3 scripts/debian_descriptions.py OUT       # train.jsonl, validation.jsonl and test.jsonl

It needs Debian's package lists and a network (`apt-get`), and neither root nor any change of the system: the index of
translations is fetched into a temporary folder. A package's split follows from its name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

WORDS = 30, 300
"""the least and the most of a long description"""
SYNOPSIS_WORDS = 4
"""the least of a synopsis"""
HELD_OUT = {"validation": 5, "test": 5}
"""per cent of the packages"""


def main() -> None:
    """Fetch the index, and write what is usable of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    rows: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    seen: set[str] = set()
    for package, synopsis, text in entries(index()):
        # variants of a package share their description, and a package of two suites may have two
        if usable(synopsis, text) and not seen & {package, text}:
            seen |= {package, text}
            rows[split_of(package)].append({"id": package, "prompt": text, "completion": synopsis})
    out.mkdir(parents=True, exist_ok=True)
    for split, own in rows.items():
        lines = (json.dumps(row, ensure_ascii=False) for row in sorted(own, key=lambda row: row["id"]))
        (out / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{split}: {len(own)}")


def index() -> str:
    """Return apt's index of English descriptions."""
    with tempfile.TemporaryDirectory() as folder:
        own = [
            f"Dir::State::lists={folder}",
            f"Dir::Cache={folder}",
            "Acquire::Languages=en",
            "APT::Sandbox::User=root",
        ]
        subprocess.run(["apt-get", "-qq", *(f"-o{one}" for one in own), "update"], check=True)
        found = [*Path(folder).glob("*_main_i18n_Translation-en*")]
        if not found:
            raise SystemExit("apt has no index of descriptions: is this Debian, with a network?")
        return "\n\n".join(
            subprocess.run(
                ["/usr/lib/apt/apt-helper", "cat-file", str(path)], check=True, capture_output=True, text=True
            ).stdout
            for path in sorted(found)
        )


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, synopsis and long description of each package; a line with a dot alone parts paragraphs."""
    for paragraph in text.split("\n\n"):
        package = re.search(r"^Package: (.+)", paragraph, re.MULTILINE)
        found = re.search(r"^Description-en: (.+)\n((?: .*\n?)+)", paragraph, re.MULTILINE)
        if package and found:
            lines = [line[1:] if line.startswith("  ") else line.strip() for line in found[2].splitlines()]
            joined = "\n".join("" if line == "." else line for line in lines)
            # lines of a paragraph are one, those of a list stay
            yield package[1], found[1].strip(), re.sub(r"(?<=\S)\n(?=[^\s*-])", " ", joined).strip()


def usable(synopsis: str, text: str) -> bool:
    """Return whether a synopsis is a summary of a description of a length that small models read."""
    return WORDS[0] <= len(text.split()) <= WORDS[1] and len(synopsis.split()) >= SYNOPSIS_WORDS


def split_of(package: str) -> str:
    """Return the split of a package."""
    place = int(hashlib.sha256(package.encode()).hexdigest(), 16) % 100
    for split, share in HELD_OUT.items():
        if place < share:
            return split
        place -= share
    return "train"


if __name__ == "__main__":
    main()
