"""The tensors of a call of `plan` or `candidates`: arrays or TensorSpecs, and their device."""

from __future__ import annotations

from collections.abc import Mapping

from cudnnpy._arrays.array_libraries import read, spec_of
from cudnnpy._core.layouts import TensorSpec, check_spec
from cudnnpy._planning.chooser import OtherGpu, check_device


def specs_and_device(
    given: Mapping[str, object], device: int | OtherGpu | None
) -> tuple[dict[str, TensorSpec], int | None]:
    """Return the specs of arrays and TensorSpecs by name, and the ordinal of their device; None if no device is given.

    The ordinal for a profile is 0. Raises TypeError and ValueError for arguments that do not fit together.
    """
    specs: dict[str, TensorSpec] = {}
    devices: dict[str, int] = {}
    check_device(device, {name: one for name, one in given.items() if not isinstance(one, TensorSpec | None)})
    for name, array in given.items():
        if isinstance(array, TensorSpec):
            specs[name] = check_spec(name, array)
        elif array is not None:
            pointer, signature = read(array, name)
            devices[name] = signature[3]
            specs[name] = spec_of(signature, min(pointer & -pointer, 16))
    if isinstance(device, OtherGpu):
        return specs, 0
    ordinals = set(devices.values()) | ({device} if device is not None else set())
    if len(ordinals) > 1:
        raise ValueError(f"device must be the device of the arrays, {devices}; got {device}")
    return specs, ordinals.pop() if ordinals else None
