"""The operations beside the convolutions under test: a problem's arrays in guarded memory, its call, and its judgement.

Everything is looked up in `nn`, so that the tests themselves can be tested on the reference, without a GPU.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import strategies
import torch
from operation_kinds import KINDS
from operation_problem import Arrays, Float64, Kind, Problem, error_bound, run
from strategies import FILLER, NOT_A_NUMBER, Memory, Placed, to_float64
from tolerance import difference

import cudnnpy
from cudnnpy import reference

nn: Any = cudnnpy  # what is tested


class Case:
    """A problem with its arrays in device memory, and what its results must be."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kind: Kind = KINDS[problem.call]
        random = np.random.default_rng(problem.seed)
        made = self.kind.inputs(problem, random)
        memory = list(problem.memory)
        self.inputs: dict[str, Placed] = {}
        for name, values in made.items():
            is_tensor = self.kind.is_tensor(problem, name, values)
            lies = memory.pop(0) if is_tensor and memory else Memory()
            dtype = self.kind.dtype_of(problem, name)
            self.inputs[name] = self._place(values, dtype, lies, NOT_A_NUMBER, is_tensor)
        self.exact = self._reference_result()
        self.outs: dict[str, Placed] = {}
        self.keywords = dict(problem.keywords)
        for result, keyword in self.kind.outs(problem).items():
            if problem.in_place and keyword == "out":
                self.outs[result] = self.inputs[self.kind.in_place]
            else:
                shape, beta = self.exact[result].shape, self.kind.blend(problem, result)[1]
                values = random.uniform(-1, 1, shape) if beta else np.full(shape, math.nan)
                lies = memory.pop(0) if keyword == "out" and memory else Memory()
                is_tensor = keyword == "out" and len(shape) == len(problem.shape)
                dtype = self.kind.dtype_of(problem, result)
                self.outs[result] = self._place(values, dtype, lies, FILLER, is_tensor)
            self.keywords[keyword] = self.outs[result].tensor
        for name in self.kind.factors:
            self.keywords[name] = getattr(problem, name)
        self._resolve_mismatch()

    def _place(self, values: Float64, dtype: str, memory: Memory, filler: int, is_tensor: bool) -> Placed:
        tensor = torch.from_numpy(np.asarray(values, order="C")).to(getattr(torch, dtype))
        p = self.problem
        if not is_tensor:
            return Placed(tensor, Memory().strides(values.shape), memory.offset, filler)
        strides = p.in_layout(memory.strides(p.logical(values.shape)))
        return Placed(tensor, strides, memory.offset, filler)

    def _values(self) -> Arrays:
        """The inputs' values, as the device has them."""
        return {name: placed.numpy().copy() for name, placed in self.inputs.items()}

    def _reference_result(self) -> Arrays:
        """Return the reference's result before alpha and beta, in the widest type that the reference accepts."""
        p, kind = self.problem, self.kind
        self.narrow = "float64" not in kind.dtypes
        width = np.float32 if self.narrow else np.float64
        arrays = {name: values.astype(width) for name, values in self._values().items()}
        keywords = kind.reference_keywords(p)
        with np.errstate(all="ignore"):
            found = run(reference, p, arrays, keywords)
        exact = dict(zip(kind.results_of(p), found, strict=True)) | {name: arrays[name] for name in kind.updated(p)}
        return {name: np.asarray(values, np.float64) for name, values in exact.items()}

    def _resolve_mismatch(self) -> None:
        """What each result must be, and how far off it may be."""
        p, kind = self.problem, self.kind
        self.expected: Arrays = {}
        self.allowed: Arrays = {}
        with np.errstate(all="ignore"):
            errors = kind.errors(p, self._values(), self.exact)
            for name, f in self.exact.items():
                alpha, beta = kind.blend(p, name)
                before = self.outs[name].numpy() if name in self.outs and beta else None
                self.expected[name] = alpha * f + (beta * before if before is not None else 0.0)
                if kind.is_bound:
                    self.allowed[name] = errors[name]
                    continue
                error = errors[name] + (2.0**-24 * np.abs(f) if self.narrow else 0.0)
                self.allowed[name] = error_bound(f, error, kind.dtype_of(p, name), alpha, beta, before)

    def call(self, stream: Any = None) -> dict[str, Any]:
        """The operation on the arrays, by the results' names."""
        keywords = dict(self.keywords) if stream is None else {**self.keywords, "stream": stream}
        arrays = {name: placed.tensor for name, placed in self.inputs.items()}
        results = self.kind.results_of(self.problem)
        return dict(zip(results, run(nn, self.problem, arrays, keywords), strict=True))

    def complete(self) -> dict[str, Any]:
        """The call on the stream that the problem names, done when this returns."""
        if strategies.DEVICE != "cuda":
            return self.call()
        self._poison_free_memory()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream() if self.problem.stream != "current" else None
        with torch.cuda.stream(stream) if self.problem.stream == "side" else nullcontext():
            found = self.call(stream if self.problem.stream == "argument" else None)
        torch.cuda.synchronize()
        return found

    def _poison_free_memory(self) -> None:
        """New arrays come from memory that was just freed: what is not written there is NaN."""
        for name, f in self.exact.items():
            if name not in self.outs:
                dtype = getattr(torch, self.kind.dtype_of(self.problem, name))
                torch.full(f.shape, math.nan, dtype=dtype, device=strategies.DEVICE)

    def all_results(self, found: dict[str, Any]) -> dict[str, torch.Tensor]:
        """With the inputs that the call changes."""
        return found | {name: self.inputs[name].tensor for name in self.kind.updated(self.problem)}

    def restore(self) -> None:
        """Puts everything back that the call may write."""
        for placed in self.outs.values():
            placed.restore()
        for name in self.kind.updated(self.problem):
            self.inputs[name].restore()

    def wrong(self, found: dict[str, Any]) -> str:
        """What is wrong with the results, "" if nothing is."""
        for name, tensor in self.all_results(found).items():
            dtype = getattr(torch, self.kind.dtype_of(self.problem, name))
            if tensor.dtype != dtype or tensor.device.type != strategies.DEVICE:
                return f"{name} is {tensor.dtype} on {tensor.device}, expected {dtype}"
            if name in self.outs and name in found and tensor is not self.outs[name].tensor:
                return f"{name} is another array than the one given for it"
            if said := differs(to_float64(tensor), self.expected[name], self.allowed[name]):
                return f"{name}: {said}"
        return ""

    def share(self, found: dict[str, Any]) -> float:
        """The largest part of its allowed error that any element has."""
        largest = 0.0
        for name, tensor in self.all_results(found).items():
            with np.errstate(all="ignore"):
                off = np.abs(to_float64(tensor) - self.expected[name]) / self.allowed[name]
            largest = max(largest, float(np.max(off, initial=0.0, where=np.isfinite(off))))
        return largest

    def spoiled(self) -> str:
        """What was written that should not have been, "" if nothing."""
        written = {id(placed) for placed in self.outs.values()}
        written |= {id(self.inputs[name]) for name in self.kind.updated(self.problem)}
        for name, placed in {**self.inputs, **{f"out ({n})": placed for n, placed in self.outs.items()}}.items():
            if id(placed) not in written and placed.changed():
                return f"the input {name} was changed, or what is around it"
            if count := placed.changed_outside():
                return f"{count} elements around {name}, or in its gaps, were changed"
        return ""

    def untouched(self) -> str:
        """What was written at all, by a call that was refused; "" if nothing."""
        for name, placed in (*self.inputs.items(), *self.outs.items()):
            if placed.changed():
                return f"{name} was changed, or what is around it"
        return ""


def differs(found: Float64, expected: Float64, allowed: Float64) -> str:
    """tolerance.difference, but NaN and infinities must stand where they are expected."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    special = ~finite & ~((np.isnan(found) & np.isnan(expected)) | (found == expected))
    if special.any():
        at = tuple(int(i) for i in np.argwhere(special)[0])
        return f"{int(special.sum())} special values wrong; at {at} {found[at]!r}, expected {expected[at]!r}"
    kept = (np.where(finite, values, 0.0) for values in (found, expected))
    return difference(next(kept), next(kept), np.where(finite, np.broadcast_to(allowed, expected.shape), 1.0))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    packed = (t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(*packed))
