"""cudnnpy.typing: each Literal has exactly the names that are accepted at run time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

import numpy as np
import pytest
from sample_calls import BY_NAME
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import Graph, TensorSpec, descriptors, names, raw, reference, typing

X = TensorSpec((2, 4, 6, 6))
ALIASES = {name: getattr(typing, name) for name in typing.__all__}


def literals_of(alias: Any) -> set[str]:
    """The strings of a Literal, or of the Literals in a union."""
    return {member for one in (alias, *get_args(alias)) for member in get_args(one) if isinstance(member, str)}


# Every string that means something somewhere in this package or in cuDNN: what a Literal might lack, or have too much.
NAMES = sorted(
    {name for alias in ALIASES.values() for name in literals_of(alias)}
    | {name for kind in raw._api.ENUMS for name in names.short_names(kind)}
    | {"", "nonsense", "float8", "bfloat", "NC", "CHWN", "F", "sum_of_squares", "cuda", "cpu"}
)


def accepted(call: Callable[[str], object]) -> set[str]:
    """The names among NAMES with which a call raises no TypeError or ValueError."""
    found = set()
    for name in NAMES:
        try:
            call(name)
        except (TypeError, ValueError):
            continue
        found.add(name)
    return found


def graph(*shapes: tuple[int, ...]) -> tuple[Graph, list[Any]]:
    made = Graph()
    return made, [made.tensor(f"t{at}", TensorSpec(shape)) for at, shape in enumerate(shapes)]


def pointwise(name: str) -> None:
    """With one to three inputs: the modes differ in that alone."""
    errors: list[Exception] = []
    for count in (1, 2, 3):
        made, nodes = graph(*[X.shape] * count)
        try:
            made.pointwise(name, *nodes, axis=0 if name.lower() == "gen_index" else None)
        except (TypeError, ValueError) as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def convolved(name: str) -> None:
    made, nodes = graph(X.shape, (8, 4, 3, 3))
    made.convolution(*nodes, mode=name)


def reduced(name: str) -> None:
    made, (x,) = graph(X.shape)
    made.reduction(name, x, axes=(1,))


def resampled(name: str) -> None:
    made, (x,) = graph(X.shape)
    made.resample(name, x, 2)


def normalized(name: str) -> None:
    made, (x, scale) = graph(X.shape, (1, 4, 1, 1))
    made.normalization(name, x, scale, None, 1e-5)


def options(**given: Any) -> None:
    """Both the class for device arrays and the reference are made with the options."""
    for package in (cudnnpy, reference):
        package.Convolution(**given)


def with_layout(name: str) -> None:
    for kind in ("Convolution", "ConvolutionTranspose", "FusedConvolution", "Pooling", "Softmax", "BatchNormalization"):
        getattr(cudnnpy, kind)(layout=name)
        getattr(reference, kind)(layout=name)


def both(kind: str, **given: Any) -> None:
    getattr(cudnnpy, kind)(**given)
    getattr(reference, kind)(**given)


def called(sample: str, **given: Any) -> None:
    found = BY_NAME[sample]
    found.operation()(**{**found.given(optional=False), **given})


def forward(activation: str) -> None:
    cudnnpy.Convolution().forward(Array(2, 4, 6, 6), Array(8, 4, 3, 3), activation=activation)
    one = np.ones((1, 1, 1, 1), np.float32)
    reference.Convolution().forward(one, one, activation=activation)


def allocated(layout: str) -> None:
    """The layout is checked before memory is allocated."""
    with suppress(cudnnpy.errors.NotInitializedError):
        cudnnpy.empty((2, 4, 6, 6), layout=layout)


def convolution_descriptor(**given: Any) -> None:
    descriptors.ConvolutionDescriptor((0, 0), **given)


def of_element_type(name: str) -> str:
    """The element type's first name."""
    return Graph().tensor("x", TensorSpec((1,), name)).spec.dtype


def planned(name: str) -> None:
    """With the shapes that the operation takes; for other names, with any."""
    x, w, y = (2, 4, 6, 6), (8, 4, 3, 3), (2, 8, 4, 4)
    arrays = {"backward_data": (y, w, x), "backward_filter": (y, x, w)}.get(name, (x, w, None))
    cudnnpy.Convolution().plan(name, Array(*arrays[0]), Array(*arrays[1]), arrays[2])


