"""The base of Convolution and ConvolutionTranspose: their options, as attributes and in canonical form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from cudnnpy._core.identity import Identified
from cudnnpy._options.checks import check_shape
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning.candidates import Engine
from cudnnpy._planning.plan import Plan
from cudnnpy.convolution.operation import check_forced
from cudnnpy.convolution.problem import Options
from cudnnpy.typing import ConvolutionAlgorithm, Shape


@dataclass(frozen=True, kw_only=True, repr=False)
class Layer(ConvolutionOptions, Identified):
    """The options of a convolution, which Convolution documents; `options` has them in canonical form."""

    algorithm: ConvolutionAlgorithm | Engine | Plan | None = None
    options: Options = field(init=False, repr=False, compare=False)

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        options = Options(**{name: value for name, value in self._fields().items() if name in Options._fields})
        return {**super()._derived(), "options": options}

    def __repr__(self) -> str:
        return self.options.text(type(self))


def shape_argument(name: str, shape: Shape | None) -> tuple[SupportsIndex, ...] | None:
    """Return the shape of a gradient as a tuple, whose elements the operation checks, or None. Raises ValueError for ()."""
    if shape is not None and not isinstance(shape, tuple):
        shape = check_shape(name, shape, low=0)
    if shape == ():
        raise ValueError(f"{name} must be a tuple of 3, 4 or 5 sizes; got ()")
    return shape
