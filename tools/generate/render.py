"""Records -> cudnnpy/raw/_api.py, cudnnpy/raw/_api.pyi, cudnnpy/_enumerator_names.py and docs/coverage.md."""

from __future__ import annotations

import re
from collections import Counter

from cudnnpy.names import shortened
from tools.generate.nulls import not_null
from tools.generate.records import Record, dump, seal, sealed

_SCALARS = {
    "int": "c_int",
    "unsigned int": "c_uint",
    "unsigned long long": "c_ulonglong",
    "size_t": "c_size_t",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "float": "c_float",
    "double": "c_double",
    "bool": "c_bool",
    "char": "c_char",
    "cudaStream_t": "c_void_p",
    "cudaGraph_t": "c_void_p",
}

# The enums whose short names are types of cudnnpy.typing.
_NAMED = (
    *("cudnnActivationMode_t", "cudnnBackendNormMode_t", "cudnnDataType_t", "cudnnFusedOps_t", "cudnnIndicesType_t"),
    *("cudnnMathType_t", "cudnnOpTensorOp_t", "cudnnPointwiseMode_t", "cudnnReduceTensorIndices_t"),
    *("cudnnReduceTensorOp_t", "cudnnResampleMode_t", "cudnnSoftmaxAlgorithm_t", "cudnnTensorFormat_t"),
)


