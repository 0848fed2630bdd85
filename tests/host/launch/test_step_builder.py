"""StepBuilder: steps on named operands and scratch tensors, run with NumPy."""

from __future__ import annotations

import numpy as np
from numpy_machine import run_steps

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import aligned_size

ROW = TensorSpec((4,), "float32", (1,))
DOUBLE = TensorSpec((4,), "float64", (1,))


def test_steps_run_in_order_on_operands_and_scratch_tensors() -> None:
    builder = StepBuilder({"x": ROW, "out": ROW})
    x, out = builder.operands["x"], builder.operands["out"]
    first, second = builder.scratch(DOUBLE), builder.scratch(ROW)
    builder.clear(second)
    builder.copy(x, first, 2.0)
    builder.copy(first, second, 1.0, 1.0)
    builder.copy(second, out, 1.0, 1.0)
    sequence = builder.sequence()
    assert [tensor.address_index for tensor in (x, out, first, second)] == [0, 1, 2, 3]
    assert sequence.scratch == [32, 16]
    source, target = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
    run_steps(sequence.steps, sequence.scratch, source, target)
    np.testing.assert_array_equal(target, [10, 12, 14, 16])
    np.testing.assert_array_equal(source, np.arange(4))


def test_a_sequence_is_a_step_with_scratch_memory_of_its_own() -> None:
    inner = StepBuilder({"x": ROW, "out": ROW})
    wide = inner.scratch(DOUBLE)
    inner.copy(inner.operands["x"], wide)
    inner.copy(wide, inner.operands["out"], -1.0)
    outer = StepBuilder({"x": ROW, "out": ROW})
    between = outer.scratch(ROW)
    outer.add(inner.sequence(), outer.operands["x"], between)
    outer.add(inner.sequence(), between, outer.operands["out"])
    sequence = outer.sequence()
    assert sequence.workspace_size == aligned_size(16) + aligned_size(32)  # both steps use the same bytes
    source, target = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run_steps(sequence.steps, sequence.scratch, source, target)
    np.testing.assert_array_equal(target, source)
