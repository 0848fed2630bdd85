"""PyTorch's own sample inputs through the reference: all are accepted, with torch's numbers and gradients."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import opinfo
import pytest
import torch
from opinfo_calls import CALLS, NO_COUNTERPART, NoCounterpart
from opinfo_samples import DTYPES, Sample, samples_of

from cudnnpy import reference


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same memory order."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_float64(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return samples_of(list(CALLS), tmp_path_factory.mktemp("opinfo"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_what_torch_takes_is_taken_and_gives_torchs_numbers(samples: list[Sample], name: str, dtype: str) -> None:
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == (name, dtype)]
    assert opinfo.failures(reference, chosen, to_numpy, to_float64) == ""


def test_every_option_that_is_listed_as_without_a_counterpart_occurs(samples: list[Sample]) -> None:
    occurred: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        if sample.dtype == "float32":
            try:
                CALLS[sample.name](Anything(), *sample.arguments, **sample.keywords)
            except NoCounterpart as option:
                occurred[sample.name, str(option)] += 1
            except Stop:
                pass
    assert set(NO_COUNTERPART) == set(occurred)


class Stop(Exception):
    """An operation was asked for."""


class Anything:
    def __getattr__(self, name: str) -> Any:
        raise Stop


class Faulty:
    """The reference with a fault in its softmax."""

    def __init__(self, fault: Callable[[Any], Any]) -> None:
        self.fault = fault

    def Softmax(self, *given: Any, **options: Any) -> Any:
        layer, fault = reference.Softmax(*given, **options), self.fault
        return SimpleNamespace(forward=layer.forward, backward=lambda *arrays: fault(layer.backward(*arrays)))


def refuse(dx: np.ndarray) -> np.ndarray:
    raise ValueError("planted")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda dx: dx * 1.01, r"7 samples failed.*\bdx: .* elements wrong"),
        (lambda dx: np.full_like(dx, np.nan), r"dx: .* elements wrong; at \(0,\) .*nan"),
        (lambda dx: dx[:0], "failed"),
        (refuse, r"softmax\(\(5, 10, 5\), 2\) in float32: ValueError: planted"),
    ],
)
def test_a_planted_fault_is_found(samples: list[Sample], fault: Callable[[Any], Any], told: str) -> None:
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == ("softmax", "float32")]
    assert re.search(told, opinfo.failures(Faulty(fault), chosen, to_numpy, to_float64), re.DOTALL)


def test_an_option_that_is_not_listed_is_found(samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NO_COUNTERPART, ("nn.functional.max_pool1d", "return_indices"))
    chosen = [sample for sample in samples if (sample.name, sample.dtype) == ("nn.functional.max_pool1d", "float32")]
    assert "return_indices is not in NO_COUNTERPART" in opinfo.failures(reference, chosen, to_numpy, to_float64)
    assert opinfo.failures(reference, [], to_numpy, to_float64) == "no sample ran"