class Api:
    """The records by kind, with the lookups that rendering needs."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.version: str = records[0]["cudnn"]
        self.seal = seal(dump(records))
        self.enums: dict[str, list[Record]] = {r["name"]: [] for r in records if r["kind"] == "enum"}
        for record in self.of("enumerator"):
            self.enums[record["enum"]].append(record)
        self.values: dict[str, int] = {r["name"]: r["value"] for r in self.of("enumerator")}
        self.structs = {r["name"]: r for r in self.of("struct")}
        self.opaque = [r["name"] for r in self.of("opaque")]
        self.handles = {r["name"]: r["struct"] for r in self.of("handle")}
        self.aliases = {r["name"]: r["type"] for r in self.of("alias") if r["name"] != r["type"]}
        self.named = {*self.handles, *self.structs, *self.aliases, *self.opaque}
        self.callbacks = {r["name"]: r for r in self.of("callback")}

    def of(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return [r for r in self.records if r["kind"] == kind]

    def split(self, c_type: str) -> tuple[str, int, int | None]:
        """A C type's base name, how many pointers deep, and an array's bound (a field's; 0 for a parameter's `[]`)."""
        bound = re.search(r"\[(\d*)\]$", c_type)
        text = c_type[: bound.start()] if bound else c_type
        base = re.sub(r"\b(const|struct)\b|\*", " ", text)
        return " ".join(base.split()), text.count("*"), int(bound[1] or 0) if bound else None

    def ctypes_expression(self, c_type: str) -> str:
        """The ctypes type of a struct's field or a callback's parameter, as Python source."""
        base, depth, bound = self.split(c_type)
        if base in ("void", "char") and depth:
            name, depth = ("c_void_p" if base == "void" else "c_char_p"), depth - 1
        elif base == "void":
            name = "None"
        elif base in self.enums:
            name = "c_int"
        elif base in _SCALARS:
            name = _SCALARS[base]
        elif base in self.named:
            name = base
        else:
            raise ValueError(f"unknown C type {c_type!r}")
        for _ in range(depth):
            name = f"POINTER({name})"
        return f"{name} * {bound}" if bound else name


def _banner(api: Api, what: str) -> str:
    return (
        f"# GENERATED from the headers of cuDNN {api.version} by `python -m tools.generate`; do not edit: {what}\n"
        f"# source: tools/generate/api.jsonl sha256:{api.seal}"
    )


def _public_names(api: Api) -> list[str]:
    """`__all__` of the module and of its stub: every C name, in the order in which they are defined."""
    types = [*api.opaque, *api.handles, *api.enums, *api.structs, *api.aliases, *api.callbacks]
    names = [*_names(api.of("macro")), *types, *api.values, *_names(api.of("function"))]
    return ["__all__ = [", *(f"    {name!r}," for name in names), "]"]


def _names(records: list[Record]) -> list[str]:
    return [record["name"] for record in records]


def _enum_body(members: list[Record]) -> list[str]:
    return [f"    {m['name']} = {m['value']}" for m in members]


def module(api: Api) -> str:
    """cudnnpy/raw/_api.py: the C API as data."""
    out = [
        '"""The C API of cuDNN as data: constants, enums, structs, handle types, and a table of the functions."""',
        "",
        "from ctypes import (",
        "    CFUNCTYPE,",
        "    POINTER,",
        "    Structure,",
        *(
            f"    {n},"
            for n in ("c_char_p", "c_float", "c_int", "c_int64", "c_size_t", "c_uint", "c_ulonglong", "c_void_p")
        ),
        ")",
        "",
        "from cudnnpy.raw._types import Enumeration, Struct, handle",
        "",
        f'HEADER_VERSION = "{api.version}"',
        "",
        "# Macros",
        *(f"{r['name']} = {r['value']!r}" for r in api.of("macro")),
        "",
        "",
        "# Opaque structs: nothing is known of them but their address.",
    ]
    for opaque in api.opaque:
        out += [f"class {opaque}(Structure):", "    pass", "", ""]
    out += ["# Handles: a distinct pointer type each, so that a wrong handle is a TypeError before it is a crash."]
    out += [f'{name} = handle("{name}", {struct})' for name, struct in api.handles.items()]
    for name, members in api.enums.items():
        out += ["", "", f"class {name}(Enumeration):", *_enum_body(members)]
    out += ["", "", "# Structs"]
    for name, record in api.structs.items():
        out += [f"class {name}(Struct):", "    _fields_ = ["]
        out += [f'        ("{field}", {api.ctypes_expression(kind)}),' for field, kind in record["fields"]]
        out += ["    ]"]
        enums = [f'"{field}": {kind}' for field, kind in record["fields"] if kind in api.enums]
        out += [f"    _enums_ = {{{', '.join(enums)}}}"] * bool(enums) + ["", ""]
    out += [f"{name} = {target}" for name, target in api.aliases.items()]
    for name, record in api.callbacks.items():
        types = [record["returns"], *(kind for _, kind in record["parameters"])]
        out += [f"{name} = CFUNCTYPE({', '.join(api.ctypes_expression(t) for t in types)})"]
    out += [
        "",
        "# Every enumerator is a module-level name too, as in C.",
        f"ENUMS = ({', '.join(api.enums)})",
        "for _enum in ENUMS:",
        "    globals().update(_enum.__members__)",
        "",
        "# name: (return type, ((parameter, C type, direction or ''), ...), sub-library, since or '',",
        "#        None or the names that the header gives to use instead of a deprecated function)",
        "FUNCTIONS = {",
    ]
    for r in api.of("function"):
        parameters = "".join(f"({n!r}, {t!r}, {d!r}), " for n, t, d in r["parameters"]).rstrip(" ")
        deprecated = tuple(r["deprecated"]) if "deprecated" in r else None
        out.append(
            f"    {r['name']!r}: ({r['returns']!r}, ({parameters}), {r['header']!r}, {r['since']!r}, {deprecated!r}),"
        )
    out += ["}", "", "# function: the places of the parameters that may not be NULL", "NOT_NULL = {"]
    out += [f"    {r['name']!r}: {not_null(r)}," for r in api.of("function") if not_null(r)]
    out += ["}", "", "# C type of one element of each attribute type", "ATTRIBUTE_C_TYPES = {"]
    out += [f"    {r['value']}: {r['type']!r},  # {r['name']}" for r in api.enums["cudnnBackendAttributeType_t"]]
    out += ["}", "", "# attribute: the attribute types it takes, the usual one first", "ATTRIBUTE_TYPES = {"]
    for r in api.enums["cudnnBackendAttributeName_t"]:
        listed = "".join(f"{api.values[t]}, " for t in r["types"]).rstrip(" ")
        out.append(f"    {r['value']}: ({listed}),  # {r['name']}: {' or '.join(r['types'])}")
    single = [r for r in api.enums["cudnnBackendAttributeName_t"] if r.get("count") == 1]
    out += [
        "}",
        "",
        "# attributes of which the header says that they have one element",
        "SINGLE_ATTRIBUTES = frozenset(",
    ]
    out += ["    {", *(f"        {r['value']},  # {r['name']}" for r in single), "    }", ")"]
    out += ["", "# attribute that holds descriptors: their kinds", "ATTRIBUTE_KINDS = {"]
    for r in api.enums["cudnnBackendAttributeName_t"]:
        if "holds" in r:
            listed = "".join(f"{api.values[k]}, " for k in r["holds"]).rstrip(" ")
            out.append(f"    {r['value']}: ({listed}),  # {r['name']}: {_kinds_text(r)}")
    out += ["}", "", *_needs(api)]
    newer = [m for m in api.of("enumerator") if m.get("since", "") not in ("", "9.0.0")]
    old = [m for m in api.of("enumerator") if "deprecated" in m]
    out += ["", "# enumerators newer than 9.0.0, and the deprecated ones with what the header names instead"]
    out += ["ENUMERATORS_SINCE = {", *(f"    {m['name']!r}: {m['since']!r}," for m in newer), "}"]
    out += ["ENUMERATORS_DEPRECATED = {", *(f"    {m['name']!r}: {tuple(m['deprecated'])!r}," for m in old), "}"]
    out += ["", *_public_names(api)]
    return sealed(_banner(api, "the C API as data"), "\n".join(out) + "\n")


def enumerator_names(api: Api) -> str:
    """cudnnpy/_enumerator_names.py: the short names of enums, as types."""
    names = {enum: shortened(_names(api.enums[enum])) for enum in _NAMED}
    types = [f"{enum[5:-2]}Name: TypeAlias = Literal[{str(short)[1:-1]}]" for enum, short in names.items()]
    docstring = '"""The short names of enumerators, by enum, as types. cudnnpy.typing explains them."""'
    lines = [docstring, "", "from typing import Literal, TypeAlias", "", *types]
    return sealed(_banner(api, "types"), "\n".join(lines) + "\n")


def _needs(api: Api) -> list[str]:
    """What cuDNN needs and does not check. A condition is a tuple of (attribute, its value or None for any)."""

    def when(condition: dict[str, str | None]) -> str:
        return repr(tuple((api.values[name], value and api.values[value]) for name, value in condition.items()))

    out = ["# kind of descriptor: before it is finalized, where a condition holds, one of these attributes must be set"]
    out += ["REQUIRED_ATTRIBUTES = {"]
    for r in api.enums["cudnnBackendDescriptorType_t"]:
        if "requires" in r:
            rules = (f"({when(c)}, {tuple(api.values[n] for n in names)!r}), " for c, names in r["requires"])
            out.append(f"    {r['value']}: ({''.join(rules).rstrip(' ')}),  # {r['name']}")
    out += ["}", "", "# mode of an operation graph: the kind of operation that it must have, and a condition on it"]
    out += ["MODE_OPERATIONS = {"]
    for r in api.enums["cudnnBackendOperationGraphMode_t"]:
        if "operation" in r:
            kind, condition = r["operation"]
            out.append(f"    {r['value']}: ({api.values[kind]}, {when(condition)}),  # {r['name']}: {kind}")
    out += ["}", "", "# attribute: the least and the largest number that it takes", "ATTRIBUTE_RANGES = {"]
    for r in api.enums["cudnnBackendAttributeName_t"]:
        if "range" in r:
            out.append(f"    {r['value']}: {tuple(r['range'])!r},  # {r['name']}")
    return [*out, "}"]


def _kinds_text(record: Record) -> str:
    """The kinds of descriptor that an attribute holds, for people."""
    first, *others = record["holds"]
    return "any CUDNN_BACKEND_OPERATION_*_DESCRIPTOR" if others else str(first)


def stub(api: Api) -> str:
    """cudnnpy/raw/_api.pyi: the same for editors and type checkers, with every function's signature."""
    out = [
        "from ctypes import Array, Structure, _CArgObject, _Pointer, c_char, c_char_p, c_double, c_float, c_int",
        "from ctypes import c_int32, c_int64, c_size_t, c_uint, c_uint32, c_ulonglong, c_void_p",
        "from ctypes import _CFunctionType",
        "from enum import IntEnum",
        "from typing import Any, Final, Protocol, TypeAlias, TypeVar",
        "",
        "_T = TypeVar('_T', bound=Any)",
        "_T_co = TypeVar('_T_co', bound=Any, covariant=True)",
        "class _Owner(Protocol[_T_co]):  # an object that ctypes takes where C takes a handle",
        "    @property",
        "    def _as_parameter_(self) -> _T_co: ...",
        "_Handle: TypeAlias = _T | _Owner[_T] | None",
        "_Ref: TypeAlias = _Pointer[_T] | Array[_T] | _CArgObject | None  # T *",
        "_Address: TypeAlias = int | c_void_p | Array[Any] | _Pointer[Any] | _CArgObject | bytes | None  # void *",
        "_Text: TypeAlias = bytes | Array[c_char] | c_char_p | None  # char *",
        "class _EnumField(Protocol[_T_co]):  # an unknown number is an int",
        "    def __get__(self, struct: Any, kind: Any) -> _T_co: ...",
        "    def __set__(self, struct: Any, value: int) -> None: ...",
        "",
        "HEADER_VERSION: Final[str]",
        "FUNCTIONS: Final[dict[str, tuple[str, tuple[tuple[str, str, str], ...], str, str, tuple[str, ...] | None]]]",
        "NOT_NULL: Final[dict[str, tuple[int, ...]]]",
        "ATTRIBUTE_C_TYPES: Final[dict[int, str]]",
        "ATTRIBUTE_TYPES: Final[dict[int, tuple[int, ...]]]",
        "SINGLE_ATTRIBUTES: Final[frozenset[int]]",
        "ATTRIBUTE_KINDS: Final[dict[int, tuple[int, ...]]]",
        "_Condition: TypeAlias = tuple[tuple[int, int | None], ...]",
        "REQUIRED_ATTRIBUTES: Final[dict[int, tuple[tuple[_Condition, tuple[int, ...]], ...]]]",
        "MODE_OPERATIONS: Final[dict[int, tuple[int, _Condition]]]",
        "ATTRIBUTE_RANGES: Final[dict[int, tuple[int, int]]]",
        "ENUMERATORS_SINCE: Final[dict[str, str]]",
        "ENUMERATORS_DEPRECATED: Final[dict[str, tuple[str, ...]]]",
        "ENUMS: Final[tuple[type[IntEnum], ...]]",
        "",
        *(f"{r['name']}: Final = {r['value']!r}" for r in api.of("macro")),
        "",
    ]
    out += [f"class {name}(Structure): ..." for name in api.opaque]
    out += [f"class {name}(_Pointer[{struct}]): ..." for name, struct in api.handles.items()]
    for name, members in api.enums.items():
        out += ["", f"class {name}(IntEnum):", *_enum_body(members)]
    out += [""]
    for name, record in api.structs.items():
        out += [f"class {name}(Structure):"]
        out += [f"    {field}: {_field_type(api, kind)}" for field, kind in record["fields"]]
    out += [f"{name} = {target}" for name, target in api.aliases.items()]
    out += [f"class {name}(_CFunctionType): ..." for name in api.callbacks]
    out += [""]
    for name, members in api.enums.items():
        out += [f"{m['name']}: Final = {name}.{m['name']}" for m in members]
    out += [""]
    for r in api.of("function"):
        parameters = ", ".join(f"{n}: {_parameter_type(api, t)}" for n, t, _ in r["parameters"])
        result = {"const char *": "bytes", "void": "None"}.get(r["returns"], "int")
        out.append(f"def {r['name']}({parameters}) -> {result}: {_notes(r) or '...'}")
    out += ["", *_public_names(api)]
    return sealed(_banner(api, "types"), "\n".join(out) + "\n")


