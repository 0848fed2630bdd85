"""Compare an execution plan that cuDNN serialized with the problem that it should compute, before cuDNN reads it.

cuDNN's parser does not check its input: it ends the process for a name that refers to nothing or a scalar in place of a
list, and it plans any sizes that it finds. Therefore every tensor and every operation of the text must be exactly what the
problem describes, and the engine must be that of the plan. cuDNN reads only the texts of its own release.

The texts of cuDNN 9.10, 9.19 and 9.28 have only the keys below (schema 4); those of an unknown release may have more. The
plan of an engine that is compiled at run time may contain its compiled code, which cannot be checked and is trusted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from ctypes import c_float
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._planning.candidates import Engine
from cudnnpy.convolution import operation_graph
from cudnnpy.convolution.problem import Problem

_KNOWN = range(91000, 92900)  # releases whose texts have only the keys below
_LIMIT = 1 << 63
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

# operation: (finalizeMode of the unfused convolution, the suffix of OPERATION_CONVOLUTION_, the roles of x, w and y)
_OPERATIONS = {
    "forward": ("CONV_FORWARD", "FORWARD", ("X", "W", "Y")),
    "backward_data": ("CONV_BWD_DATA", "BACKWARD_DATA", ("dX", "W", "dY")),
    "backward_filter": ("CONV_BWD_FILTER", "BACKWARD_FILTER", ("X", "dW", "dY")),
}
_OF_EVERY_TENSOR = {
    "isByValue": False,
    "vectCount": 1,
    "vectDim": -1,
    "reordering": "CUDNN_TENSOR_REORDERING_NONE",
}
_OF_EVERY_POINTWISE = {
    "alpha1": 1.0,
    "alpha2": 1.0,
    "lowerClip": 0.0,
    "upperClip": sys.float_info.max,
    "lowerClipSlope": 0.0,
    "alpha": 1.0,  # for elu
    "beta": 1.0,  # for swish
}


class Mismatch(ValueError):
    """The error for a text that differs from the expected one; the message says where."""


def check(given: Any, problem: Problem, engine: Engine, compiled: bool) -> str:
    """Return the text for cuDNN from a plan that was read as JSON, if it agrees with the problem and the engine.

    `compiled` means that the engine is compiled at run time. Raises Mismatch (a ValueError) if the plan differs.
    """
    version = raw.version()
    more = version not in _KNOWN
    top = ("cudnnVersion", "schemaVersion", "operationGraph", "engine")
    _keys("plan", given, top, ("GPUProfile",), more or compiled)
    _same("plan.cudnnVersion", given["cudnnVersion"], version)
    _integer("plan.schemaVersion", given["schemaVersion"], 1)
    _check_graph(given["operationGraph"], problem, compiled, more)
    if "GPUProfile" in given:
        _check_profile(given["GPUProfile"])
    _check_engine(given["engine"], engine, compiled, more)
    return json.dumps(given, allow_nan=False)


def _check_graph(given: Any, problem: Problem, compiled: bool, more: bool) -> None:
    at = "plan.operationGraph"
    _keys(at, given, ("finalizeMode", "tensors", "nodes"), ("isDynamicShapeEnabled", "isOverrideShapeEnabled"), more)
    for name in ("isDynamicShapeEnabled", "isOverrideShapeEnabled"):
        _same(f"{at}.{name}", given.get(name, False), False)
    what = operation_graph.describe_graph(problem)
    mode, kind, roles = _OPERATIONS[problem.operation]
    if not what.pointwise and not compiled:
        _same(f"{at}.finalizeMode", given["finalizeMode"], mode)
    elif not (isinstance(given["finalizeMode"], str) and _NAME.fullmatch(given["finalizeMode"])):
        raise Mismatch(f"{at}.finalizeMode must be a name; got {_short(given['finalizeMode'])}")
    tensors = [_tensor(uid, spec, uid in what.virtual) for uid, spec in sorted(what.tensors.items())]
    for where, tensor, wanted in _pairs(f"{at}.tensors", given["tensors"], tensors, _name_of):
        _keys(where, tensor, wanted, _OF_EVERY_TENSOR, more)
        _same_fields(where, tensor, {**_OF_EVERY_TENSOR, **wanted})
    nodes = [_pointwise(node, what.wide) for node in what.pointwise]
    of_nodes = _pairs(f"{at}.nodes", given["nodes"], [_convolution(problem, what, kind, roles), *nodes])
    for where, node, wanted in of_nodes:
        if node is given["nodes"][0]:
            _check_convolution(where, node, wanted, problem, more)
        else:
            _keys(where, node, wanted, _OF_EVERY_POINTWISE, more)
            _same_fields(where, node, {**_OF_EVERY_POINTWISE, **wanted})


def _tensor(uid: int, spec: TensorSpec, virtual: bool) -> dict[str, Any]:
    return {
        "name": str(uid),
        "dataType": _data_type(spec.dtype),
        "dim": spec.shape,
        "stride": spec.strides,
        "isVirtual": virtual,
        "ptrAlignment": spec.alignment,
    }


def _convolution(
    problem: Problem, what: operation_graph.GraphDescription, kind: str, roles: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "operation": f"CUDNN_BACKEND_OPERATION_CONVOLUTION_{kind}_DESCRIPTOR",
        "mode": f"CUDNN_{problem.mode.upper()}",
        "mathPrec": _data_type(problem.compute_dtype),
        "alpha": problem.alpha,
        "beta": problem.beta,
        "stride": operation_graph.spatial(problem.geometry.stride, 1),
        "dilation": operation_graph.spatial(problem.geometry.dilation, 1),
        **dict(zip(roles, map(str, (operation_graph.X, operation_graph.W, what.convolved)), strict=True)),
    }


def _check_convolution(where: str, node: Any, wanted: dict[str, Any], problem: Problem, more: bool) -> None:
    _keys(where, node, wanted, ("pad", "pad_lower", "pad_upper", "groupCount"), more)
    g = problem.geometry
    sides = {
        "pad_lower": operation_graph.spatial(g.pre_padding, 0),
        "pad_upper": operation_graph.spatial(g.post_padding, 0),
    }
    names = ("pad",) if "pad" in node else tuple(sides)
    for name, side in sides.items():
        given = names[0] if len(names) == 1 else name
        if given not in node or (given == "pad" and name in node):
            raise Mismatch(f"{where} must have pad, or pad_lower and pad_upper; got {sorted(node)}")
        _same(f"{where}.{given}", node[given], side)
    _same(f"{where}.groupCount", node.get("groupCount", problem.groups), problem.groups)
    narrow = problem.compute_dtype != "float64"
    _same_fields(where, node, wanted, narrow=narrow)


def _pointwise(node: operation_graph.Pointwise, wide: str) -> dict[str, Any]:
    tensors = {"X": node.x, "B": node.b, "Y": node.y}
    return {
        "operation": "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR",
        "pointwiseMode": raw.cudnnPointwiseMode_t(node.mode).name,
        "mathPrec": _data_type(wide),
        **{role: str(uid) for role, uid in tensors.items() if uid is not None},
    }


def _check_engine(given: Any, engine: Engine, compiled: bool, more: bool) -> None:
    at = "plan.engine"
    _keys(at, given, ("engineId", "knobChoices"), ("smVersion", "targetSMcount", "sharedMemoryLimit"), more or compiled)
    _same(f"{at}.engineId", given["engineId"], engine.index)
    for name in given.keys() & {"smVersion", "targetSMcount", "sharedMemoryLimit"}:
        _integer(f"{at}.{name}", given[name], -1)
    choices = given["knobChoices"]
    _keys(f"{at}.knobChoices", choices, (), (), True)
    wanted = dict(engine.knobs or ())
    for name, value in choices.items():
        where = f"{at}.knobChoices.{name[:60]}"
        _integer(where, value, -_LIMIT)
        kind = getattr(raw, name, None) if name.startswith("CUDNN_KNOB_TYPE_") else None
        if isinstance(kind, raw.cudnnBackendKnobType_t):
            _same(where, value, wanted.pop(int(kind), -1))  # -1 is the default of the engine
        elif not more:
            raise Mismatch(f"{where} must be the name of a kind of knob; got another")
    if any(kind in list(raw.cudnnBackendKnobType_t) for kind in wanted):
        raise Mismatch(f"{at}.knobChoices must have all of the engine's knobs, {wanted}; got fewer")


def _check_profile(given: Any) -> None:
    """Raise Mismatch unless the device profile has valid types and sizes. cuDNN compares it with the device that is used."""
    at = "plan.GPUProfile"
    _keys(at, given, (), (), True)
    for name, value in given.items():
        where = f"{at}.{name[:60]}"
        if name in ("maxGridSize", "maxBlockSize"):
            if not isinstance(value, list) or len(value) != 3:
                raise Mismatch(f"{where} must be three sizes; got {_short(value)}")
            for size in value:
                _integer(where, size, 1)
        elif name == "deviceName":
            if not isinstance(value, str) or len(value) > 256:
                raise Mismatch(f"{where} must be a name; got {_short(value)}")
        elif name == "warpSize":
            _same(where, value, 32)
        else:
            _integer(where, value, 0)


# Comparisons


def _keys(where: str, given: Any, required: Iterable[str], optional: Iterable[str], more: bool) -> None:
    """Raise Mismatch unless an object has the required keys, and others only if they are optional or `more` is set."""
    if not isinstance(given, dict):
        raise Mismatch(f"{where} must be an object; got {_short(given)}")
    required = set(required)
    if missing := sorted(required - given.keys()):
        raise Mismatch(f"{where} must have {', '.join(missing)}; got none")
    unknown = sorted(given.keys() - required - set(optional))
    if unknown and not more:
        raise Mismatch(f"{where} must have known keys only; got {unknown[0][:60]!r}")
    if bad := [key for key in unknown if not _KEY.fullmatch(key)]:
        raise Mismatch(f"{where} must have keys that are names; got {bad[0][:60]!r}")


def _pairs(where: str, given: Any, wanted: list[dict[str, Any]], key: Any = None) -> Iterable[tuple[str, Any, Any]]:
    """Return (where, given, wanted) for each element of a list, sorted by a key if there is one."""
    if not isinstance(given, list) or len(given) != len(wanted):
        raise Mismatch(f"{where} must be a list of {len(wanted)}; got {_short(given)}")
    ordered = given if key is None else sorted(given, key=key)
    return [(f"{where}[{given.index(one)}]", one, other) for one, other in zip(ordered, wanted, strict=True)]


def _name_of(tensor: Any) -> str:
    return str(tensor.get("name")) if isinstance(tensor, dict) else ""


def _same_fields(where: str, given: Mapping[str, Any], wanted: Mapping[str, Any], *, narrow: bool = False) -> None:
    for name, value in wanted.items():
        if name in given:
            _same(f"{where}.{name}", given[name], value, narrow=narrow)


def _same(where: str, given: Any, wanted: Any, *, narrow: bool = False) -> None:
    """Raise Mismatch unless a value has the wanted type and value. With `narrow`, floats are compared in single precision."""
    if isinstance(wanted, tuple):
        alike = isinstance(given, list) and len(given) == len(wanted)
        alike = alike and all(type(one) is int and one == other for one, other in zip(given, wanted, strict=True))
    elif isinstance(wanted, float):
        alike = type(given) in (int, float) and (
            given == wanted or (narrow and c_float(given).value == c_float(wanted).value)
        )
    else:
        alike = type(given) is type(wanted) and given == wanted
    if not alike:
        raise Mismatch(f"{where} must be {_short(wanted)}; got {_short(given)}")


def _integer(where: str, given: Any, low: int) -> int:
    if type(given) is not int or not low <= given < _LIMIT:
        raise Mismatch(f"{where} must be an integer of {low} or more, of 64 bits; got {_short(given)}")
    return given


def _data_type(dtype: str) -> str:
    return raw.cudnnDataType_t(dtype_of(dtype).number).name


def _short(value: Any) -> str:
    if isinstance(value, list | dict) and len(value) > 8:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 80 else text[:80] + "..."
