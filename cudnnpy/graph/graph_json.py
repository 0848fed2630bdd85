"""Convert operation graphs to and from JSON. A text from elsewhere is checked by the table of kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import EnumMeta, IntEnum
from typing import Any, cast

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._core.layouts import TensorSpec, check_distinct, strides_of
from cudnnpy._core.untrusted_json import spec_of
from cudnnpy.graph.kinds import GRAPH_OPTIONS, KINDS, NUMBER, Kind, Option
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Tensor, Uids, canonical_graph, number_of
from cudnnpy.names import short_name, short_names
from cudnnpy.typing import ElementName

_MAX_OPERATIONS = 1000
_OTHERS = {"ragged": 0, "reordering": "", "vector": (1, -1)}  # properties that few tensors have, with their defaults


def graph_to_json(graph: OperationGraph) -> dict[str, Any]:
    """Return a canonical graph as JSON: its tensors in the order of their unique ids, and its operations.

    A tensor in memory has its shape, dtype, strides and alignment, a virtual one no alignment, and a number its value, dtype
    and rank; at the end is an object with its other properties, if it has some. Options that are the defaults are left out.
    """
    text = {
        "tensors": [_tensor_to_json(tensor) for tensor in graph.tensors],
        "operations": [
            [
                one.kind,
                _options_to_json(KINDS[one.kind], one),
                {name: _value_to_json(uids) for name, uids in one.operands},
                dict(one.results),
            ]
            for one in graph.operations
        ],
    }
    options = {name: _value_to_json(value) for name, value in graph.options}
    return {**text, "options": options} if options else text


def _tensor_to_json(tensor: Tensor) -> list[Any]:
    shape, dtype, _, alignment = tensor.spec
    if tensor.number is not None:
        return [_value_to_json(tensor.number), dtype, len(shape)]
    others = {
        name: _value_to_json(value) for name, default in _OTHERS.items() if (value := getattr(tensor, name)) != default
    }
    return [
        list(shape),
        dtype,
        list(strides_of(tensor.spec)),
        *([] if tensor.is_virtual else [alignment]),
        *([others] if others else []),
    ]


def _options_to_json(kind: Kind, operation: Operation) -> dict[str, Any]:
    defaults = kind.complete({})
    return {
        name: _value_to_json(value)
        for name, value in operation.options
        if name not in defaults or defaults[name] != value
    }


def _value_to_json(value: Any) -> Any:
    if isinstance(value, IntEnum):
        return short_name(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no infinity and no NaN
    return [_value_to_json(one) for one in value] if isinstance(value, tuple) else value


def graph_from_json(given: Any) -> OperationGraph:
    """Return the graph of the JSON of graph_to_json. Raises ValueError for anything else, also if it is not canonical."""
    if not isinstance(given, dict) or given.keys() | {"options"} != {"tensors", "operations", "options"}:
        raise ValueError("it must have tensors and operations; plan again if an older cudnnpy wrote it")
    tensors, operations = given["tensors"], given["operations"]
    most = 16 * _MAX_OPERATIONS
    if not isinstance(tensors, list) or not isinstance(operations, list) or len(tensors) > most:
        raise ValueError(f"its tensors and operations must be lists, of {most} tensors at most; got others")
    if len(operations) > _MAX_OPERATIONS:
        raise ValueError(f"it must have {_MAX_OPERATIONS} operations at most; got {len(operations)}")
    reader = _Reader([_tensor_of_json(uid, one) for uid, one in enumerate(tensors, 1)])
    made = tuple(map(reader.operation, operations))
    results = {uid for one in made for _, uid in one.results}
    if any(one.ragged and one.ragged not in reader.tensors for one in reader.tensors.values()):
        raise ValueError("its ragged tensors must have offsets; got another")
    if any(one.uid not in results for one in reader.tensors.values() if one.is_virtual):
        raise ValueError("its virtual tensors must be results; got another")
    options = _items("options", given.get("options", {}), GRAPH_OPTIONS, _option)
    graph = OperationGraph(tuple(reader.tensors.values()), made, tuple(options.items()))
    if not graph.outputs:
        raise ValueError("its graph has no output")
    for uid in graph.outputs:
        check_distinct(reader.tensors[uid].spec, f"tensor {uid}")
    if canonical_graph(graph)[0] != graph or graph_to_json(graph) != given:
        raise ValueError("it is not in canonical form")
    return graph


def _tensor_of_json(uid: int, given: Any) -> Tensor:
    name = f"tensor {uid}"
    if not isinstance(given, list) or not 3 <= len(given) <= 5:
        raise ValueError(f"{name} must be a list of 3 to 5 elements; got another")
    if isinstance(given[0], list):
        *given, others = given if isinstance(given[-1], dict) else (*given, {})
        is_virtual = len(given) == 3
        default = TensorSpec((1,), "float32").alignment
        spec = spec_of(name, [*given, default] if is_virtual else given)
        return Tensor(uid, spec, is_virtual, **_items(name, others, _OTHERS, _other))
    number, dtype, rank = given if len(given) == 3 else (None, None, None)
    if not isinstance(dtype, str) or type(rank) is not int or not 1 <= rank <= raw.CUDNN_DIM_MAX:
        raise ValueError(f"{name} must be a number with a dtype and a rank; got another")
    if type(number) is not float and number in ("inf", "-inf"):
        number = float(number)
    try:
        spec = TensorSpec((1,) * rank, cast(ElementName, dtype), (1,) * rank)
        return Tensor(uid, spec, number=number_of(name, number, dtype))
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)) from error


def _other(name: str, default: object, given: Any) -> Any:
    """Return a property of a tensor that few tensors have."""
    if name == "ragged" and type(given) is int and given > 0:
        return given
    if name == "vector" and isinstance(given, list) and len(given) == 2 and all(type(one) is int for one in given):
        return tuple(given)
    if name == "reordering" and given in short_names(raw.cudnnBackendTensorReordering_t):
        return given
    raise ValueError(f"{name} must be a property of a tensor; got {error_repr(given)}")


class _Reader:
    """The tensors of a text, and those that the operations read so far have taken or made."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = {tensor.uid: tensor for tensor in tensors}
        self._known: set[int] = set()

    def operation(self, given: Any) -> Operation:
        """Return an operation, which is checked by the rule of its kind."""
        if not isinstance(given, list) or len(given) != 4 or not isinstance(given[0], str):
            raise ValueError("an operation must be a kind, options, operands and results; got another")
        name, options, operands, results = given
        if name not in KINDS:
            raise ValueError(f"{name[:60]!r} is not a kind of operation")
        kind = KINDS[name]
        values = _items("options", options, kind.all_options, _option)
        taken = _items("operands", operands, kind.operands, self._taken)
        made = _items("results", results, kind.results, self._result)
        whole = kind.complete(values)
        specs: dict[str, Any] = {
            one: tuple(self.tensors[uid].spec for uid in uids) if isinstance(uids, tuple) else self.tensors[uids].spec
            for one, uids in taken.items()
        }
        try:
            found = kind.check(whole, specs, "float32")
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(f"its graph is invalid: {error}") from error
        shapes = {one: spec.shape for one, spec in found.items() if one in made or not kind.results[one].endswith("?")}
        if shapes != {one: self.tensors[uid].spec.shape for one, uid in made.items()}:
            raise ValueError(f"the results of {name} must have shapes {shapes}; got others")
        self._known.update(made.values())
        return Operation(name, tuple(whole.items()), tuple(taken.items()), tuple(made.items()))

    def _taken(self, name: str, end: str, given: Any) -> Uids:
        uids = given if "*" in end else [given]
        if not isinstance(uids, list) or not all(type(uid) is int and uid in self.tensors for uid in uids):
            raise ValueError(f"{name} must be a tensor of the graph; got {error_repr(given)}")
        if any(self.tensors[uid].is_virtual and uid not in self._known for uid in uids):
            raise ValueError(f"{name} must be in memory, or the result of an operation before; got another")
        self._known.update(uids)
        return tuple(uids) if isinstance(given, list) else given

    def _result(self, name: str, end: str, given: Any) -> int:
        is_new = type(given) is int and given in self.tensors and given not in self._known
        if not is_new or self.tensors[given].number is not None:
            raise ValueError(f"{name} must be a tensor that no operation took or made before; got {error_repr(given)}")
        return int(given)


def _items(name: str, given: Any, known: Mapping[str, Any], read: Callable[[str, Any, Any], Any]) -> dict[str, Any]:
    """Return the values of a JSON object whose names are known, in the order of the table, whose entry `read` takes, too."""
    if not isinstance(given, dict) or not given.keys() <= known.keys():
        raise ValueError(f"{name} must be an object with keys among {', '.join(known)}; got others")
    return {one: read(one, entry, given[one]) for one, entry in known.items() if one in given}


def _option(name: str, option: Option, given: Any) -> Any:
    """Return the value of an option."""
    if isinstance(given, str) and option.type == NUMBER and given in ("inf", "-inf"):
        given = float(given)
    if isinstance(given, list):
        given = [tuple(one) if isinstance(one, list) else one for one in given]
    if isinstance(option.type, EnumMeta) and not isinstance(given, str):
        raise ValueError(f"{name} must be a name; got {error_repr(given)}")
    try:
        return option.checked(name, given)
    except (TypeError, ValueError) as error:
        raise ValueError(str(error)[:200]) from error
