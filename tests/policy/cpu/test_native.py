"""The library in C: compiled once, used where it can be, and the same results without it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import NEEDS_C
from support.processes import python

from smolsum.policy.cpu import native

pytestmark = NEEDS_C

SAMPLE = """
import json, sys, warnings
warnings.simplefilter("error")
import smolsum.policy
from smolsum.policy.cpu import native
from smolsum.policy.load import load_policy
from smolsum.policy.sampling import generate
policy = load_policy("builtin:tiny")
prompts = [[5, 9, 33, 4, 60], [12, 8, 41]]
rows = generate(policy.model, prompts, [[1, 2, 3, 4], [5, 6]], eos_ids=frozenset(), temperature=1.0, max_new_tokens=40)
ids = [one.token_ids for row in rows for one in row]
logps = [one.logprobs for row in rows for one in row]
print(json.dumps({"in_use": native.library() is not None, "why": native.reason(), "ids": ids, "logps": logps}))
"""


def sampled(**variables: str) -> dict[str, Any]:
    """What a process samples."""
    environ = {key: value for key, value in os.environ.items() if key != "SMOLSUM_NATIVE"}
    code, out, err = python("-c", SAMPLE, environ=environ, **variables)
    assert (code, err) == (0, "")
    return dict(json.loads(out))


@pytest.mark.slow
def test_sampling_differs_by_rounding_alone(tmp_path: Path) -> None:
    """The same tokens as without the library but where a uniform number is at the edge of a token's share, log-probs
    within 1e-4; from an empty cache, and from a damaged one, which is made again."""
    theirs = sampled(SMOLSUM_NATIVE="none")
    ours = sampled(XDG_CACHE_HOME=str(tmp_path))
    assert (theirs["in_use"], ours["in_use"]) == (False, True)
    same = [n for n, ids in enumerate(ours["ids"]) if ids == theirs["ids"][n]]
    assert len(same) >= len(theirs["ids"]) - 1
    for n in same:
        np.testing.assert_allclose(ours["logps"][n], theirs["logps"][n], atol=1e-4)
    (kept,) = (tmp_path / "smolsum").glob("libsmolsum-*")
    kept.write_bytes(b"not a library")
    assert sampled(XDG_CACHE_HOME=str(tmp_path)) == ours
    assert len(kept.read_bytes()) > 1000


@pytest.mark.parametrize(
    "compiler", [None, *(pytest.param(script, marks=pytest.mark.slow) for script in ("exit 1", "exit 0"))]
)
def test_without_a_compiler_the_blas_does_it(tmp_path: Path, compiler: str | None) -> None:
    """None in the path, one that fails, and one that writes nothing: no word, and the BLAS multiplies."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in native.COMPILERS if compiler else ():
        (programs / name).write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / name).chmod(0o755)
    found = sampled(PATH=str(programs), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert not found["in_use"]
    assert found["why"]
    assert len(found["ids"]) == 6
