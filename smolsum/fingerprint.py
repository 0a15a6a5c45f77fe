"""Fingerprints: the same value gives the same one on every machine."""

from __future__ import annotations

import json
from typing import Any

import xxhash


def digest(value: Any) -> str:
    """xxh3_128 hex of a value as JSON with sorted keys; what JSON does not know counts as its text."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode()))
