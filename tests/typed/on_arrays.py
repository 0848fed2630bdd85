"""A user's program with the functions of cudnnpy on device arrays of several libraries.

It is checked, not run: see tests/host/project/test_typed.py.
"""

from __future__ import annotations

from typing import TypeVar, assert_type

import numpy as np
from arrays import CoreStream, Cupy, CupyStream, Jax, NumpyDtype, Torch, TorchDtype, TorchStream

import cudnnpy
import cudnnpy.torch
from cudnnpy import TensorSpec
from cudnnpy.typing import Array, ArrayT, Padding, PerAxis, Preference, Stream

torch, cupy = Torch(), Cupy()

# Arrays of this package

own = cudnnpy.to_device(np.zeros((2, 3), np.float32))
own = cudnnpy.to_device([[1.0, 2.0]], "bfloat16", device=0)
own = cudnnpy.empty((1, 3, 8, 8), "half", layout="channels_last")
for dtype in (np.float32, np.dtype("float16"), NumpyDtype(), TorchDtype()):
    own = cudnnpy.empty([1, 3, 8, 8], dtype)
cudnnpy.empty(np.array([1, 2]))
assert_type(own, cudnnpy.DeviceArray)
assert_type(own.shape, tuple[int, ...])
assert_type(own.strides, tuple[int, ...])
assert_type(own.pointer, int)
assert_type(own.device, int)
assert_type(own.__dlpack_device__(), tuple[int, int])
for array in (own, torch, cupy, Jax()):
    total = float(cudnnpy.to_numpy(array).sum())

# A result is of the library of the first array

softmax = cudnnpy.Softmax()
assert_type(softmax.backward(torch, cupy), Torch)
assert_type(softmax.backward(cupy, torch, alpha=2, beta=0.5), Cupy)
assert_type(softmax.forward(own), cudnnpy.DeviceArray)
assert_type(softmax.forward(Jax()), Jax)
assert_type(softmax.forward(cupy, out=cupy), Cupy)
for stream in (None, 0x7F00, CoreStream(), TorchStream(), CupyStream()):
    softmax.forward(torch, stream=stream)

# A user's own functions, annotated


def relu(x: ArrayT, stream: Stream | None = None) -> ArrayT:
    """A function that keeps the type of its argument."""
    return cudnnpy.Activation().forward(x, stream=stream)


assert_type(relu(torch), Torch)
Mine = TypeVar("Mine", bound=Array)
padding: list[Padding] = [0, (1, 2), ((0, 1), (1, 0)), [1, (0, 1)], "same", np.array([1, 2]), np.int64(1)]
per_axis: list[PerAxis] = [1, (1, 2), [1, 2, 3], np.array([1, 2])]
preferences: tuple[Preference, ...] = ("fastest", "limited_workspace", "no_workspace", "autotune")

# Tensors without memory

spec = TensorSpec((1, 3, 8, 8), "float16", strides=(192, 1, 24, 3), alignment=16)
assert_type(spec.shape, tuple[int, ...])
assert_type(spec._replace(dtype="float32"), TensorSpec)

# Workspace and plans that are kept

cudnnpy.set_allocator(lambda size, device, stream: Torch())


class Buffer:
    """cuda.core.Buffer."""

    @property
    def handle(self) -> int:
        """The address."""
        return 0x7F00


def allocate(count: int, ordinal: int, queue: int) -> Buffer:
    """An allocator with names of its own for the arguments."""
    return Buffer()


cudnnpy.set_allocator(allocate)
cudnnpy.set_allocator(None)
cudnnpy.release_workspace(captured=True)
cudnnpy.set_cache_limit(100)
cudnnpy.set_cache_limit(direct=False)
assert_type(cudnnpy.cache_info().direct_launches, int)
assert_type(cudnnpy.cache_info().size + cudnnpy.cache_info().misses, int)
cudnnpy.clear_cache()

# Programs of PyTorch

with cudnnpy.torch.enable():
    pass
with (
    cudnnpy.torch.enable(prefer="autotune", workspace_limit=1 << 30, deterministic=True, tf32=False, tune_seconds=1),
    cudnnpy.torch.disable(),
):
    assert_type(cudnnpy.torch.is_enabled(), bool)
assert_type(cudnnpy.torch.stats().handled["forward"], int)
assert_type(cudnnpy.torch.stats().fallbacks, dict[str, int])
cudnnpy.torch.reset_stats()
