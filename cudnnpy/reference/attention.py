"""Attention and its gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import attention as device
from cudnnpy._layers.attention import (
    LEAST,
    SCALES,
    Longest,
    Sizes,
    check_dropout,
    check_lengths_of_pages,
    check_packing,
    check_values,
    in_layout,
    side,
    sizes_of,
)
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, NotInReference, NumpyOperation, Shape
from cudnnpy.reference._kinds import grouped, paged, repeated, softmax


class Attention(NumpyOperation, device.Attention):
    __doc__ = device.Attention.__doc__
    plan = candidates = NotInReference()

    def _forward(self, call: Call, statistics: bool, *longest: int | None) -> list[Array]:
        arrays = call.arrays
        sizes, given = self._checked(arrays, longest, (*device.DTYPES, *_arrays.FLOAT8))
        self._check_results(arrays, sizes, given, *(("out", "statistics") if statistics else ("out",)))
        values = self._in_float64(given, sizes)
        made = softmax({}, {"x": self._scores(values, sizes)}, {})
        weights, is_float8 = self._kept(made["y"], values), "scale_s" in values
        if is_float8:
            weights = weights * values["scale_s"] * values["descale_s"]
        out = weights @ repeated(values["v"], values["q"].shape[:2])
        scaled = self._as_result("out", out * values["scale_o"] if is_float8 else out, sizes, given)
        results = [_arrays.store(scaled, given["q"].dtype, arrays["out"])]
        if statistics:
            results.append(_arrays.store(made["stats"], np.dtype("float32"), arrays["statistics"]))
        if is_float8:
            magnitudes = [np.abs(one).max(initial=0.0).reshape(1) for one in (made["y"], out)]
            results += [_arrays.store(one, np.dtype("float32"), None) for one in magnitudes]
        return results

    def _backward(self, call: Call, dbias: bool, *longest: int | None) -> list[Array]:
        arrays = call.arrays
        sizes, given = self._checked(arrays, longest, device.DTYPES)
        q, bias = given["q"], given.get("bias")
        if dbias:
            device.check_dbias(sizes, None if bias is None else bias.shape)
        for name in ("dout", "out", "statistics"):
            shape, dtype = self._made(name, sizes, given)
            given[name] = array = _arrays.check_array(name, arrays[name], (dtype,))
            if array.shape != shape:
                raise ValueError(f"{name} must have shape {shape}; got shape {array.shape}")
        self._check_results(arrays, sizes, given, *(("dq", "dk", "dv", "dbias") if dbias else ("dq", "dk", "dv")))
        values = self._in_float64(given, sizes)
        scores = self._scores(values, sizes)
        weights = np.where(np.isneginf(scores), 0.0, np.exp(scores - values["statistics"]))
        k, v = (repeated(values[name], values["q"].shape[:2]) for name in "kv")
        dout, out = values["dout"], values["out"]
        of_weights = self._kept(dout @ v.swapaxes(2, 3), values)
        of_scores = weights * (of_weights - (dout * out).sum(3, keepdims=True))
        scale = self._scale(sizes)
        gradients = {
            "dq": scale * of_scores @ k,
            "dk": grouped(scale * of_scores.swapaxes(2, 3) @ values["q"], values["k"].shape),
            "dv": grouped(self._kept(weights, values).swapaxes(2, 3) @ dout, values["v"].shape),
        }
        results = [
            _arrays.store(self._as_result(name, gradient, sizes, given), q.dtype, arrays[name])
            for name, gradient in gradients.items()
        ]
        if dbias:
            assert bias is not None
            axes = tuple(axis for axis, size in enumerate(bias.shape) if size != sizes.scores[axis])
            results.append(_arrays.store(of_scores.sum(axes, keepdims=True), bias.dtype, arrays["dbias"]))
        return results

    def _checked(
        self, arrays: dict[str, Any], longest: Longest, dtypes_of_q: tuple[str, ...]
    ) -> tuple[Sizes, dict[str, Array]]:
        """Check the inputs that both operations have; return the sizes and the arrays."""
        given = {name: _arrays.check_array(name, arrays[name], dtypes_of_q) for name in "qkv"}
        for name in "kv":
            _arrays.check_same_dtype(name, given[name], "q", given["q"])
        dtypes = {
            **dict.fromkeys(("bias", "mask"), (given["q"].dtype.name, "float32")),
            **dict.fromkeys(SCALES, ("float32",)),
            **dict.fromkeys(("lengths_q", "lengths_kv", "page_table"), ("int32",)),
            **dict.fromkeys(device.PACKING, ("int32", "int64")),
        }
        for name, allowed in dtypes.items():
            if arrays[name] is not None:
                given[name] = _arrays.check_array(name, arrays[name], allowed)
        check_lengths_of_pages(arrays)
        check_packing(arrays, longest, self.causal)
        if "offsets_q" in given:
            given.setdefault("lengths_kv", given["lengths_q"])
        check_dropout(self.dropout, arrays, ("mask",))
        sizes = sizes_of(self.layout, {name: array.shape for name, array in given.items()}, longest)
        shapes: dict[str, Shape] = {
            **dict.fromkeys(("lengths_q", "lengths_kv"), (sizes.batch,)),
            **dict.fromkeys(device.PACKING, (sizes.batch + 1,)),
            **dict.fromkeys(SCALES, (1,)),
            "mask": sizes.scores,
        }
        for name, shape in shapes.items():
            if name in given and given[name].shape != shape:
                raise ValueError(f"{name} must have shape {shape}; got shape {given[name].shape}")
        self._check_float8(given["q"].dtype.name, sizes, given)
        check_values(sizes, {name: given[name].ravel().tolist() for name in device.READ_VALUES if name in given})
        return sizes, given

    def _made(self, name: str, sizes: Sizes, given: dict[str, Array]) -> tuple[Shape, str]:
        """Return the shape and the dtype of a result, or of a gradient with respect to one."""
        if name == "dbias":
            return given["bias"].shape, given["bias"].dtype.name
        if name == "statistics":
            return sizes.shapes[name], "float32"
        return in_layout(sizes.shapes[name], self.layout), given["q"].dtype.name

    def _check_results(self, arrays: dict[str, Any], sizes: Sizes, given: dict[str, Array], *names: str) -> None:
        _arrays.check_results([(name, arrays[name], *self._made(name, sizes, given)) for name in names], given)

    def _in_float64(self, given: dict[str, Array], sizes: Sizes) -> dict[str, Float64]:
        """Return the arrays in float64, with the axes BHSD. Packed sequences are padded with zeros."""
        table, unread = given.get("page_table"), ("page_table", *device.PACKING)
        values = {name: array.astype(np.float64) for name, array in given.items() if name not in unread}
        in_the_layout = [name for name in ("q", "k", "v", "out", "dout") if name in values]
        values |= {name: in_layout_of(values[name], self.layout) for name in in_the_layout}
        if sizes.tokens is not None:
            packed = [name for name, array in values.items() if array.ndim == 3]
            values |= {name: _padded(name, values[name], sizes, given) for name in packed}
        if "scale_s" in values:
            values |= {name: values[name] * values[f"descale_{name}"] for name in "qkv"}
        if table is not None:
            values |= {name: paged(values[name], table, sizes.keys) for name in "kv"}
        return values

    def _as_result(self, name: str, array: Float64, sizes: Sizes, given: dict[str, Array]) -> Float64:
        """Return a result with the axes BHSD in the layout, or as packed sequences."""
        return in_layout_of(array, self.layout) if sizes.tokens is None else _packed(name, array, sizes, given)

    def _kept(self, weights: Float64, values: dict[str, Float64]) -> Float64:
        """Return what the dropout keeps of weights, or of their gradients."""
        return weights * values["mask"] / (1 - self.dropout) if self.dropout else weights

    def _scale(self, sizes: Sizes) -> float:
        return 1 / math.sqrt(sizes.head_size) if self.scale is None else self.scale

    def _scores(self, values: dict[str, Float64], sizes: Sizes) -> Float64:
        """Return the scores; masked ones are -infinity."""
        scores = self._scale(sizes) * values["q"] @ repeated(values["k"], values["q"].shape[:2]).swapaxes(2, 3)
        if "bias" in values:
            scores = scores + values["bias"]
            scores = np.where(scores < LEAST, -np.inf, scores)
        counts = {
            name: np.reshape(values.get(name, np.full(sizes.batch, size)), (-1, 1, 1, 1))
            for name, size in (("lengths_q", sizes.queries), ("lengths_kv", sizes.keys))
        }
        query, key = np.arange(sizes.queries)[:, None], np.arange(sizes.keys)
        allowed = (query < counts["lengths_q"]) & (key < counts["lengths_kv"])
        last = counts["lengths_kv"] - counts["lengths_q"] if self.causal == "bottom_right" else 0
        distance = key - query - last  # from the diagonal
        left, right = self.window or (None, None)
        if left is not None:
            allowed &= distance >= -left
        if self.causal or right is not None:
            allowed &= distance <= (0 if self.causal or right is None else right)
        return np.where(allowed, scores, -np.inf)


def in_layout_of(array: Array, layout: str) -> Array:
    """Return an array with the axes BHSD with those of a layout, or the reverse. Packed sequences have no layout."""
    return array.swapaxes(1, 2) if layout == "BSHD" and array.ndim == 4 else array


def _padded(name: str, array: Float64, sizes: Sizes, given: dict[str, Array]) -> Float64:
    """Return packed sequences with the axes BHSD."""
    _, heads, size = array.shape
    padded = np.zeros((sizes.batch, heads, sizes.queries if side(name) == "q" else sizes.keys, size))
    for b, (tokens, length) in enumerate(_sequences(name, sizes, given)):
        padded[b, :, :length] = array[tokens].swapaxes(0, 1)
    return padded


def _packed(name: str, array: Float64, sizes: Sizes, given: dict[str, Array]) -> Float64:
    """Return an array with the axes BHSD as packed sequences, with zeros beside them."""
    packed = np.zeros(sizes.shapes[name])
    for b, (tokens, length) in enumerate(_sequences(name, sizes, given)):
        packed[tokens] = array[b, :, :length].swapaxes(0, 1)
    return packed


def _sequences(name: str, sizes: Sizes, given: dict[str, Array]) -> list[tuple[slice, int]]:
    """Return the tokens of each packed sequence of a tensor, and their number."""
    _, heads, size = sizes.shapes[name]
    starts = given[f"offsets_{side(name)}"][:-1] // max(heads * size, 1)
    lengths = given[f"lengths_{side(name)}"].tolist()
    return [(slice(start, start + n), n) for start, n in zip(starts.tolist(), lengths, strict=True)]
