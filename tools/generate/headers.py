"""cuDNN's C headers -> records, by libclang. Only names, numbers, types, directions and versions are taken.

A record is a dict with a "kind"; api.jsonl holds one a line (see records.py). Nothing that the headers
declare is passed over in silence: an unknown construct is an error, and what is left out on purpose becomes
a "skipped" record with its reason.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from clang.cindex import (
    AvailabilityKind,
    Cursor,
    CursorKind,
    Diagnostic,
    Index,
    TokenKind,
    TranslationUnit,
    Type,
    TypeKind,
)
from cuda.pathfinder import find_nvidia_header_directory

from tools.generate import attributes, kinds
from tools.generate.records import Record


class GeneratorError(Exception):
    """The headers hold something the generator does not know how to carry over; the message says what."""


# Macros that exist for the preprocessor and mean nothing at run time.
_SKIPPED_MACROS = {
    "CUDNNWINAPI": "calling convention; empty on Linux",
    "CUDNN_DEPRECATED": "compiler attribute; carried as each declaration's 'deprecated'",
    "CUDNN_DEPRECATED_ENUM": "compiler attribute; carried as each enumerator's 'deprecated'",
    "CUDNN_WARN_DEPRECATED": "defined by the generator itself, to make the attribute visible",
}

# Typedefs that hide a pointer to something opaque behind `void *`; made distinct handle types of our own.
_VOID_HANDLES = {"cudnnBackendDescriptor_t": "cudnnBackendDescriptor"}

# CUDA's own enums, which are not part of cuDNN but appear in its prototypes.
_EXTERNAL_ENUMS = {"libraryPropertyType"}

_PREPROCESSING = {CursorKind.MACRO_DEFINITION, CursorKind.MACRO_INSTANTIATION, CursorKind.INCLUSION_DIRECTIVE}


def header_directories() -> dict[str, Path]:
    """Where the cuDNN and CUDA headers are, by cuda.pathfinder, and the compiler's own (stddef.h, limits.h)."""
    found: dict[str, Path] = {}
    for name, package in (
        ("cudnn", "nvidia-cudnn-cu12"),
        ("cudart", "nvidia-cuda-runtime-cu12"),
        ("nvcc", "nvidia-cuda-nvcc-cu12"),
    ):
        directory = find_nvidia_header_directory(name)
        if directory is None:
            raise GeneratorError(f"no headers of {name} found; install them: pip install {package}")
        found[name] = Path(directory)
    try:
        printed = subprocess.run(["cc", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise GeneratorError(
            f"no C compiler to give stddef.h and limits.h, which libclang's wheel lacks ({error}); install gcc"
        ) from error
    found["compiler"] = Path(printed.strip())
    return found


def parse(directories: dict[str, Path]) -> TranslationUnit:
    """The parsed cudnn.h; stops at any diagnostic of severity error, after which clang guesses types."""
    arguments = ["-x", "c", "-std=c11", "-DCUDNN_WARN_DEPRECATED", "-Wno-deprecated-declarations"]
    for directory in directories.values():
        arguments += ["-isystem" if directory != directories["cudnn"] else "-I", str(directory)]
    source = "#include <cudnn.h>\n#include <cudnn_backend.h>\n"
    source += "int64_t probe_int64;\nsize_t probe_size;\n"
    unit = Index.create().parse(
        "cudnnpy_probe.c",
        arguments,
        unsaved_files=[("cudnnpy_probe.c", source)],
        options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )
    errors = [d for d in unit.diagnostics if d.severity >= Diagnostic.Error]
    if errors:
        raise GeneratorError("clang stopped at the headers:\n" + "\n".join(str(d) for d in errors))
    for cursor in unit.cursor.get_children():
        if cursor.spelling in ("probe_int64", "probe_size") and cursor.type.get_size() != 8:
            raise GeneratorError(f"{cursor.type.spelling} came out {cursor.type.get_size()} bytes wide, not 8")
    return unit


def read(directories: dict[str, Path] | None = None) -> list[Record]:
    """Every declaration of the public cuDNN headers, in the order of the headers."""
    directories = directories or header_directories()
    unit = parse(directories)
    root = directories["cudnn"]
    macros = list(_macros(unit, root))
    values = {m["name"]: m["value"] for m in macros if m["kind"] == "macro"}
    version = f"{values['CUDNN_MAJOR']}.{values['CUDNN_MINOR']}.{values['CUDNN_PATCHLEVEL']}"
    records: list[Record] = [{"kind": "source", "cudnn": version}, *macros]
    comments: list[str] = []  # on the kinds of descriptors
    for cursor in unit.cursor.get_children():
        if cursor.kind in _PREPROCESSING:
            continue  # macros were read above
        if header := _header(cursor, root):
            records += _declaration(cursor, header, comments)
        elif cursor.kind == CursorKind.TYPEDEF_DECL and cursor.spelling in _EXTERNAL_ENUMS:
            records += _enum(cursor, cursor.underlying_typedef_type.get_declaration(), "cuda")
    attributes.complete(records, comments)
    kinds.complete(records, comments)
    return records


def _header(cursor: Cursor, root: Path) -> str | None:
    """The cuDNN sub-library ("graph", "ops", ...) whose header declares the cursor; None for other headers."""
    file = cursor.location.file
    if file is None or Path(file.name).parent != root:
        return None
    return Path(file.name).stem.removeprefix("cudnn_")


def _declaration(cursor: Cursor, header: str, comments: list[str]) -> Iterator[Record]:
    if cursor.kind == CursorKind.FUNCTION_DECL:
        yield _function(cursor, header)
    elif cursor.kind == CursorKind.STRUCT_DECL:
        if not cursor.is_definition():
            yield {"kind": "opaque", "name": cursor.spelling}
        else:
            yield _struct(cursor)
    elif cursor.kind == CursorKind.ENUM_DECL:
        pass  # anonymous enums come with their typedef; a named one must have one too, or it would be lost
    elif cursor.kind == CursorKind.TYPEDEF_DECL:
        yield from _typedef(cursor, comments)
    elif cursor.kind != CursorKind.UNEXPOSED_DECL or list(cursor.get_children()):
        raise GeneratorError(f"{cursor.location}: unknown construct {cursor.kind} {cursor.spelling!r}")


def _typedef(cursor: Cursor, comments: list[str]) -> Iterator[Record]:
    name, underlying = cursor.spelling, cursor.underlying_typedef_type
    canonical = underlying.get_canonical()
    pointee = canonical.get_pointee() if canonical.kind == TypeKind.POINTER else None
    if canonical.kind == TypeKind.ENUM:
        definition = canonical.get_declaration()
        yield from _enum(cursor, definition, "cudnn")
        if name == "cudnnBackendDescriptorType_t":
            # An enumerator here has two comments, and clang keeps only the one behind it: read the tokens.
            comments += [token.spelling for token in definition.get_tokens() if token.kind == TokenKind.COMMENT]
    elif name in _VOID_HANDLES and pointee is not None and pointee.kind == TypeKind.VOID:
        yield {"kind": "opaque", "name": _VOID_HANDLES[name]}
        yield {"kind": "handle", "name": name, "struct": _VOID_HANDLES[name]}
    elif pointee is not None and pointee.kind == TypeKind.RECORD:
        yield {"kind": "handle", "name": name, "struct": pointee.get_declaration().spelling}
    elif pointee is not None and pointee.kind == TypeKind.FUNCTIONPROTO:
        yield _callback(cursor, pointee)
    elif canonical.kind == TypeKind.RECORD:
        definition = canonical.get_declaration()
        if not definition.spelling or "unnamed" in definition.spelling or "(" in definition.spelling:
            raise GeneratorError(f"{cursor.location}: struct without a name behind {name}")
        yield {"kind": "alias", "name": name, "type": definition.spelling}
    else:
        yield {"kind": "alias", "name": name, "type": _c_type(underlying)}


def _enum(cursor: Cursor, definition: Cursor, origin: str) -> Iterator[Record]:
    yield {"kind": "enum", "name": cursor.spelling, "origin": origin, **_facts(cursor)}
    for child in definition.get_children():
        if child.kind in (CursorKind.UNEXPOSED_ATTR, CursorKind.ANNOTATE_ATTR):
            continue
        if child.kind != CursorKind.ENUM_CONSTANT_DECL:
            raise GeneratorError(f"{child.location}: {child.kind} inside enum {cursor.spelling}")
        record = {"kind": "enumerator", "enum": cursor.spelling, "name": child.spelling, "value": child.enum_value}
        if origin == "cudnn":
            record |= _facts(child)
            if cursor.spelling == "cudnnBackendAttributeType_t":
                record["type"] = attributes.c_type_of(child.spelling, child.raw_comment or "")
        yield record


def _struct(cursor: Cursor) -> Record:
    name, fields = cursor.spelling, []
    for child in cursor.get_children():
        if child.kind != CursorKind.FIELD_DECL:
            raise GeneratorError(f"{child.location}: {child.kind} inside struct {name}")
        if child.is_bitfield():
            raise GeneratorError(f"{child.location}: bit field {child.spelling}")
        fields.append([child.spelling, _c_type(child.type)])
    return {"kind": "struct", "name": name, "size": cursor.type.get_size(), "fields": fields}


def _callback(cursor: Cursor, prototype: Type) -> Record:
    names = [child.spelling for child in cursor.get_children() if child.kind == CursorKind.PARM_DECL]
    types = [_c_type(t) for t in prototype.argument_types()]
    return {
        "kind": "callback",
        "name": cursor.spelling,
        "returns": _c_type(prototype.get_result()),
        "parameters": [list(pair) for pair in zip(names, types, strict=True)],
    }


def _function(cursor: Cursor, header: str) -> Record:
    if cursor.type.kind != TypeKind.FUNCTIONPROTO or cursor.type.is_function_variadic():
        raise GeneratorError(f"{cursor.location}: {cursor.spelling} has no fixed prototype")
    comment = cursor.raw_comment or ""
    directions = {name: kind for kind, name in re.findall(r"@param\[([\w,]+)\]\s+(\w+)", comment)}
    parameters = []
    for argument in cursor.get_arguments():
        direction = directions.pop(argument.spelling, None)
        if direction not in (None, "in", "out", "inout", "in,out"):
            raise GeneratorError(f"{cursor.spelling}: unknown direction {direction!r} of {argument.spelling}")
        direction = {"inout": "in-out", "in,out": "in-out", None: ""}.get(direction, direction)
        parameters.append([argument.spelling, _c_type(argument.type), direction])
    return {
        "kind": "function",
        "name": cursor.spelling,
        "header": header,
        "returns": _c_type(cursor.result_type),
        "parameters": parameters,
        **_facts(cursor),
        # directions documented under a name that the prototype does not have
        **({"stray": sorted(directions)} if directions else {}),
    }


def _facts(cursor: Cursor) -> Record:
    """since; deprecated, and the cuDNN names that its note gives as the way on."""
    comment = cursor.raw_comment or ""
    since = re.search(r"@since\s+cuDNN\s+(\d+\.\d+\.\d+)", comment)
    facts: Record = {"since": since.group(1) if since else ""}
    note = re.search(r"@deprecated\b(.*?)(?=@\w|\Z)", comment, re.DOTALL)
    if note or cursor.availability == AvailabilityKind.DEPRECATED:
        names = re.findall(r"\b(?:cudnn\w+|CUDNN_\w+)", note.group(1)) if note else []
        facts["deprecated"] = list(dict.fromkeys(names))
    return facts


def _c_type(kind: Type) -> str:
    """The type in plain C, with array bounds; `const` is kept, as it tells the direction."""
    spelling = re.sub(r"\s+", " ", kind.spelling).strip()
    return spelling.replace("* ", "*").replace("*const", "* const")


def _macros(unit: TranslationUnit, root: Path) -> Iterator[Record]:
    bodies: dict[str, str] = {}
    for cursor in unit.cursor.get_children():
        if cursor.kind != CursorKind.MACRO_DEFINITION or not _header(cursor, root):
            continue
        tokens = [token.spelling for token in cursor.get_tokens()]
        name, body = tokens[0], tokens[1:]
        if name in bodies:
            continue
        if name in _SKIPPED_MACROS:
            reason = _SKIPPED_MACROS[name]
        elif not body and name.endswith("_H_"):
            reason = "include guard"
        elif _is_function_like(cursor):
            reason = "function-like macro; arithmetic that Python spells itself"
        else:
            bodies[name] = " ".join(body)
            yield {"kind": "macro", "name": name, "value": _evaluate(name, bodies, unit)}
            continue
        yield {"kind": "skipped", "name": name, "reason": reason}


def _is_function_like(cursor: Cursor) -> bool:
    tokens = list(cursor.get_tokens())
    return (
        len(tokens) > 1 and tokens[1].spelling == "(" and tokens[1].extent.start.offset == tokens[0].extent.end.offset
    )


def _evaluate(name: str, bodies: dict[str, str], unit: TranslationUnit) -> int | float:
    """The value of a macro whose body is arithmetic on numbers, macros defined before it and enumerators."""

    def value(word: re.Match[str]) -> str:
        if word[0] in bodies:
            return f"({_evaluate(word[0], bodies, unit)})"
        for cursor in unit.cursor.walk_preorder():
            if cursor.kind == CursorKind.ENUM_CONSTANT_DECL and cursor.spelling == word[0]:
                return str(cursor.enum_value)
        raise GeneratorError(f"macro {name}: unknown name {word[0]!r}")

    body = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", bodies[name])
    body = re.sub(r"\b[A-Za-z_]\w*", value, body)
    if not re.fullmatch(r"[\d\s.()+*<|e-]+", body):
        raise GeneratorError(f"macro {name}: cannot read {bodies[name]!r}")
    result = eval(body, {"__builtins__": {}})
    assert isinstance(result, int | float)
    return result
