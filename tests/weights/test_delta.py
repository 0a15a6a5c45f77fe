"""Weight patches: every bit arrives, damage and other bases are refused, and a worker catches up by few bytes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from smolsum.weights import delta
from smolsum.weights.publish import Published, Publisher, WeightsVersion

TYPES = [np.uint16, np.float16, np.float32, np.uint32, np.float64, np.int8, np.uint8, np.bool_, np.int64]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 6e-8, -65504.0]


def same_bits(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether names, types, shapes and bytes are the same."""
    return list(got) == sorted(expected) and all(
        got[k].dtype == v.dtype and got[k].shape == v.shape and got[k].tobytes() == v.tobytes()
        for k, v in expected.items()
    )


def bf16(values: Any) -> Any:
    """float32 values rounded to nearest-even bfloat16, as bits."""
    raw = values.view(np.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)


@st.composite
def versions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two versions of up to three tensors with any bits, which differ in none, some or all values."""
    base, new = {}, {}
    for n in range(draw(st.integers(1, 3))):
        kind = np.dtype(draw(st.sampled_from(TYPES)))
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
        size = int(np.prod(shape)) * kind.itemsize
        raw = [draw(st.binary(min_size=size, max_size=size)) for _ in range(2)]
        if kind == np.bool_:
            raw = [bytes(b & 1 for b in r) for r in raw]
        a, b = (np.frombuffer(r, kind).reshape(shape) for r in raw)
        keep = np.array(draw(st.lists(st.booleans(), min_size=a.size, max_size=a.size)), bool).reshape(shape)
        base[f"t{n}"], new[f"t{n}"] = a, b.copy()
        new[f"t{n}"][keep] = a[keep]
    return base, new


@given(versions())
def test_patch_and_anchor_restore_every_bit(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    base, new = pair
    before = {k: v.tobytes() for k, v in base.items()}
    patch = delta.encode(base, new, base_version=3, version=4)
    assert same_bits(delta.apply(base, patch), new)
    assert same_bits(delta.apply(None, delta.anchor(new, version=4)), new)
    assert before == {k: v.tobytes() for k, v in base.items()}
    header = delta.read(patch)
    assert (header.kind, header.base_version, header.version) == ("patch", 3, 4)
    assert header.weights == delta.checksum(new)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("spread", [1, 50])
def test_special_floats_are_restored(kind: Any, spread: int) -> None:
    """NaN, infinities and -0.0 change into each other, among few and among many changes."""
    a = np.repeat(np.array(SPECIAL).astype(kind), len(SPECIAL) * spread)
    b = a.copy()
    b[::spread] = np.tile(np.array(SPECIAL).astype(kind), len(SPECIAL))
    patch = delta.encode({"w": a}, {"w": b}, base_version=0, version=1)
    assert same_bits(delta.apply({"w": a}, patch), {"w": b})


def test_distant_changes_are_restored() -> None:
    """Changes far apart, at both ends, and 255 and 510 values apart."""
    base = np.zeros(2_000_000, np.uint16)
    new = base.copy()
    new[[0, 255, 510, 511, 1021, 1_234_567, 1_999_999]] = 7
    patch = delta.encode({"w": base}, {"w": new}, base_version=0, version=1)
    assert same_bits(delta.apply({"w": base}, patch), {"w": new})
    assert len(patch) < 1000


def test_neighbours_are_one_step_apart() -> None:
    """The next float up is one step away, across powers of two and across zero too: all steps look alike, so they
    compress to almost nothing."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal(100_000, dtype=np.float32)
    base[:1000] = np.float32(-1e-45)
    base[1000:2000] = 2.0 ** rng.integers(-100, 100, 1000)
    up = np.nextafter(base, np.float32(np.inf))
    up[:1000] = -0.0  # between the smallest negative number and 0.0
    assert len(delta.encode({"w": base}, {"w": up}, base_version=0, version=1)) < 2000


def test_patch_of_an_update_is_small() -> None:
    """bfloat16 weights after one update of 2e-6 on float32 masters: at most 5 % of the weights' bytes."""
    rng = np.random.default_rng(0)
    masters = rng.standard_normal((1000, 2000), dtype=np.float32) * np.float32(0.02)
    moved = masters + rng.choice(np.float32([-2e-6, 2e-6]), masters.shape)
    base, new = {"w": bf16(masters)}, {"w": bf16(moved)}
    patch = delta.encode(base, new, base_version=0, version=1)
    assert len(patch) <= 0.05 * base["w"].nbytes
    assert 0.05 < delta.read(patch).density < 0.1
    assert same_bits(delta.apply(base, patch), new)


def small() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two versions with an unchanged, a sparsely changed and a wholly changed tensor."""
    rng = np.random.default_rng(0)
    base = {name: rng.standard_normal((4, 60), dtype=np.float32) for name in ("all", "none", "some")}
    new = {name: array.copy() for name, array in base.items()}
    new["some"][1, 2:5] += 1
    new["all"] += 0.5
    return base, new


@pytest.mark.parametrize("whole", [False, True])
@settings(max_examples=300)
@given(data=st.data())
def test_damaged_patch_is_refused(whole: bool, data: st.DataObject) -> None:
    base, new = small()
    patch = delta.anchor(new, version=1) if whole else delta.encode(base, new, base_version=0, version=1)
    place, flip = data.draw(st.integers(0, len(patch) - 1)), data.draw(st.integers(1, 255))
    damaged = bytearray(patch)
    damaged[place] ^= flip
    for bad in (bytes(damaged), patch[:place], patch + bytes([flip])):
        with pytest.raises(delta.CorruptPatchError):
            delta.apply(base, bad)


@given(st.integers(0, 239), st.sampled_from(["all", "none", "some"]))
def test_other_base_is_refused(place: int, name: str) -> None:
    base, new = small()
    patch = delta.encode(base, new, base_version=0, version=1)
    base[name].reshape(-1)[place] += 1
    with pytest.raises(delta.WrongBaseError):
        delta.apply(base, patch)


def test_other_tensors_are_refused() -> None:
    """Other names, shapes or types: no patch is encoded, and none applied."""
    base, new = small()
    patch = delta.encode(base, new, base_version=0, version=1)
    others = [
        {**base, "more": base["all"]},
        {k: v for k, v in base.items() if k != "none"},
        {**base, "some": base["some"].reshape(60, 4)[:30]},
        {**base, "some": base["some"].astype(np.float64)},
    ]
    for other in others:
        with pytest.raises(delta.WrongBaseError):
            delta.apply(other, patch)
        with pytest.raises(delta.PatchError):
            delta.encode(other, new, base_version=0, version=1)
    with pytest.raises(delta.WrongBaseError):
        delta.apply(None, patch)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(delta.PatchError):
        delta.anchor({"w": np.array([object()])}, version=1)


def test_header_has_metadata_and_checksum() -> None:
    """The checksum depends on every bit, shape and name, but not on the order of names."""
    _, new = small()
    header = delta.read(delta.anchor(new, version=9, metadata={"adapter": {"rank": 8}}))
    assert (header.kind, header.base_version, header.version) == ("anchor", None, 9)
    assert header.metadata == {"adapter": {"rank": 8}}
    assert header.nbytes == sum(v.nbytes for v in new.values())
    assert delta.checksum(dict(reversed(new.items()))) == delta.checksum(new)
    seen = {delta.checksum(new)}
    for other in ({**new, "all": new["all"].T}, {**new, "all": -new["all"]}, {"x": new["all"]}):
        seen.add(delta.checksum(other))
    assert len(seen) == 4


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
