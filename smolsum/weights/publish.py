"""The published versions of the weights, and the patches that bring a worker from its version to the newest."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smolsum.weights import delta


@dataclass(frozen=True)
class WeightsVersion:
    """Weights to serve, and log-probs that prove it."""

    number: int
    arrays: Mapping[str, Any]
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
    """prompts and completions, token ids"""
    logprobs: Sequence[Sequence[float]]
    """of the completions' tokens, computed by the trainer with these weights"""


@dataclass(frozen=True)
class Published:
    """A version that workers can be brought to."""

    version: WeightsVersion
    weights: str
    """checksum that a worker must report"""
    patches: Mapping[int, bytes] = field(default_factory=dict)
    """by base version; each leads to the next, the last to this version"""
    seconds: float = 0.0
    """of encoding"""
    density: float = 1.0
    """share of the values that the last patch changes"""

    @property
    def number(self) -> int:
        """The policy version."""
        return self.version.number


class Publisher:
    """Makes patches from version to version, and anchors for workers that no patch can update.

    Call `publish` once at a time; other threads may call `bodies` at the same time.
    """

    def __init__(self, *, anchor_every: int, metadata: Mapping[str, Any]) -> None:
        """`metadata` is part of every patch and anchor. Every `anchor_every` versions all workers get an anchor."""
        self._anchor_every, self._metadata = anchor_every, dict(metadata)
        self._count, self._checksums = 0, dict[int, str]()
        self._anchor: tuple[int, bytes] | None = None
        self._encoding = threading.Lock()

    def publish(self, previous: Published | None, version: WeightsVersion) -> Published:
        """Encode the patch from the previous version to this one. Earlier patches, which a worker may have missed, are
        kept while all together are smaller than the weights."""
        published = self._encoded(previous, version)
        self._checksums[version.number] = published.weights
        return published

    def knows(self, version: Any, weights: Any) -> bool:
        """Return whether this version was published with this checksum."""
        return version in self._checksums and self._checksums[version] == weights

    def _encoded(self, previous: Published | None, version: WeightsVersion) -> Published:
        began = time.perf_counter()
        self._count += 1
        if previous is None or self._count % self._anchor_every == 0:
            return Published(version, delta.checksum(version.arrays), seconds=time.perf_counter() - began)
        patch = delta.encode(
            previous.version.arrays,
            version.arrays,
            base_version=previous.number,
            version=version.number,
            metadata=self._metadata,
        )
        header = delta.read(patch)
        patches, room = {previous.number: patch}, header.nbytes - len(patch)
        for base in sorted(previous.patches, reverse=True):
            room -= len(previous.patches[base])
            if room < 0:
                break
            patches[base] = previous.patches[base]
        return Published(version, header.weights, patches, time.perf_counter() - began, header.density)

    def bodies(self, published: Published, held: int | None) -> list[bytes]:
        """Return the bodies to send, in order, to a worker that has version `held` (None: unknown)."""
        if held is not None and held in published.patches:
            return [published.patches[base] for base in sorted(published.patches) if base >= held]
        return [self._anchored(published.version)]

    def _anchored(self, version: WeightsVersion) -> bytes:
        with self._encoding:  # several workers may need it at once
            if self._anchor is None or self._anchor[0] != version.number:
                self._anchor = None  # frees the one before, which is as large as the weights
                body = delta.anchor(version.arrays, version=version.number, metadata=self._metadata)
                self._anchor = (version.number, body)
            return self._anchor[1]
