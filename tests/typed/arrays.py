"""Arrays and streams of other libraries, as their type stubs declare them; the files beside this one use them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Torch:
    """torch.Tensor."""

    def __dlpack__(
        self,
        *,
        stream: Any | None = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[IntEnum, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The capsule."""

    def __dlpack_device__(self) -> tuple[IntEnum, int]:
        """The device."""
        raise NotImplementedError

    def relu(self) -> Torch:
        """A method that no other array has."""
        return self


class Cupy:
    """cupy.ndarray."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface."""
        return {}

    def get(self) -> object:
        """A method that no other array has."""
        return None


class Jax:
    """jax.Array."""

    def __dlpack__(self) -> Any:
        """The capsule."""


class TorchDtype:
    """torch.dtype."""

    is_floating_point: bool
    itemsize: int


class NumpyDtype:
    """numpy.dtype."""

    @property
    def name(self) -> str:
        """The name."""
        return "float32"

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return 4


class CoreStream:
    """cuda.core.Stream."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version and the address."""
        return 0, 0


class TorchStream:
    """torch.cuda.Stream of a release without __cuda_stream__."""

    cuda_stream: int


class CupyStream:
    """cupy.cuda.Stream."""

    ptr: int


class CoreDevice:
    """cuda.core.Device."""

    @property
    def device_id(self) -> int:
        """The ordinal."""
        return 0
