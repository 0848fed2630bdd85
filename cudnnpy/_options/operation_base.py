"""Base class of the operations: options, and public methods that device and reference classes implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from cudnnpy._options.options_base import ImmutableOptions
from cudnnpy._options.suggestions import refuse_attribute, refuse_call


class OperationBase(ImmutableOptions):
    """An operation with options.

    A subclass has the options, the public methods with their signatures and docstrings, and the checks that need no array.
    Its methods pass the arrays to `_run` with an implementation: `_forward`, `_backward` and others. `cudnnpy` implements
    them with plans on device arrays, `cudnnpy.reference` with NumPy.
    """

    # _run(name, operation, implementation, names, inputs, outs, stream, *arguments) returns the result, or a tuple of the
    # results. `names` are the names of the inputs and of the results. A result that is None in `outs` becomes a new array.
    _run: ClassVar[Callable[..., Any]]
    _forward: ClassVar[Callable[..., Any]]
    _forward_training: ClassVar[Callable[..., Any]]
    _forward_inference: ClassVar[Callable[..., Any]]
    _backward: ClassVar[Callable[..., Any]]

    if not TYPE_CHECKING:  # type checkers report the call and the attribute
        __call__ = refuse_call
        __getattr__ = refuse_attribute
