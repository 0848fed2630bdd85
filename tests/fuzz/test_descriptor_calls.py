"""Descriptors' get and set with drawn functions and values: refused with an error, or done; Python lives and stays small."""

from __future__ import annotations

from ctypes import c_void_p, cast
from enum import IntEnum
from functools import cache
from random import Random
from typing import Any

import numpy as np
from campaign import Campaign

from cudnnpy import descriptors, raw
from cudnnpy.errors import CudnnError
from cudnnpy.names import short_names

_OWNERS = [name for name in descriptors.__all__ if hasattr(getattr(descriptors, name), "_create")]
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "TensorDescriptor": ((1, 2, 3, 4),),
    "FilterDescriptor": ((1, 2, 3, 4),),
    "ConvolutionDescriptor": ((1, 1),),
    "ActivationDescriptor": ("relu",),
    "PoolingDescriptor": ("max", (2, 2)),
    "OpTensorDescriptor": ("add",),
    "ReduceTensorDescriptor": ("add",),
    "FusedOpsConstParamPack": ("scale_bias_activation_conv_bnstats",),
    "FusedOpsVariantParamPack": ("scale_bias_activation_conv_bnstats",),
    "FusedOpsPlan": ("scale_bias_activation_conv_bnstats",),
}
_NUMBERS = (0, 1, 2, 3, 4, 8, 9, 100, -1, 2**31 - 1, -(2**31), 2**31, 2**32 + 1, 2**63, 2**64, 10**400)
_ODD = (None, True, 1.5, float("nan"), 1e300, "", "float32", b"x", [], {}, np.array([1, 2]), np.float32(2), object())


def made(name: str) -> Any:
    return getattr(descriptors, name)(*_ARGUMENTS.get(name, ()))


@cache
def about(name: str) -> list[str]:
    """The functions that have a parameter of a descriptor's type."""
    handle = type(made(name).pointer)
    of_handle = [f for f in raw.functions() if any(raw.ctype(kind) is handle for _, kind, _ in raw.parameters(f))]
    return [f for f in of_handle if "Create" not in f]


@cache
def owners() -> dict[Any, str]:
    """The type of a handle -> the name of its class."""
    return {type(made(name).pointer): name for name in _OWNERS}


def draw(random: Random) -> tuple[str, str, str, list[Any]]:
    name, (verb, part) = random.choice(_OWNERS), random.choice([("get", "Get"), ("_set", "Set")])
    fitting = [function for function in about(name) if part in function] or about(name)
    function = random.choice(fitting if random.random() < 0.8 else [*about(name), random.choice(raw.functions())])
    own, values = type(made(name).pointer), []
    odd = random.choice([0.0, 0.0, 0.05, 0.3])
    for _, kind, direction in raw.parameters(function):
        writes = kind.endswith(("*", "[]")) and not kind.startswith("const ") and direction != "in"
        if own is not None and raw.ctype(kind) is own:
            own = None  # the descriptor itself is not among the arguments
        elif raw.ctype(kind) is c_void_p:  # an address, which is C's to follow
            values.append(random.choice([None, 0]))
        elif verb != "get" or not writes:
            values.append(_value(random, kind, odd))
    if random.random() < odd:
        values = values[:-1]
    return name, verb, function, values


def _value(random: Random, kind: str, odd: float) -> Any:
    if random.random() < odd:
        return random.choice([*_ODD, *_NUMBERS])
    base = kind.removeprefix("const ")
    if kind.endswith("[]"):
        length = random.choice([4, 4, 4, 5, 3, 2, 0, 8, 9, 100])
        return [_value(random, base.removesuffix("[]"), odd / 4) for _ in range(length)]
    if raw.ctype(kind) in owners():
        return owners()[raw.ctype(kind)] if random.random() < 1 - odd else random.choice([*owners().values(), "NULL"])
    enum = getattr(raw, base, None)
    if isinstance(enum, type) and issubclass(enum, IntEnum):
        return random.choice(list(short_names(enum)))
    if base in ("float", "double"):
        return random.choice([0.0, 1.0, -1.5, 1e30])
    return random.choice((1, 2, 3, 4, 4, 4) if random.random() < 0.8 else _NUMBERS)


def run(case: tuple[str, str, str, list[Any]]) -> str:
    name, verb, function, values = case
    owner = made(name)
    given: list[Any] = []
    for value in values:
        if isinstance(value, str) and value == "NULL":
            given.append(cast(c_void_p(0), raw.cudnnTensorDescriptor_t))
        else:
            given.append(made(value) if isinstance(value, str) and value in _OWNERS else value)
    try:
        getattr(owner, verb)(function, *given)
    except CudnnError:
        return "refused by cuDNN"
    except (TypeError, ValueError):
        return "refused"
    finally:
        owner.close()
    return "done"


CAMPAIGN = Campaign(draw, run, memory=1 << 29)


def test_no_getter_and_no_setter_ends_python() -> None:
    outcomes = CAMPAIGN.carry_out(__file__, "CAMPAIGN", least=1200)
    assert set(outcomes) == {"refused", "refused by cuDNN", "done"}
