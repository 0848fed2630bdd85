"""Base classes of the descriptors, which call C's setters and getters with Python values by the generated prototypes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import Array
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import Any, ClassVar, TypeVar, cast

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._core.owned import Owned, PointerT, created_type
from cudnnpy._core.values import INTEGERS, MAX_ELEMENTS, enum_of, is_handle, to_c

T = TypeVar("T")

# The names of setters. They take the descriptor first (cudnnSetTensor, which fills memory, takes a handle first).
_SETTER = re.compile(r"cudnn(RNN)?(Set|Restore)")
# The names of getters. The two at the end return a size, and prepare the object that they are named after.
_GETTER = re.compile(r"cudnn([A-Z]\w*)?Get[A-Z]|cudnnMakeFusedOpsPlan$|cudnnInitTransformDest$")
# Arrays whose number of elements is not the integer before them.
_COUNTS = {("cudnnSetRNNDataDescriptor", "seqLengthArray"): "batchSize"}
# Arrays with one element for each spatial dimension: the count without N and C.
_SPATIAL = {("cudnnSetTensorTransformDescriptor", "foldA")}
# Functions whose arrays may be NULL: no padding, no folding.
_WITHOUT_ARRAYS = {"cudnnSetTensorTransformDescriptor"}


class Descriptor(Owned[PointerT]):
    """A descriptor of the C API below the graph API.

    A value that cuDNN rejects raises StatusError with cuDNN's own text. The descriptor can be set again afterwards. A class
    that has the name of a kind of descriptors in C owns such descriptors: cudnnCreateTensorDescriptor makes a TensorDescriptor.
    """

    _kept: dict[Any, tuple[Owned[Any], ...]]
    _reader: ClassVar[tuple[Any, ...]]  # the C function that reads the values, with its arguments

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if (create := f"cudnnCreate{cls.__name__}") in raw.functions():
            cls._create, cls._destroy = create, create.replace("Create", "Destroy")

    def _read(self) -> dict[str, Any]:
        """Return the values by their C names. Arrays have as many elements as the descriptor has dimensions."""
        read = self.get(*self._reader)
        rank = read.get("nbDims", read.get("arrayLength"))
        return {name: value[:rank] if isinstance(value, tuple) else value for name, value in read.items()}

    def __repr__(self) -> str:
        with suppress(Exception):  # it is closed, or C has no values yet
            values = (f"{name}={value}" for name, value in self._described().items() if value != ())
            return f"<{type(self).__name__} {', '.join(values)}>"
        return super().__repr__()

    def _described(self) -> dict[str, Any]:
        """Return the values to print: the properties of the class, which are read from C."""
        named = (item for kind in type(self).__mro__ for item in vars(kind).items() if not hasattr(Descriptor, item[0]))
        return {name: getattr(self, name) for name, value in named if isinstance(value, property)}

    def get(self, function: str, *arguments: object, **named: object) -> dict[str, Any]:
        """Call a C function that reads this descriptor.

        Parameters
        ----------
        function : str
            The name of the C function.
        *arguments, **named
            The arguments that C reads beside this descriptor, in the order of C or by their C names. Enumerators may be
            passed by their short names ("float32").

        Returns
        -------
        dict
            The values that the function writes, by the C names of their parameters. Enumerators are members of their enum.
            An array is a tuple, whose length is the integer argument before it.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid; the message names the parameter.
        StatusError
            If cuDNN reports an error.
        """
        inputs, outputs = self._arguments(function, arguments, named, reads=True)
        raw.call(function, *inputs)
        return {name: _from_c(kind, target) for name, (kind, target) in outputs.items()}

    def _make(self, *setters: Sequence[Any]) -> None:
        """Create the C object and set it by C functions, each with its arguments."""
        with self._created():
            for setter in setters:
                self._set(*setter)

    def _set(self, function: str, *arguments: object, **named: object) -> None:
        inputs, _ = self._arguments(function, arguments, named, reads=False)
        raw.call(function, *inputs)
        # C may keep the address of a descriptor that it was passed, until it is set again
        what = next((value for value in inputs if isinstance(value, raw.cudnnFusedOpsConstParamLabel_t)), None)
        given = tuple(value for value in inputs if isinstance(value, Owned) and value is not self)
        self.__dict__.setdefault("_kept", {})[function, what] = given

    def _arguments(
        self, function: object, given: tuple[object, ...], named: dict[str, object], reads: bool
    ) -> tuple[list[Any], dict[str, tuple[str, Any]]]:
        """Return the arguments for C, and the outputs among them: name -> (C type, ctypes object)."""
        if not isinstance(function, str):
            kind = type(function).__name__
            raise TypeError(f"function must be the name of a C function; got {error_repr(function)} ({kind})")
        own = _place(function, self._create, type(self).__name__, reads)
        parameters = raw.parameters(function)
        fills = [reads and _is_output(kind, direction) for _name, kind, direction in parameters]
        names = [name for at, (name, _, _) in enumerate(parameters) if at != own and not fills[at]]
        values = dict(zip(names, given, strict=False))
        if len(given) > len(names) or set(named) != set(names[len(given) :]):
            raise TypeError(
                f"arguments of {function} must be ({', '.join(names)}); "
                f"got {len(given)} by position and {sorted(named)} by name"
            )
        values |= named
        inputs: list[Any] = []
        outputs: dict[str, tuple[str, Any]] = {}
        counts: dict[str, int] = {}
        for at, (name, kind, _direction) in enumerate(parameters):
            if at == own:
                inputs.append(self)
            elif fills[at]:
                element = raw.ctype(kind)._type_
                target = (element * _room(counts))() if kind.endswith("[]") else element()
                outputs[name] = kind, target
                inputs.append(target)
            else:
                value = to_c(kind, values[name], name)
                if value is None or (is_handle(kind) and not value):
                    _check_null(function, name, kind, reads)
                elif isinstance(value, Array):
                    _check_count(function, name, len(value), counts)
                elif raw.ctype(kind) in INTEGERS and not isinstance(value, IntEnum):
                    counts[name] = value
                inputs.append(value)
        return inputs, outputs


def by_axes(flat: str, general: str, *arguments: Any) -> list[Any]:
    """Return a setter and its arguments, whose tuples have one number for each axis.

    The setter is `flat` for as many axes as its name says, and otherwise `general`, which takes their count and arrays.
    """
    first = next(at for at, value in enumerate(arguments) if isinstance(value, tuple))
    rank = len(arguments[first])
    if f"{rank}d" not in flat:
        return [general, *arguments[:first], rank, *arguments[first:]]
    return [flat, *chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in arguments)]


def reading(name: str, convert: Callable[[Any], T], doc: str, getter: str = "") -> T:
    """Return a property of a descriptor: one of its values by the C name, converted; `getter` is a C function of its own."""

    def read(descriptor: Descriptor[Any]) -> T:
        return convert((descriptor.get(getter) if getter else descriptor._read())[name])

    return cast(T, property(read, doc=doc))


class GeneralDescriptor(Descriptor[PointerT]):
    """A descriptor that is set and read by the names of C functions and parameters::

    descriptor.set("cudnnSetCTCLossDescriptor_v9", compType="float32", normMode="softmax", ...)
    descriptor.get("cudnnGetCTCLossDescriptor_v9")["normMode"]
    """

    def __init__(self) -> None:
        self._make()

    def _described(self) -> dict[str, Any]:
        return self._read()

    def set(self, function: str, *arguments: object, **named: object) -> None:
        """Call a C function that sets this descriptor.

        Parameters
        ----------
        function : str
            The name of the C function.
        *arguments, **named
            The arguments beside this descriptor, in the order of C or by their C names: enumerators or their short
            names, numbers, sequences for arrays, descriptors, addresses; None is NULL. Descriptors are kept alive until
            the same function sets others. An address (`void *`) is not checked.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid; the message names the parameter.
        StatusError
            If cuDNN reports an error.
        """
        self._set(function, *arguments, **named)


@cache
def _place(function: str, create: str, owner: str, reads: bool) -> int:
    """Return the position of the descriptor among the parameters of a getter or setter.

    Raises TypeError for a function that neither reads nor sets this kind of descriptor.
    """
    handle = created_type(create)[1]
    kinds = [kind for _name, kind, _direction in raw.parameters(function)]
    own = [at for at, kind in enumerate(kinds) if not kind.endswith(("*", "[]")) and raw.ctype(kind) is handle]
    if not own:
        raise TypeError(f"function must be one that takes a {owner}; got {function} ({raw.prototype(function)})")
    good = _GETTER.match(function) if reads else _SETTER.match(function) and own[0] == 0
    if not good:
        verb, road = ("reads", "cudnnGet") if reads else ("sets", "cudnnSet")
        raise TypeError(
            f"function must be a {road} function that {verb} a {owner}; got {function} (cudnnpy.raw has every function)"
        )
    return own[0]


def _room(counts: dict[str, int]) -> int:
    """Return the number of elements of an output array, from the integer argument before it."""
    name, count = next(reversed(counts.items()), ("", 0))
    if not 0 <= count <= MAX_ELEMENTS:
        raise ValueError(f"{name} must be an integer of 0 to {MAX_ELEMENTS}; got {count}")
    return count


def _check_count(function: str, name: str, length: int, counts: dict[str, int]) -> None:
    """Raise ValueError if an array has fewer elements than C reads according to its count."""
    counter = _COUNTS.get((function, name)) or next(reversed(counts), "")
    count = counts.get(counter, 0)
    most = raw.CUDNN_DIM_MAX if counter.startswith("nbDims") else MAX_ELEMENTS
    if not 0 <= count <= most:  # cuDNN 9.28 does not check every count before it writes
        raise ValueError(f"{counter} must be an integer of 0 to {most}; got {count}")
    if (function, name) in _SPATIAL:
        count -= 2
    if count > length:
        raise ValueError(f"{name} must have {count} elements, as {counter} says; got {length}")


def _check_null(function: str, name: str, kind: str, reads: bool) -> None:
    """Raise TypeError for a NULL that C would follow. A setter takes NULL for an optional descriptor."""
    if kind.endswith("[]") and function not in _WITHOUT_ARRAYS:
        raise TypeError(f"{name} must be a sequence; got None ({raw.prototype(function)})")
    if is_handle(kind) and (reads or kind == "cudnnHandle_t"):
        raise TypeError(f"{name} must be a {kind.removeprefix('const ')}; got None ({raw.prototype(function)})")


def _is_output(kind: str, direction: str) -> bool:
    """Return whether a parameter is an output. The headers omit some directions; a pointer that is not const is an output."""
    return kind.endswith(("*", "[]")) and not kind.startswith("const ") and kind != "void *" and direction != "in"


def _from_c(kind: str, target: Any) -> Any:
    enum = enum_of(kind)
    if isinstance(target, Array):
        return tuple(target) if enum is None else tuple(enum(number) for number in target)
    value = getattr(target, "value", target)  # a handle has no attribute `value`
    return value if enum is None else enum(value)
