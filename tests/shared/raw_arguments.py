"""Good arguments for every function of the C API, as far as they can be had without a GPU.

main() calls every function with each pointer NULL in turn, and prints what it is about to do and what came of it.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref
from typing import Any

from cudnnpy import raw
from cudnnpy.errors import CudnnError, FunctionNotAvailableError
from cudnnpy.raw import _api

_INTEGERS = ("int", "unsigned int", "int32_t", "uint32_t", "int64_t", "unsigned long long")
_ADDRESSES = ("cudaStream_t", "cudaGraph_t", "cudnnCallback_t")
_BYTES = 1 << 16  # of every buffer, more than any function writes that is told sizes of 1 to 4


def base(kind: str) -> str:
    """A C type without const, struct, pointers and brackets."""
    return kind.replace("const ", "").replace("struct ", "").replace("[]", "").rstrip(" *")


def is_pointer(kind: str) -> bool:
    """Whether C takes an address there."""
    return kind.endswith(("*", "[]"))


def is_handle(kind: str) -> bool:
    """Whether it is a handle or a descriptor by value."""
    found = getattr(_api, base(kind), None)
    return not is_pointer(kind) and isinstance(found, type) and issubclass(found, ctypes._Pointer)  # type: ignore[attr-defined]


def can_be_null(kind: str) -> bool:
    """Whether a parameter of this type can be NULL."""
    return is_pointer(kind) or is_handle(kind) or base(kind) in _ADDRESSES


class Arguments:
    """Makes arguments, and the descriptors among them once; a cudnnHandle_t is NULL, as it is without a GPU."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        ints = ctypes.c_int * 4
        one, seq = ctypes.c_int(1), ints(0, 1, 2, 3)
        for name, *values in (
            ("cudnnSetTensor4dDescriptor", 0, 0, 1, 2, 4, 4),
            ("cudnnSetFilter4dDescriptor", 0, 0, 2, 2, 3, 3),
            ("cudnnSetConvolution2dDescriptor", 1, 1, 1, 1, 1, 1, 0, 0),
            ("cudnnSetPooling2dDescriptor", 0, 0, 2, 2, 0, 0, 1, 1),
            ("cudnnSetActivationDescriptor", 1, 0, 0.0),
            ("cudnnSetLRNDescriptor", 5, 1e-4, 0.75, 2.0),
            ("cudnnSetOpTensorDescriptor", 0, 0, 0),
            ("cudnnSetReduceTensorDescriptor", 0, 0, 0, 0, 0),
            ("cudnnSetSpatialTransformerNdDescriptor", 0, 0, 4, ints(1, 2, 4, 4)),
            ("cudnnSetRNNDescriptor_v8", 0, 0, 1, 0, 0, 0, 0, 0, 2, 2, 2, 1, None, 0),
            ("cudnnSetCTCLossDescriptor", 0),
            ("cudnnSetAttnDescriptor", 0, 1, 1.0, 0, 0, 0, None, None, 2, 2, 2, 2, 2, 2, 2, 4, 4, 1, 1),
            ("cudnnSetSeqDataDescriptor", 0, 4, ints(1, 1, 1, 2), seq, 1, byref(one), None),
            ("cudnnSetRNNDataDescriptor", 0, 1, 1, 1, 2, byref(one), None),
        ):
            raw.call(name, self.made(base(raw.parameters(name)[0][1])), *values)

    def made(self, kind: str) -> Any:
        """A descriptor of a kind, or NULL where it cannot be made."""
        if kind not in self._made:
            pointer = self._made[kind] = getattr(_api, kind)()
            create = next((n for n in raw.functions() if n != "cudnnCreate" and self._creates(n, kind)), None)
            if create is not None:
                given = [byref(pointer) if is_pointer(k) else 0 for _, k, _ in raw.parameters(create)]
                raw.call(create, *given)
        return self._made[kind]

    @staticmethod
    def _creates(function: str, kind: str) -> bool:
        kinds = [k for _, k, _ in raw.parameters(function)]
        return function.startswith(("cudnnCreate", "cudnnBackendCreate")) and f"{kind} *" in kinds

    def good(self, kind: str, number: int = 1) -> Any:
        """An argument that C can use; `number` is that of every integer."""
        name = base(kind)
        if is_pointer(kind):
            return self._buffer(kind, name)
        if is_handle(kind):
            return raw.cudnnHandle_t() if name == "cudnnHandle_t" else self.made(name)
        if name in _ADDRESSES:
            return null(kind)
        if name in ("float", "double"):
            return 1.0
        return _BYTES if name == "size_t" else number if name in _INTEGERS else 0

    def _buffer(self, kind: str, name: str) -> Any:
        wanted = raw.ctype(kind)
        held: Any = ctypes.create_string_buffer(_BYTES)
        if kind.startswith("const ") and name in ("int", "int64_t"):
            held = ((ctypes.c_int if name == "int" else ctypes.c_int64) * 64)(*[1] * 64)
        elif kind.startswith("const ") and is_handle(name):
            held = (getattr(_api, name) * 16)(*[self.made(name)] * 16)
        return ctypes.cast(held, wanted)  # which keeps what is held


def null(kind: str) -> Any:
    """NULL as Python spells it."""
    return _api.cudnnCallback_t() if kind == "cudnnCallback_t" else None


def main() -> None:
    arguments = Arguments()
    for name in raw.functions():
        try:
            raw.bound(name)
        except FunctionNotAvailableError:
            continue
        parameters = raw.parameters(name)
        for number in (1, 4):
            for at, (parameter, kind, _) in enumerate(parameters):
                if not can_be_null(kind):
                    continue
                given = [null(k) if i == at else arguments.good(k, number) for i, (_, k, _) in enumerate(parameters)]
                print(name, parameter, number, end=" ", flush=True)
                try:
                    getattr(raw, name)(*given)
                except (TypeError, ValueError) as error:
                    print("refused:", error)
                except CudnnError as error:
                    print("raised:", error)
                else:
                    print("called")
    sys.stdout.flush()