def _notes(function: Record) -> str:
    """The docstring of a function in the stub, as the function has it at run time after its prototype."""
    notes = [f"Since cuDNN {function['since']}."] * bool(function["since"])
    if "deprecated" in function:
        names = " or ".join(function["deprecated"])
        notes.append(f"Deprecated{': use ' if names else ''}{names}.")
    return f'"""{" ".join(notes)}"""' if notes else ""


def _field_type(api: Api, c_type: str) -> str:
    if c_type in api.enums:
        return f"_EnumField[{c_type}]"
    base, depth, bound = api.split(c_type)
    if bound:
        return f"Array[{_SCALARS[base]}]"
    if depth or _SCALARS.get(base) == "c_void_p":
        return "int | None"
    if base in api.handles:
        return base
    return "float" if base in ("float", "double") else "int"


def _parameter_type(api: Api, c_type: str) -> str:
    base, depth, bound = api.split(c_type)
    depth += bound is not None
    if base == "void" or _SCALARS.get(base) == "c_void_p":
        deep = depth - (base == "void")
        return "_Address" if not deep else "_Ref[c_void_p]"
    if base == "char":
        return "_Text"
    if depth:
        known = base in api.named or base in api.callbacks
        return f"_Ref[{base if known else _SCALARS.get(base, 'c_int')}]"
    if base in api.handles:
        return f"_Handle[{base}]"
    if base in api.callbacks:
        return f"{base} | None"
    if base in api.enums:
        return f"{base} | int"
    return "float" if base in ("float", "double") else "int"


