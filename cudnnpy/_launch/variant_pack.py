"""Variant packs, which pass the addresses of a launch to cudnnBackendExecute, each made in five C calls.

A finalized pack takes no other addresses, and serves any number of launches. All that does not depend on the addresses is
prepared once for an execution plan.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from ctypes import addressof, byref, c_int64, c_void_p
from typing import Any

from cudnnpy import raw
from cudnnpy._process.module_state import declare
from cudnnpy.backend import Descriptor

# Plain ints, which ctypes passes fastest.
_KIND = int(raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
_UNIQUE_IDS = int(raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
_DATA_POINTERS = int(raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
_WORKSPACE = int(raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE)
_INT64, _VOID_PTR = int(raw.CUDNN_TYPE_INT64), int(raw.CUDNN_TYPE_VOID_PTR)
_ONE = c_int64(1)
_address = struct.Struct("Q").pack

_process = object()  # replaced in a forked child, which must not destroy objects that were made before the fork

declare(__name__, "_process", in_child=True, resets=False)


class VariantPack(c_void_p):
    """A cudnnBackendDescriptor_t of a variant pack, which is destroyed with its last reference.

    It owns the numbers whose host addresses it holds.
    """

    def __init__(self, destroy: Callable[..., int], numbers: tuple[Any, ...]) -> None:
        super().__init__()
        self.destroy, self.numbers, self.process = destroy, numbers, _process

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self and self.process is _process:  # at exit, the names of this module may be gone
            self.destroy(self)


class VariantPacks:
    """The variant packs of one execution plan.

    `uids` are the unique ids of the tensors in the order of the addresses, tensors by value last. `numbers` are the values.
    """

    def __init__(self, uids: tuple[int, ...], numbers: tuple[Any, ...]) -> None:
        self._uids, self._hosts = uids, tuple(addressof(number) for number in numbers)
        self._numbers = numbers
        self._count, self._ids = c_int64(len(uids)), (c_int64 * len(uids))(*uids)
        self._addresses = struct.Struct(f"{len(uids)}Q").pack
        # Without argtypes, ctypes passes these objects unchecked, which halves the cost of a call.
        self._create = raw.unchecked("cudnnBackendCreateDescriptor")
        self._set = raw.unchecked("cudnnBackendSetAttribute")
        self._finalize = raw.unchecked("cudnnBackendFinalize")
        self._destroy = raw.unchecked("cudnnBackendDestroyDescriptor")

    def finalized(self, pointers: tuple[int, ...], workspace: int) -> Any:
        """Return the pack of these addresses. Raises StatusError if cuDNN rejects it."""
        try:
            # C copies the values. Bytes are created faster than ctypes arrays, and threads need not share them.
            addresses, space = self._addresses(*pointers, *self._hosts), _address(workspace)
        except struct.error:
            return self._checked(pointers, workspace)
        pack = VariantPack(self._destroy, self._numbers)
        if status := self._create(_KIND, byref(pack)):
            raise raw.error_of(status, "cudnnBackendCreateDescriptor")
        set_attribute, count = self._set, self._count
        status = (
            set_attribute(pack, _UNIQUE_IDS, _INT64, count, self._ids)
            or set_attribute(pack, _DATA_POINTERS, _VOID_PTR, count, addresses)
            or set_attribute(pack, _WORKSPACE, _VOID_PTR, _ONE, space)
        )
        if status:
            raise raw.error_of(status, "cudnnBackendSetAttribute")
        if status := self._finalize(pack):
            raise raw.error_of(status, "cudnnBackendFinalize")
        return pack

    def _checked(self, pointers: tuple[int, ...], workspace: int) -> Any:
        """Return the pack of addresses that are not integers of 64 bits, or raise the error that names the attribute."""
        addresses = (*pointers, *self._hosts)
        return Descriptor(_KIND, {_UNIQUE_IDS: self._uids, _DATA_POINTERS: addresses, _WORKSPACE: workspace}).pointer
