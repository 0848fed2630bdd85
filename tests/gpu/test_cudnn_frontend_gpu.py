"""The operations of docs/porting/cudnn-frontend.md on a GPU, in cudnn-frontend and here, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_operations import OPERATIONS, built

import cudnnpy

cudnn = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_sides_compute_the_same(name: str) -> None:
    operation = OPERATIONS[name]
    arrays = {key: cudnnpy.to_device(array) for key, array in operation.inputs.items() if array.size > 1}
    ours = [cudnnpy.to_numpy(result) for result in operation.ours(arrays)]

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=0)
    graph, tensors, outputs = built(cudnn, operation, handle=handle)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    workspace = cudnnpy.empty((max(graph.get_workspace_size(), 1),), "uint8")
    theirs = [cudnnpy.to_device(np.zeros_like(expected)) for expected in operation.expected]  # keeps the memory format
    # Numbers are passed by value, from an address on the host: a NumPy array rejects the stream with which they are asked for.
    given = {tensors[key]: arrays.get(key, array.ctypes.data) for key, array in operation.inputs.items()}
    graph.execute({**given, **dict(zip(outputs, theirs, strict=True))}, workspace, handle=handle)
    found = [cudnnpy.to_numpy(result) for result in theirs]
    cudnn.destroy_handle(handle)

    assert len(ours) == len(found) == len(operation.expected)
    for mine, other, expected in zip(ours, found, operation.expected, strict=True):
        scale = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
        assert np.allclose(mine, expected, rtol=2e-2, atol=1e-2 * scale)
        assert np.allclose(other, expected, rtol=2e-2, atol=1e-2 * scale)
