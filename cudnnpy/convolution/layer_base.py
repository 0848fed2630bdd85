"""Base class of Convolution and ConvolutionTranspose on device arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cudnnpy._core.cache_token import TokenizedOptions
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy.convolution.operation import check_forced


class Layer(TokenizedOptions):
    """The options of a convolution on device arrays, with a cache token and a checked `algorithm`."""

    algorithm: Any

    def _derived(self) -> dict[str, Any]:
        check_forced(self.algorithm)
        return super()._derived()

    def _plain_options(self) -> ConvolutionOptions:
        """Return the object's options as a ConvolutionOptions."""
        return ConvolutionOptions(**{option.name: getattr(self, option.name) for option in fields(ConvolutionOptions)})
