"""PyTorch's own sample inputs on the GPU: all are accepted, with torch's numbers and gradients in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import opinfo
import pytest
import torch
from opinfo_calls import CALLS
from opinfo_samples import DTYPES, Sample, samples_of

import cudnnpy

LOOSE = 4.0  # sums in float32 beside narrow types, and the GPU's exponential functions


def to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cuda()


def to_float64(tensor: Any) -> np.ndarray:
    assert isinstance(tensor, torch.Tensor)
    assert tensor.is_cuda
    return tensor.detach().cpu().double().numpy()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples_of(list(CALLS), tmp_path_factory.mktemp("opinfo"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_what_torch_takes_is_taken_and_gives_torchs_numbers(samples: list[Sample], name: str, dtype: str) -> None:
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == (name, dtype)]
    assert opinfo.failures(cudnnpy, chosen, to_gpu, to_float64, LOOSE) == ""
