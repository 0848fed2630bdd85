"""One of PyTorch's samples through our operations, compared with torch in float64."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from opinfo_calls import CALLS, NO_COUNTERPART, NoCounterpart
from opinfo_samples import Sample

# How far a result may be from the exact one, in roundings of its own type: of its own size, and of the largest one's.
OWN, LARGEST = 4, 64


def torch_function(name: str) -> Callable[..., Any]:
    return reduce(getattr, name.partition(",")[0].split("."), torch)


def _with_tensors(sample: Sample, change: Callable[[torch.Tensor], Any]) -> tuple[list[Any], dict[str, Any]]:
    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) else value

    return list(map(changed, sample.arguments)), {name: changed(value) for name, value in sample.keywords.items()}


def check(
    nn: Any, sample: Sample, place: Callable[[torch.Tensor], Any], read: Callable[[Any], np.ndarray], loose: float = 1.0
) -> str:
    """What is wrong with our result or gradients, "" if nothing is.

    place makes the array that nn takes of a tensor on the CPU, read NumPy's float64 of such an array; loose multiplies the
    bounds. NoCounterpart is raised for an option that has none.
    """
    call = CALLS[sample.name]
    arguments, keywords = _with_tensors(sample, lambda tensor: place(tensor.clone()))
    given = inspect.signature(call).bind(nn, *arguments, **keywords).arguments
    computed = call(nn, *arguments, **keywords)

    arguments, keywords = _with_tensors(sample, lambda tensor: tensor.detach().double())
    exact = inspect.signature(call).bind(nn, *arguments, **keywords).arguments
    with_gradient = [name for name, value in exact.items() if isinstance(value, torch.Tensor) and "running" not in name]
    for name in with_gradient if computed.gradients is not None else ():
        exact[name].requires_grad_()
    with warnings.catch_warnings(action="ignore"):  # of its even windows that are padded to the same size
        y = torch_function(sample.name)(*arguments, **keywords)
    wrong = [_differs("y", read(computed.y), y.detach().numpy(), computed.y, loose)]
    for name, changed in computed.changed.items():
        wrong.append(_differs(name, read(changed), exact[name].numpy(), given[name], loose))
    if computed.gradients is not None:
        random = np.random.default_rng(y.numel())
        kind = getattr(torch, _type_of(computed.y))
        dy = torch.from_numpy(random.standard_normal(tuple(y.shape))).to(kind)
        expected = torch.autograd.grad(y, [exact[name] for name in with_gradient], dy.to(y.dtype))
        found = computed.gradients(place(dy))
        if list(found) != with_gradient:
            return f"gradients of {list(found)}, expected of {with_gradient}"
        for name, gradient in zip(with_gradient, expected, strict=True):
            wrong.append(_differs(f"d{name}", read(found[name]), gradient.numpy(), given[name], loose))
    return "; ".join(filter(None, wrong))


def failures(
    nn: Any,
    samples: Sequence[Sample],
    place: Callable[[torch.Tensor], Any],
    read: Callable[[Any], np.ndarray],
    loose: float = 1.0,
) -> str:
    """What is wrong with some samples of one operation, a line for each; "" if nothing is.

    A sample whose options are listed as without a counterpart is left out.
    """
    found, ran, listed = [], 0, 0
    for sample in samples:
        try:
            wrong = check(nn, sample, place, read, loose)
            ran += 1
        except NoCounterpart as option:
            listed += (sample.name, str(option)) in NO_COUNTERPART
            wrong = "" if (sample.name, str(option)) in NO_COUNTERPART else f"{option} is not in NO_COUNTERPART"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found.append(f"{sample}: {wrong}")
    if not found:
        return "" if ran or listed else "no sample ran"
    return f"{len(found)} of {len(samples)} samples failed\n" + "\n".join(found[:20])


def _type_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _differs(name: str, found: np.ndarray, expected: np.ndarray, like: Any, loose: float) -> str:
    """Of the type of `like`, in which an expected value may be infinite."""
    if found.shape != expected.shape:
        return f"{name} has shape {found.shape}, expected {expected.shape}"
    limits = torch.finfo(getattr(torch, _type_of(like)))
    expected = np.where(np.abs(expected) > limits.max * (1 + limits.eps / 2), np.copysign(np.inf, expected), expected)
    finite = np.isfinite(expected)
    largest = np.max(np.abs(expected), initial=1.0, where=finite)
    allowed = loose * limits.eps * (OWN * np.abs(np.where(finite, expected, 0.0)) + LARGEST * largest)
    with np.errstate(invalid="ignore"):
        good = np.where(finite, np.abs(found - expected) <= allowed, (found == expected) | np.isnan(expected + found))
    if good.all():
        return ""
    at = tuple(int(index) for index in np.argwhere(~good)[0])
    return (
        f"{name}: {int((~good).sum())} of {good.size} elements wrong; at {at} {found[at]!r}, expected {expected[at]!r}"
    )
