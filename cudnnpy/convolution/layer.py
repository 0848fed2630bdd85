"""The base of Convolution and ConvolutionTranspose on device arrays: their options as planning takes them."""

from __future__ import annotations

from typing import Any

from cudnnpy._core.identity import Identified
from cudnnpy.convolution.operation import check_forced
from cudnnpy.convolution.problem import Options


class Layer(Identified):
    """A convolution whose `options` are the view of its options that planning takes."""

    algorithm: Any
    options: Options

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        options = Options(**{name: value for name, value in self._fields().items() if name in Options._fields})
        return {**super()._derived(), "options": options}
