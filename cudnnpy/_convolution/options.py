"""The options of convolutions: padding, stride, dilation, groups, layout, mode, compute type, algorithm and policy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self, get_args

from cudnnpy import raw
from cudnnpy._checks.dtype_names import element_name
from cudnnpy._checks.option_values import (
    check_integer,
    check_layout,
    check_option,
    check_padding,
    check_per_axis,
    error_repr,
)
from cudnnpy._checks.options import Options
from cudnnpy._checks.preferences import PreferenceOptions
from cudnnpy._checks.suggestions import suggest_value, with_suggestions
from cudnnpy.names import short_names
from cudnnpy.typing import ConvolutionMode, ElementName, PaddingName, Policy

if TYPE_CHECKING:
    from cudnnpy._planning.choice import Engine
    from cudnnpy._planning.plan import Plan
    from cudnnpy.typing import ComputeDtype, ConvolutionAlgorithm, Layout, Padding, PerAxis

MODES: tuple[ConvolutionMode, ...] = get_args(ConvolutionMode)
PADDINGS: tuple[PaddingName, ...] = get_args(PaddingName)
POLICIES: tuple[Policy, ...] = get_args(Policy)
COMPUTE_DTYPES = ("float32", "float64", "float16", "int32")


def _compute_dtype(value: Any) -> str | None:
    if value is None:
        return None
    name = element_name(value)
    if name is None or name not in COMPUTE_DTYPES:
        kind = TypeError if name is None else ValueError
        advice = suggest_value(value, COMPUTE_DTYPES) if isinstance(value, str) else ""
        raise kind(
            f"compute_dtype must be None or one of {', '.join(map(repr, COMPUTE_DTYPES))}; got {error_repr(value)}{advice}"
        )
    return name


def compute_dtype_for(given: Any, dtype: str) -> ElementName:
    """Return the dtype in which products of a dtype are summed: the given one, or a default.

    The default is float64 for float64, int32 for int8, and otherwise float32. Raises ValueError for one that cuDNN lacks.
    """
    allowed: dict[str, tuple[ElementName, ...]] = {
        "float64": ("float64",),
        "int8": ("int32", "float32"),
        "float16": ("float32", "float16"),
    }
    dtypes = allowed.get(dtype, ("float32",))
    if given is not None and given not in dtypes:
        raise ValueError(f"compute_dtype must be {' or '.join(map(repr, dtypes))} for {dtype}; got {error_repr(given)}")
    return given or dtypes[0]


# The names of cuDNN's v7 convolution algorithms

_ENUMS: dict[str, type[IntEnum]] = {
    "forward": raw.cudnnConvolutionFwdAlgo_t,
    "backward_data": raw.cudnnConvolutionBwdDataAlgo_t,
    "backward_filter": raw.cudnnConvolutionBwdFilterAlgo_t,
}
_NAMES = {operation: tuple(name for name in short_names(kind) if name != "count") for operation, kind in _ENUMS.items()}
# Theano's names for the same algorithms, where they differ.
_THEANO = {
    "forward": {"none": "implicit_gemm", "small": "implicit_precomp_gemm", "large": "gemm"},
    "backward_data": {"none": "0", "deterministic": "1"},
    "backward_filter": {"none": "0", "deterministic": "1", "small": "3"},
}


def algorithm_names(operation: str) -> tuple[str, ...]:
    """The algorithms of an operation by their short names: "implicit_gemm", "fft_tiling", ...; "0" for ALGO_0."""
    return _NAMES[operation]


def algorithm_named(operation: str, given: str) -> str:
    """The short name that a user's name means: ours, "algo_0", or Theano's. ValueError for an unknown one."""
    name = _named(operation, given)
    if name is None:
        theano = ", ".join(_THEANO[operation])
        raise ValueError(
            f"algorithm must be one of {', '.join(_NAMES[operation])}, or Theano's {theano}, for {operation}; "
            f"got {error_repr(given)}{suggest_value(given, (*_NAMES[operation], *_THEANO[operation]))}"
        )
    return name


def check_algorithm(given: object) -> object:
    """The algorithm. ValueError for a name that is of no operation.

    The layers, which know Engine and Plan, check what is not a name (_layers/convolution.py, check_forced).
    """
    if isinstance(given, str) and not any(_named(operation, given) for operation in _NAMES):
        known = (f"one of {', '.join((*_NAMES[name], *_THEANO[name]))} for {name}" for name in _NAMES)
        every = {name for names in (_NAMES, _THEANO) for operation in names for name in names[operation]}
        advice = suggest_value(given, sorted(every))
        raise ValueError(f"algorithm must be {', or '.join(known)}; got {error_repr(given)}{advice}")
    return given


def _named(operation: str, given: str) -> str | None:
    name = given.lower().removeprefix("algo_").replace("non_fused", "nonfused")
    name = _THEANO[operation].get(name, name)
    return name if name in _NAMES[operation] else None


# Options


@dataclass(frozen=True, kw_only=True)
class GeometryOptions(Options):
    """The options that determine sizes and products, which every convolution has."""

    padding: Padding = 0
    stride: PerAxis = 1
    dilation: PerAxis = 1
    groups: int = 1
    mode: ConvolutionMode = "cross_correlation"
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        return super()._canonical() | {
            "padding": check_padding(self.padding, PADDINGS),
            "stride": check_per_axis("stride", self.stride, 1),
            "dilation": check_per_axis("dilation", self.dilation, 1),
            "groups": check_integer("groups", self.groups, 1),
            "mode": check_option("mode", self.mode, MODES),
            "layout": check_layout(self.layout),
        }


@with_suggestions
@dataclass(frozen=True, kw_only=True, repr=False)
class ConvolutionOptions(PreferenceOptions, GeometryOptions):
    """The options of Convolution."""

    compute_dtype: ComputeDtype | None = None
    algorithm: ConvolutionAlgorithm | Engine | Plan | None = None
    policy: Policy = "on_shape_change"

    @property
    def options(self) -> Self:
        """The options in canonical form: the object itself."""
        return self

    def _canonical(self) -> dict[str, Any]:
        return super()._canonical() | {
            "compute_dtype": _compute_dtype(self.compute_dtype),
            "algorithm": check_algorithm(self.algorithm),
            "policy": check_option("policy", self.policy, POLICIES),
        }

    def __repr__(self) -> str:
        """The call that creates the object, with the options that are not defaults."""
        options = [f"{o.name}={getattr(self, o.name)!r}" for o in fields(self) if getattr(self, o.name) != o.default]
        return f"{type(self).__name__}({', '.join(options)})"


@with_suggestions
@dataclass(frozen=True, kw_only=True, repr=False)
class TransposeOptions(ConvolutionOptions):
    """The options of ConvolutionTranspose."""

    output_padding: PerAxis = 0

    def _canonical(self) -> dict[str, Any]:
        return super()._canonical() | {"output_padding": check_per_axis("output_padding", self.output_padding, 0)}


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class FusedOptions(PreferenceOptions, GeometryOptions):
    """The options of FusedConvolution."""
