"""The bits that memory is filled with."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cudnnpy._core.dtypes import bits_of


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("value", [0.0, 1.0, math.nan])
def test_the_values_that_memory_is_filled_with(value: float, dtype: Any) -> None:
    kind = np.dtype(dtype)
    found = np.array(bits_of(value, kind.name), f"u{kind.itemsize}").view(kind)
    np.testing.assert_array_equal(found.astype(np.float64), value)
