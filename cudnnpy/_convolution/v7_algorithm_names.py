"""The names of cuDNN's v7 convolution algorithms: cudnnConvolutionFwdAlgo_t, -BwdDataAlgo_t and -BwdFilterAlgo_t."""

from __future__ import annotations

from enum import IntEnum

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._checks.suggestions import suggest_value
from cudnnpy.names import short_names

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
    """None, the name of an algorithm of any operation, an Engine or a Plan.

    Engine and Plan are not imported here: any instance with an attribute `knobs` or `execute` is accepted.
    """
    if isinstance(given, str):
        if not any(_named(operation, given) for operation in _NAMES):
            known = (f"one of {', '.join((*_NAMES[name], *_THEANO[name]))} for {name}" for name in _NAMES)
            every = {name for names in (_NAMES, _THEANO) for operation in names for name in names[operation]}
            advice = suggest_value(given, sorted(every))
            raise ValueError(f"algorithm must be {', or '.join(known)}; got {error_repr(given)}{advice}")
    elif isinstance(given, type) or not (given is None or hasattr(given, "knobs") or hasattr(given, "execute")):
        raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {error_repr(given)}")
    return given


def _named(operation: str, given: str) -> str | None:
    name = given.lower().removeprefix("algo_").replace("non_fused", "nonfused")
    name = _THEANO[operation].get(name, name)
    return name if name in _NAMES[operation] else None
