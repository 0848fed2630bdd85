"""What Convolution and ConvolutionTranspose share: their options, as attributes and in one canonical form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudnnpy._core.frozen import Frozen
from cudnnpy._core.validation import check_shape
from cudnnpy.convolution.operation import checked
from cudnnpy.convolution.problem import Options


@dataclass(frozen=True, kw_only=True, repr=False)
class Layer(Frozen):
    """The options of a convolution, which Convolution describes; `options` has them in one canonical form."""

    padding: Any = 0
    stride: Any = 1
    dilation: Any = 1
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
    options: Options = field(init=False, repr=False, compare=False)

    def _checked(self) -> dict[str, Any]:
        options = checked(Options(**self._fields()))
        return {**{name: getattr(options, name) for name in self._fields()}, "options": options}

    def __repr__(self) -> str:
        return self.options.text(type(self))


def shape_argument(name: str, shape: Any) -> Any:
    """A gradient's shape as a tuple, whose elements the operation checks; None stays None. Raises ValueError for ()."""
    if shape is not None and not isinstance(shape, tuple):
        shape = check_shape(name, shape, low=0)
    if shape == ():
        raise ValueError(f"{name} must be a tuple of 3, 4 or 5 sizes; got ()")
    return shape
