"""A float32 model as the library in C sees it (`model.h`): pointers to its weights."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray

from smolsum.policy.cpu import native
from smolsum.policy.cpu.merged import merged
from smolsum.policy.logprobs import replica

FAMILIES = frozenset({"lfm2", "llama", "qwen2", "qwen3"})
"""values of mlx_lm's `model_type` whose layers the library has"""


ROPES = frozenset({"RoPE", "Llama3RoPE"})
"""classes of mlx and mlx_lm whose angles depend on a token's position alone, and not on the length of the text"""


class LinearPointers(ctypes.Structure):
    """`linear` in C."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class LayerPointers(ctypes.Structure):
    """`layer` in C."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("mixer_norm", "mlp_norm")),
        *((name, LinearPointers) for name in ("q", "k", "v", "o")),
        *((name, ctypes.c_void_p) for name in ("q_norm", "k_norm")),
        *((name, LinearPointers) for name in ("enter", "conv", "leave", "gate", "up", "down")),
    )


class ModelPointers(ctypes.Structure):
    """`model` in C."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner", "vocab")),
        ("taps", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("eps", "scale")),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "head", "rotations")),
        ("layer", ctypes.POINTER(LayerPointers)),
    )


def can_run(model: nn.Module) -> bool:
    """Return whether the library has this model's layers: on the CPU, of a family that is known, in float32, with
    adapters or without, and not quantised."""
    if native.library() is None or mx.default_device().type != mx.DeviceType.cpu:
        return False
    if getattr(model, "model_type", "") not in FAMILIES:
        return False
    model = merged(model)
    kinds = {nn.Linear, nn.Embedding, nn.RMSNorm, nn.Conv1d}
    plain = all(type(part) in kinds or not _has_weights(part) for part in model.modules())
    floats = all(array.dtype == mx.float32 for _, array in tree_flatten(model.parameters()))
    if not plain or not floats or any(getattr(layer, "use_sliding", False) for layer in model.layers):
        return False
    if any(mixer.n_heads % mixer.n_kv_heads for mixer in _attentions(model)):
        return False
    if {type(mixer.rope).__name__ for mixer in _attentions(model)} - ROPES:
        return False
    biased = [linear for layer in model.layers for linear in _mlp(layer)[:2]] + [getattr(model, "lm_head", {})]
    return not any("bias" in linear for linear in biased) and _turns_halves(model)


class NativeModel:
    """Pointers to the weights of a model, which must not change meanwhile, or to some of a gradient in its shape."""

    def __init__(self, model: nn.Module, positions: int, gradient: Mapping[str, mx.array] | None = None) -> None:
        """`positions` is the number that the longest text has. With a `gradient`, by name of a weight, pointers are to
        its arrays, without gaps, and NULL for all other weights."""
        self._kept, self.positions = list[Any](), positions
        self._only: set[int] | None = None
        model = merged(model)
        if gradient is not None:
            model = replica(model)
            model.update(tree_unflatten(list(gradient.items())))
            self._only = set(map(id, gradient.values()))
        body, layers = model.model, model.layers
        attention = _attentions(model)[0]
        convolution = next((layer.conv for layer in layers if not hasattr(layer, "self_attn")), None)
        norm = body.norm if hasattr(body, "norm") else body.embedding_norm
        embedding = body.embed_tokens.weight
        head = model.lm_head.weight if hasattr(model, "lm_head") else embedding
        self.embeddings = len(embedding)
        self._layers = (LayerPointers * len(layers))(*map(self._layer, layers))
        self.bytes = 4 * sum(array.size for _, array in tree_flatten(model.parameters()))
        self.pointers = ModelPointers(
            layers=len(layers),
            hidden=embedding.shape[1],
            heads=attention.n_heads,
            kv_heads=attention.n_kv_heads,
            head_dim=head_dim(model),
            inner=_mlp(layers[0])[0].weight.shape[0],
            vocab=len(head),
            taps=convolution.L_cache if convolution else 0,
            eps=norm.eps,
            scale=attention.scale,
            embedding=self._pointer(embedding),
            norm=self._pointer(norm.weight),
            head=self._pointer(head),
            rotations=self._pointer(_rotations(model, positions)),
            layer=self._layers,
        )

    @property
    def address(self) -> Any:
        """The argument by which functions of the library take it."""
        return ctypes.byref(self.pointers)

    def _pointer(self, array: mx.array) -> int | None:
        if self._only is not None and id(array) not in self._only:
            return None
        view = np.ascontiguousarray(np.array(array, copy=False))
        self._kept.append((array, view))  # C reads them for as long as this object is used
        return int(view.ctypes.data)

    def _linear(self, linear: nn.Module) -> LinearPointers:
        bias = self._pointer(linear.bias) if "bias" in linear else None
        return LinearPointers(self._pointer(linear.weight), bias)

    def _layer(self, layer: nn.Module) -> LayerPointers:
        before, after = _norms(layer)
        found = LayerPointers(mixer_norm=self._pointer(before.weight), mlp_norm=self._pointer(after.weight))
        linears = dict(zip(("gate", "up", "down"), _mlp(layer), strict=True))
        if hasattr(layer, "self_attn"):
            mixer = layer.self_attn
            linears |= {"q": mixer.q_proj, "k": mixer.k_proj, "v": mixer.v_proj}
            linears["o"] = mixer.o_proj if hasattr(mixer, "o_proj") else mixer.out_proj
            for name in ("q", "k"):
                norm = getattr(mixer, f"{name}_norm", None) or getattr(mixer, f"{name}_layernorm", None)
                setattr(found, f"{name}_norm", self._pointer(norm.weight) if norm else None)
        else:
            linears |= {"enter": layer.conv.in_proj, "conv": layer.conv.conv, "leave": layer.conv.out_proj}
        for name, linear in linears.items():
            setattr(found, name, self._linear(linear))
        return found


def check_tokens(ids: NDArray[Any], known: int) -> None:
    """Raise ValueError unless there are ids and the model has an embedding, or a row of its head, for each of them."""
    if not ids.size or ids.min() < 0 or ids.max() >= known:
        problem = f"ids {ids.min()} to {ids.max()}" if ids.size else "no ids"
        raise ValueError(f"the model has the token ids 0 to {known - 1}, but a text has {problem}")


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [layer.self_attn for layer in model.layers if hasattr(layer, "self_attn")]


def _has_weights(part: nn.Module) -> bool:
    """Return whether it has weights apart from those of its children."""
    return any(isinstance(value, mx.array) and not name.startswith("_") for name, value in part.items())


def head_dim(model: nn.Module) -> int:
    """Return the features of an attention head."""
    attention = _attentions(merged(model))[0]
    return int(attention.q_proj.weight.shape[0] // attention.n_heads)


def _norms(layer: nn.Module) -> tuple[Any, Any]:
    if hasattr(layer, "operator_norm"):
        return layer.operator_norm, layer.ffn_norm
    return layer.input_layernorm, layer.post_attention_layernorm


def _mlp(layer: nn.Module) -> tuple[Any, Any, Any]:
    if hasattr(layer, "feed_forward"):
        return layer.feed_forward.w1, layer.feed_forward.w3, layer.feed_forward.w2
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj


def _unit_vectors(half: int, positions: int) -> mx.array:
    return mx.concatenate([mx.ones((1, 1, positions, half)), mx.zeros((1, 1, positions, half))], axis=-1)


def _rotations(model: nn.Module, positions: int) -> mx.array:
    """Return the cosines and sines (positions, head_dim) float32 by which the model turns the halves of a head's
    features, found by turning unit vectors."""
    rope = _attentions(model)[0].rope
    return rope(_unit_vectors(head_dim(model) // 2, positions))[0, 0]


def _turns_halves(model: nn.Module) -> bool:
    """Return whether the model turns the halves of a head's features against each other, alike in all layers."""
    half = head_dim(model) // 2
    first = _unit_vectors(half, 2)
    ropes = [mixer.rope for mixer in _attentions(model)]
    turned, crosswise = ropes[0](first)[0, 0], ropes[0](mx.roll(first, half, axis=-1))[0, 0]
    expected = mx.concatenate([-turned[:, half:], turned[:, :half]], axis=-1)
    alike = all(vars(rope) == vars(ropes[0]) for rope in ropes)
    return alike and bool(mx.allclose(crosswise, expected))
