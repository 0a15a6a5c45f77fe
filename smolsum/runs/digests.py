"""Digests of what a run wrote, each taken as it was written, so that a later change of any byte is found.

digests.jsonl, a line each:
  of        `step-000012`: the step's line of metrics.jsonl, then its file of completions; else a path in the run, such
            as `run.json`, `eval/start-test/scores.jsonl`, or the meta.json of a checkpoint, which has the checksums of
            the others there; or `discarded after step-000010`, where a resumed run wrote later steps again
  sha256    of these bytes
  chain     SHA-256 of the chain of the line before, `of` and `sha256`

The newest line about something counts. The last chain is the digest of the run: once it is published, nothing can be
changed unseen. Without that, digests find damage and careless changes, and `smolsum verify` finds careful ones: it
derives steps again.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path

from smolsum.files import read_bytes, to_json, whole_lines, writing
from smolsum.runs.evaluation_records import GENERATIONS, SCORES, SUMMARY
from smolsum.runs.paths import RunPaths, step_name
from smolsum.runs.records import DigestLine
from smolsum.runs.typed_json import read_lines

TAIL = 4096
"""bytes that surely hold the last line"""
DISCARDED = "discarded after "
EVALUATED = (GENERATIONS, SCORES, SUMMARY)
"""files of an evaluation that have a digest"""


def record(paths: RunPaths, found: Mapping[str, str]) -> None:
    """Append digests, by what they are of, all or none. Any process may, also while another one trains the run. Raises
    SmolsumError where they cannot be written."""
    with writing(paths.digests, paths.resume_command), paths.digests.open("ab+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        tail = file.read()
        ended = tail.rfind(b"\n") + 1
        whole, lines = size - len(tail) + ended, whole_lines(tail[:ended])
        file.truncate(whole)  # without what a killed process left of a line
        chain, content = json.loads(lines[-1])["chain"] if lines else "", b""
        for of, sha256 in found.items():
            chain = _linked(chain, of, sha256)
            content += to_json({"of": of, "sha256": sha256, "chain": chain})
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(whole)
            raise


def record_files(paths: RunPaths, *files: Path) -> None:
    """Append the digests of these files of the run, those that exist."""
    there = [path for path in files if path.is_file()]
    record(paths, {path.relative_to(paths.root).as_posix(): of_bytes(path.read_bytes()) for path in there})


def of_bytes(content: bytes) -> str:
    """Return the SHA-256 of bytes. That of a step is of its line of metrics.jsonl, with the line end, and its file of
    completions."""
    return hashlib.sha256(content).hexdigest()


def run_digest(paths: RunPaths) -> str:
    """Return the last chain, which stands for all that the run wrote; empty for a run without digests."""
    lines = read_lines(paths.digests, DigestLine)
    return lines[-1].chain if lines else ""


def changes(paths: RunPaths) -> tuple[list[str], list[str]]:
    """Return a sentence on everything that is not as the run wrote it, and one on each kind of file that an earlier
    version made without a digest, before this one resumed or evaluated the run. Checkpoints that are no longer there do
    not count: a run removes them."""
    differences: list[str] = []
    found: dict[str, str] = {}
    chain = ""
    for number, line in enumerate(read_lines(paths.digests, DigestLine), start=1):
        chain = _linked(chain, line.of, line.sha256)
        if chain != line.chain:
            differences.append(f"digests.jsonl:{number} is not what was written")
            chain = line.chain
        if line.of.startswith(DISCARDED):
            last = line.of.removeprefix(DISCARDED)
            found = {of: own for of, own in found.items() if not of.startswith("step-") or of <= last}
        else:
            found[line.of] = line.sha256
    steps = dict(_steps(paths))
    older = [*takewhile(lambda of: of not in found, steps)]
    for of, sha256 in found.items():
        if of.startswith("step-"):
            now = steps.pop(of, None)
            if now is None:
                differences.append(f"{of} is missing in metrics.jsonl")
            elif now != sha256:
                differences.append(f"{of} is not what was written: its line of metrics.jsonl or its completions")
        elif not (path := paths.root / of).is_file():
            if not of.startswith("checkpoints/"):
                differences.append(f"{of} is missing")
        elif not _has(path, sha256):
            differences.append(f"{of} is not what was written")
    differences += [f"{of} has no digest, or is there twice" for of in steps if of not in older]
    finished = [path.parent for path in sorted(paths.evaluations.glob(f"*/{SUMMARY}"))]
    named = [folder.relative_to(paths.root) / name for folder in finished for name in EVALUATED]
    others = [path.as_posix() for path in named if path.as_posix() not in found]
    if not older:
        return differences + [f"{of} has no digest" for of in others], []
    missing = f"{len(older)} steps and {len(others)} files of evaluations have no digest"
    return differences, [f"{missing}: an earlier version made them, or it was removed"]


def _has(path: Path, sha256: str) -> bool:
    """Return whether a file has the digest; completions of an evaluation also where lines follow, as one was killed
    that had more to complete, and has not measured them yet."""
    content = path.read_bytes()
    if of_bytes(content) == sha256:
        return True
    running = hashlib.sha256()
    for line in content.splitlines(keepends=True) if path.name == GENERATIONS else ():
        running.update(line)
        if running.hexdigest() == sha256:
            return True
    return False


def _steps(paths: RunPaths) -> Iterator[tuple[str, str]]:
    """Yield the name of each step in metrics.jsonl, and its digest as it is now."""
    seen: set[str] = set()
    for line in whole_lines(read_bytes(paths.metrics)):
        try:
            step = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            yield f"a line of metrics.jsonl ({line[:40]!r})", ""
            continue
        of = step_name(step)
        yield of if of not in seen else f"{of} again", of_bytes(line + b"\n" + read_bytes(paths.completions(step)))
        seen.add(of)


def _linked(chain: str, of: str, sha256: str) -> str:
    """Return the chain that follows after `chain`."""
    return of_bytes(f"{chain} {of} {sha256}".encode())
