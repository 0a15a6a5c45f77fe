"""The patches from a worker's version to the newest."""

from typing import Any

import numpy as np

from smolsum.weights import delta
from smolsum.weights.publish import Published, Publisher, WeightsVersion


def version(number: int, changed: int) -> WeightsVersion:
    """10,000 values, of which each version moves `changed` by one step of float32."""
    weights = np.linspace(0.5, 1.0, 10_000, dtype=np.float32)
    for n in range(number):
        part = np.random.default_rng(n).choice(10_000, changed, replace=False)
        weights[part] = np.nextafter(weights[part], np.float32(2))
    return WeightsVersion(number, {"w": weights}, [], [])


def history(publisher: Publisher, count: int, changed: int) -> list[Published]:
    found: list[Published] = []
    for number in range(count):
        found.append(publisher.publish(found[-1] if found else None, version(number, changed)))
    return found


def applied(base: Any, bodies: list[bytes]) -> Any:
    for body in bodies:
        base = delta.apply(base, body)
    return base


def test_missed_patches_are_sent_in_order() -> None:
    """They lead to the newest bit for bit; a worker with an unknown version gets an anchor."""
    publisher = Publisher(anchor_every=50, metadata={"run": "a"})
    *_, newest = history(publisher, 5, changed=20)
    target = version(4, 20).arrays["w"].tobytes()
    for held, kinds in ((3, ["patch"]), (1, ["patch"] * 3), (0, ["patch"] * 4), (None, ["anchor"]), (9, ["anchor"])):
        bodies = publisher.bodies(newest, held)
        assert [delta.read(body).kind for body in bodies] == kinds
        base = version(held, 20).arrays if held is not None and held < 4 else None
        assert applied(base, bodies)["w"].tobytes() == target
        assert delta.read(bodies[-1]).weights == newest.weights == delta.checksum(version(4, 20).arrays)
        assert delta.read(bodies[-1]).metadata == {"run": "a"}


def test_patches_are_kept_while_they_are_smaller_than_the_weights() -> None:
    """This bounds their memory, and catching up never costs more than an anchor."""
    publisher = Publisher(anchor_every=500, metadata={})
    *_, newest = history(publisher, 60, changed=2_000)
    assert 1 <= len(newest.patches) < 59
    assert sum(map(len, newest.patches.values())) <= 40_000
    assert [delta.read(body).kind for body in publisher.bodies(newest, 0)] == ["anchor"]


def test_anchors_are_sent_regularly() -> None:
    """Every `anchor_every` versions no patch leads to the newest."""
    publisher = Publisher(anchor_every=3, metadata={})
    found = history(publisher, 7, changed=5)
    assert [bool(published.patches) for published in found] == [False, True, False, True, True, False, True]
    assert set(found[4].patches) == {2, 3}


def test_version_is_recognised_by_its_checksum() -> None:
    """The number alone does not: other runs use the same numbers."""
    publisher = Publisher(anchor_every=50, metadata={})
    first, _ = history(publisher, 2, changed=5)
    assert publisher.knows(0, first.weights)
    assert not publisher.knows(1, first.weights)
    assert not publisher.knows(7, first.weights)
