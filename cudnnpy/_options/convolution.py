"""The options of Convolution, ConvolutionTranspose and FusedConvolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, get_args

from cudnnpy._options.algorithms import SupportsExecute, SupportsKnobs, check_algorithm
from cudnnpy._options.base import Options
from cudnnpy._options.byte_counts import read_bytes
from cudnnpy._options.checks import (
    check_flag,
    check_integer,
    check_layout,
    check_number,
    check_option,
    check_padding,
    check_per_axis,
    error_repr,
)
from cudnnpy._options.element_types import element_name
from cudnnpy._options.suggestions import suggest_value, with_suggestions
from cudnnpy.typing import ConvolutionMode, ElementName, PaddingName, Policy, Preference

if TYPE_CHECKING:
    from cudnnpy.typing import ComputeDtype, ConvolutionAlgorithm, Layout, Padding, PerAxis

MODES: tuple[ConvolutionMode, ...] = get_args(ConvolutionMode)
PADDINGS: tuple[PaddingName, ...] = get_args(PaddingName)
PREFERENCES: tuple[Preference, ...] = get_args(Preference)
POLICIES: tuple[Policy, ...] = get_args(Policy)
COMPUTE_DTYPES = ("float32", "float64", "float16", "int32")
DEFAULT_LIMIT = 1 << 30  # bytes; the limit of "limited_workspace" by default
TUNE_SECONDS = 2.0  # the most that "autotune" takes for one problem, by default


def _workspace_limit(value: Any) -> int | None:
    expected = "a number of bytes, 0 or more, or None"
    if isinstance(value, str) and (count := read_bytes(value)) is not None:
        raise TypeError(f"workspace_limit must be {expected}; got {error_repr(value)}, which is {count}")
    return None if value is None else check_integer("workspace_limit", value, 0, expected=expected)


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


# The canonical form of each option.
_CANONICAL: dict[str, Callable[[Any], Any]] = {
    "padding": lambda value: check_padding(value, PADDINGS),
    "stride": lambda value: check_per_axis("stride", value, 1),
    "dilation": lambda value: check_per_axis("dilation", value, 1),
    "output_padding": lambda value: check_per_axis("output_padding", value, 0),
    "groups": lambda value: check_integer("groups", value, 1),
    "mode": lambda value: check_option("mode", value, MODES),
    "layout": check_layout,
    "compute_dtype": _compute_dtype,
    "prefer": lambda value: check_option("prefer", value, PREFERENCES),
    "workspace_limit": _workspace_limit,
    "deterministic": lambda value: check_flag("deterministic", value),
    "tf32": lambda value: check_flag("tf32", value),
    "algorithm": check_algorithm,
    "policy": lambda value: check_option("policy", value, POLICIES),
    "tune_seconds": lambda value: check_number("tune_seconds", value, above=0.0),
}


def canonical(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a convolution, by name, in canonical form.

    Raises TypeError for an option of another type, ValueError for one that is out of range.
    """
    return {name: _CANONICAL[name](value) for name, value in options.items() if name in _CANONICAL}


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


def limit_of_preference(prefer: str, limit: int | None) -> int | None:
    """Return the largest workspace that a preference permits, in bytes; None if it permits any.

    It is 0 for "no_workspace", and otherwise `limit`, whose default is 1 GiB for "limited_workspace".
    """
    if prefer == "no_workspace":
        return 0
    return DEFAULT_LIMIT if prefer == "limited_workspace" and limit is None else limit


@with_suggestions
@dataclass(frozen=True, kw_only=True, repr=False)
class ConvolutionOptions(Options):
    """The options of Convolution."""

    padding: Padding = 0
    stride: PerAxis = 1
    dilation: PerAxis = 1
    groups: int = 1
    mode: ConvolutionMode = "cross_correlation"
    layout: Layout = "NCHW"
    compute_dtype: ComputeDtype | None = None
    prefer: Preference = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    algorithm: ConvolutionAlgorithm | SupportsKnobs | SupportsExecute | None = None
    policy: Policy = "on_shape_change"
    tune_seconds: float = TUNE_SECONDS

    @property
    def options(self) -> Self:
        """The options in canonical form: the object itself."""
        return self

    def _canonical(self) -> dict[str, Any]:
        return canonical(self._fields())

    def __repr__(self) -> str:
        """The call that creates the object, with the options that are not defaults."""
        options = [f"{o.name}={getattr(self, o.name)!r}" for o in fields(self) if getattr(self, o.name) != o.default]
        return f"{type(self).__name__}({', '.join(options)})"


@with_suggestions
@dataclass(frozen=True, kw_only=True, repr=False)
class TransposeOptions(ConvolutionOptions):
    """The options of ConvolutionTranspose."""

    output_padding: PerAxis = 0


@with_suggestions
@dataclass(frozen=True, kw_only=True)
class FusedOptions(Options):
    """The options of FusedConvolution."""

    padding: Padding = 0
    stride: PerAxis = 1
    dilation: PerAxis = 1
    groups: int = 1
    mode: ConvolutionMode = "cross_correlation"
    layout: Layout = "NCHW"
    prefer: Preference = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    tune_seconds: float = TUNE_SECONDS

    def _canonical(self) -> dict[str, Any]:
        return canonical(self._fields())
