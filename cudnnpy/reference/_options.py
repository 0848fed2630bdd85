"""What a convolution is told when it is made: the options, checked and brought to one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from cudnnpy.reference._numbers import integer, real

Padding: TypeAlias = int | str | Sequence[int | Sequence[int]]
PerAxis: TypeAlias = int | Sequence[int]

MODES = ("cross_correlation", "convolution")
# A layout's number of array axes; None where the name stands for 1, 2 and 3 spatial dimensions alike.
LAYOUTS = {"NCW": 3, "NCHW": None, "NCDHW": 5, "NWC": 3, "NHWC": None, "NDHWC": 5}
PADDINGS = ("valid", "same", "half", "full")
PREFERENCES = ("fastest", "limited_workspace", "no_workspace", "autotune")
POLICIES = ("once", "on_shape_change")
COMPUTE_DTYPES = ("float16", "float32", "float64", "int32")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that `Convolution` and `ConvolutionTranspose` share; see there."""

    padding: Padding = 0
    stride: PerAxis = 1
    dilation: PerAxis = 1
    groups: int = 1
    mode: str = "cross_correlation"
    layout: str = "NCHW"
    compute_dtype: Any = None
    prefer: str = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    algorithm: Any = None
    policy: str = "on_shape_change"
    tune_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check every option and store sequences as tuples, so that the object is hashable and cannot change."""
        self._set("padding", _padding(self.padding))
        self._set("stride", per_axis("stride", self.stride, 1))
        self._set("dilation", per_axis("dilation", self.dilation, 1))
        self._set("groups", integer("groups", self.groups, 1))
        one_of("mode", self.mode, MODES)
        one_of("layout", self.layout, tuple(LAYOUTS))
        self._set("compute_dtype", _compute_dtype(self.compute_dtype))
        one_of("prefer", self.prefer, PREFERENCES)
        if self.workspace_limit is not None:
            self._set("workspace_limit", integer("workspace_limit", self.workspace_limit, 0))
        for name in ("deterministic", "tf32"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool; got {getattr(self, name)!r}")
        one_of("policy", self.policy, POLICIES)
        given = self.algorithm  # a name, an Engine or a Plan, which this package does not import
        named = given is None or isinstance(given, str)
        if not (named or hasattr(given, "knobs") or hasattr(given, "execute")) or isinstance(given, type):
            raise TypeError(f"algorithm must be None, an algorithm's name, an Engine or a Plan; got {given!r}")
        if not real("tune_seconds", self.tune_seconds) > 0:
            raise ValueError(f"tune_seconds must be a number above 0; got {self.tune_seconds!r}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def options(self) -> Options:
        """The options in one canonical form: the object itself."""
        return self

    @property
    def channels_last(self) -> bool:
        """Whether the arrays' last axis holds the channels."""
        return self.layout.endswith("C")


def per_axis(name: str, value: object, minimum: int) -> int | tuple[int, ...]:
    """Return an int, or a tuple of one int for each spatial axis."""
    if (
        not isinstance(value, (Sequence, np.ndarray))
        or isinstance(value, (str, bytes))
        or not getattr(value, "ndim", 1)
    ):
        return integer(name, value, minimum)
    entries = tuple(integer(f"{name}[{axis}]", entry, minimum) for axis, entry in enumerate(value))
    _check_length(name, entries)
    return entries


def _padding(value: object) -> int | str | tuple[tuple[int, int], ...]:
    """Return an int, a name, or one (before, after) pair for each spatial axis."""
    if isinstance(value, str):
        one_of("padding", value, PADDINGS)
        return value
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, bytes) or not getattr(value, "ndim", 1):
        return integer("padding", value, 0)
    pairs = []
    for axis, entry in enumerate(value):
        name = f"padding[{axis}]"
        if not isinstance(entry, (Sequence, np.ndarray)) or isinstance(entry, (str, bytes)):
            amount = integer(name, entry, 0)
            pairs.append((amount, amount))
        elif len(entry) != 2:
            raise ValueError(f"{name} must be an int or a pair (before, after); got {entry!r}")
        else:
            pairs.append((integer(f"{name}[0]", entry[0], 0), integer(f"{name}[1]", entry[1], 0)))
    _check_length("padding", pairs)
    return tuple(pairs)


def _check_length(name: str, entries: Sequence[object]) -> None:
    if not 1 <= len(entries) <= 3:
        raise ValueError(f"{name} must be an int, or one for each of 1 to 3 spatial axes; got {tuple(entries)}")


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of the allowed names."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def _compute_dtype(value: Any) -> str | None:
    if value is None:
        return None
    try:
        name = value if isinstance(value, str) else np.dtype(value).name
    except TypeError:
        raise TypeError(
            f"compute_dtype must be None or one of {', '.join(map(repr, COMPUTE_DTYPES))}; got {value!r}"
        ) from None
    one_of("compute_dtype", name, COMPUTE_DTYPES)
    return name