def attention_planned(name: str) -> Any:
    spec = cudnnpy.TensorSpec((2, 2, 16, 16), "float16")
    return cudnnpy.Attention()._planned_graphs(name, 3 * (spec,) + 10 * (None,), (None, None), False, 0)  # type: ignore[arg-type]


# alias -> what takes its names; an alias with several is tried with each
TAKEN_BY: dict[str, list[Callable[[str], object]]] = {
    "ActivationMode": [
        lambda name: both("Activation", mode=name),
        lambda name: descriptors.ActivationDescriptor(name),
    ],
    "AttentionLayout": [lambda name: both("Attention", layout=name)],
    "AttentionOperation": [attention_planned],
    "CausalMask": [lambda name: both("Attention", causal=name)],
    "ComputeDtype": [lambda name: cudnnpy.Convolution(compute_dtype=name)],
    "ConvolutionActivation": [forward],
    "ConvolutionAlgorithm": [lambda name: cudnnpy.Convolution(algorithm=name)],
    "ConvolutionMode": [
        lambda name: options(mode=name),
        convolved,
        lambda name: convolution_descriptor(mode=name),
    ],
    "ConvolutionOperation": [planned],
    "CudnnPoolingMode": [lambda name: descriptors.PoolingDescriptor(name, (2, 2))],
    "DataType": [names.data_type, lambda name: convolution_descriptor(compute_dtype=name)],
    "Dtype": [of_element_type],
    "DtypeName": [of_element_type],
    "FusedActivation": [lambda name: called("FusedConvolution.forward", activation=name)],
    "FusedOperations": [descriptors.FusedOpsPlan],
    "GraphNormalization": [normalized],
    "IndicesType": [lambda name: descriptors.ReduceTensorDescriptor("max", indices_type=name)],
    "Layout": [with_layout],
    "MathType": [lambda name: convolution_descriptor(math_type=name)],
    "MemoryLayout": [allocated],
    "NormalizationActivation": [
        lambda name: called("BatchNormalization.forward_training", activation=name),
    ],
    "NormalizationMode": [lambda name: both("BatchNormalization", mode=name)],
    "Padding": [lambda name: options(padding=name)],
    "PaddingName": [lambda name: options(padding=name)],
    "PointwiseMode": [pointwise],
    "Policy": [lambda name: options(policy=name)],
    "PoolingMode": [lambda name: both("Pooling", mode=name)],
    "Preference": [
        lambda name: options(prefer=name),
        lambda name: Graph(prefer=name),
        lambda name: cudnnpy.FusedConvolution(prefer=name),
    ],
    "ReduceIndices": [lambda name: descriptors.ReduceTensorDescriptor("max", indices=name)],
    "ReduceOperation": [reduced, lambda name: descriptors.ReduceTensorDescriptor(name)],
    "ResampleMode": [resampled],
    "SoftmaxAlgorithm": [lambda name: both("Softmax", algorithm=name)],
    "SoftmaxMode": [lambda name: both("Softmax", mode=name)],
    "TensorFormat": [lambda name: descriptors.FilterDescriptor((4, 4, 3, 3), "int8x4", format=name)],
    "TensorOperation": [lambda name: descriptors.OpTensorDescriptor(name)],
}  # fmt: skip


def test_every_alias_with_names_is_tested() -> None:
    with_names = {name for name, alias in ALIASES.items() if literals_of(alias)}
    assert with_names == {*TAKEN_BY, "ElementName"}


@pytest.mark.parametrize("alias", TAKEN_BY)
def test_a_literal_has_the_names_that_are_accepted(stand_in: StandInDevice, alias: str) -> None:
    """Names that cuDNN defines are taken in any case, and written in lower case."""
    wanted = literals_of(ALIASES[alias])
    if alias == "DataType":  # names of arrays, such as "half", are taken besides
        wanted |= literals_of(typing.DtypeName)
    for call in TAKEN_BY[alias]:
        assert {name for name in accepted(call) if name in wanted or name.lower() not in wanted} == wanted


def test_an_element_name_is_the_first_of_the_names_of_an_element_type() -> None:
    names = {name: of_element_type(name) for name in literals_of(typing.DtypeName)}
    assert set(names.values()) == literals_of(typing.ElementName)
    assert all(names[name] == name for name in literals_of(typing.ElementName))
