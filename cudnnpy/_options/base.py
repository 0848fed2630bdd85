"""Base classes: Options, which are checked and immutable, and Operation, whose public methods compute on arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any, ClassVar

from cudnnpy._options.public_dir import PublicDir
from cudnnpy._options.suggestions import refuse_attribute, refuse_call


class Options(PublicDir):
    """Options that cannot change, equal by value, hashable, and copied and pickled by value.

    A subclass is a frozen dataclass whose fields are the options. `_canonical` brings them to canonical form, and `_derived`
    computes what else an object holds. Nothing else sets an attribute.
    """

    def _canonical(self) -> dict[str, Any]:
        """Return, by name, the options whose canonical form may differ from the value that was passed.

        Raises TypeError for an option of another type, ValueError for one that is out of range.
        """
        return {}

    def _derived(self) -> dict[str, Any]:
        """Return the object's other attributes, which are computed from the options in canonical form, by name."""
        return {}

    def __post_init__(self) -> None:
        """Check the options, and bring them to canonical form."""
        for compute in (self._canonical, self._derived):
            for name, value in compute().items():
                object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _fields(self) -> dict[str, Any]:
        """Return the options by name."""
        return {option.name: getattr(self, option.name) for option in fields(self) if option.init}  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options alone. The other attributes are computed again in the process that unpickles."""
        return _from_options, (type(self), self._fields())


def _from_options(options_type: type[Options], options: dict[str, Any]) -> Options:
    return options_type(**options)


class Operation(Options):
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
    _backward_data: ClassVar[Callable[..., Any]]
    _backward_filter: ClassVar[Callable[..., Any]]
    _backward_bias: ClassVar[Callable[..., Any]]
    _output_shape: ClassVar[Callable[..., tuple[int, ...]]]

    if not TYPE_CHECKING:  # type checkers report the call and the attribute
        __call__ = refuse_call
        __getattr__ = refuse_attribute