def coverage(api: Api) -> str:
    """docs/coverage.md: what is there, what is left out and why, and where each attribute's type comes from."""
    functions = api.of("function")
    attributes = api.enums["cudnnBackendAttributeName_t"]
    sources = Counter(r["from"] for r in attributes)
    per_header = Counter(r["header"] for r in functions)
    ours = [e for e in api.of("enum") if e["origin"] == "cudnn"]
    out = [
        "# Coverage of the C API",
        "",
        "`cudnnpy.raw` has every function, enum, struct and constant of cuDNN's public headers, except those listed below.",
        "",
        f"This page is generated from the headers of cuDNN {api.version} by `python -m tools.generate`; do not edit it.",
        f"Source: `tools/generate/api.jsonl`, sha256 `{api.seal}`.",
        "",
        "| kind | number |",
        "|---|---|",
        f"| functions | {len(functions)} ({', '.join(f'{k} {v}' for k, v in per_header.items())}) |",
        f"| of them deprecated | {sum('deprecated' in r for r in functions)} |",
        f"| enums | {len(ours)}, and {len(api.enums) - len(ours)} of CUDA's that a prototype needs |",
        f"| enumerators | {sum(len(api.enums[e['name']]) for e in ours)} |",
        f"| structs with fields | {len(api.structs)} |",
        f"| opaque structs | {len(api.opaque)} |",
        f"| handle types | {len(api.handles)} |",
        f"| constants from macros | {len(api.of('macro'))} |",
        f"| backend attributes | {len(attributes)}, all with a type |",
        "",
        "The headers do not declare the types of backend attributes. Each type has one of these sources: "
        + "; ".join(f"{source} {count}" for source, count in sources.items())
        + ". A comment of the header states the type; or the name ends in DESC, DESCS or DESCRIPTOR; or the reviewed table in "
        "`tools/generate/attributes.py` has it, confirmed by the answers of the library, or by meaning if it gives none.",
        "",
        "## Omitted",
        "",
        "| name | reason |",
        "|---|---|",
        *(f"| `{r['name']}` | {r['reason']} |" for r in api.of("skipped")),
        "",
        "## Functions",
        "",
        "Arrows show the direction of a parameter: → in, ← out, ↔ both, none if the header does not state it.",
        "",
        "| function | sub-library | since | deprecated | parameters |",
        "|---|---|---|---|---|",
    ]
    arrows = {"in": "→", "out": "←", "in-out": "↔", "": ""}
    for r in functions:
        parameters = ", ".join(f"{n}{arrows[d]}" for n, _, d in r["parameters"])
        note = "" if "deprecated" not in r else "yes" + "".join(f"; `{n}`" for n in r["deprecated"])
        out.append(f"| `{r['name']}` | {r['header']} | {r['since'] or 'not stated'} | {note} | {parameters} |")
    out += ["", "## Backend attributes", "", "| attribute | type | from | since |", "|---|---|---|---|"]
    for r in attributes:
        holds = f" ({_kinds_text(r)})" if "holds" in r else ""
        out.append(f"| `{r['name']}` | {' or '.join(r['types'])}{holds} | {r['from']} | {r['since']} |")
    return "\n".join(out) + "\n"
