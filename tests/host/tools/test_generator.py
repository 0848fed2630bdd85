"""The generator: the facts that it carries over, rejected headers, and that the committed files are its output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.generate import __main__ as command
from tools.generate import attributes, kinds, records, render

ROOT = Path(__file__).resolve().parents[3]
API = records.API.read_text()
RECORDS = records.load(API)


def generate(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.generate", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


def the_headers() -> None:
    """Skips where libclang or the headers that api.jsonl was read from are not installed."""
    pytest.importorskip("clang.cindex", reason="libclang is not installed (make test-environment)")
    from tools.generate import headers

    try:
        version = Path(headers.header_directories()["cudnn"], "cudnn_version.h").read_text()
    except headers.GeneratorError as error:
        pytest.skip(str(error))
    found = ".".join(re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", version))
    if found != RECORDS[0]["cudnn"]:
        pytest.skip(f"the installed headers are cuDNN {found}'s, and api.jsonl was read from {RECORDS[0]['cudnn']}'s")


@pytest.fixture
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the reviewed tables of attributes, which are cuDNN's own."""
    monkeypatch.setattr(attributes, "_FROM_TABLE", {})
    for table, empty in (("_TABLE", {}), ("_REQUIRED", []), ("_OPERATIONS", {}), ("_RANGES", {})):
        monkeypatch.setattr(kinds, table, empty)


# What is committed


def test_the_committed_code_is_what_the_intermediate_form_gives() -> None:
    done = generate("--check", "--from-api")
    assert done.returncode == 0, done.stdout
    assert "5 file(s) unchanged" in done.stdout


def test_the_intermediate_form_is_what_the_headers_give() -> None:
    the_headers()
    done = generate("--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_counts() -> None:
    kinds = Counter(record["kind"] for record in RECORDS)
    enums = Counter(record["origin"] for record in RECORDS if record["kind"] == "enum")
    names = [record for record in RECORDS if record.get("enum") == "cudnnBackendAttributeName_t"]
    assert RECORDS[0] == {"kind": "source", "cudnn": "9.28.0"}
    assert kinds["function"] == 239
    assert enums == {"cudnn": 73, "cuda": 1}
    assert kinds["struct"] == 7
    assert len(names) == 383
    assert all(record["types"] and record["from"] for record in names)


def test_each_sub_library_is_there() -> None:
    assert Counter(record["header"] for record in RECORDS if record["kind"] == "function") == {
        "graph": 24, "ops": 100, "cnn": 50, "adv": 47, "gnn_ops": 6, "subquadratic_ops": 12
    }  # fmt: skip


def test_no_sentence_of_the_headers_is_carried() -> None:
    """Only the reasons for what is left out, and where a type comes from, are prose, and our own."""

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for key, item in value.items() if key not in ("reason", "from") for text in texts(item)]
        if isinstance(value, list):
            return [text for item in value for text in texts(item)]
        return [value] if isinstance(value, str) else []

    c_type = r"(const |struct )*[a-z_]\w*( int| long| char)*( long)*( ?\*| const)*(\[\d*\])?"
    for text in {text for record in RECORDS for text in texts(record)}:
        assert re.fullmatch(rf"\w+|[\d.]*|in-out|{c_type}", text, re.IGNORECASE), text
    own = (ROOT / "tools" / "generate" / "headers.py").read_text()
    assert all(record["reason"] in own for record in RECORDS if record["kind"] == "skipped")


# The seal


@pytest.mark.parametrize("name", ["_api.py", "_api.pyi"])
def test_the_seal(name: str) -> None:
    text = (ROOT / "cudnnpy" / "raw" / name).read_text()
    assert records.check_seal(text)
    assert records.seal(API) in text
    assert "cuDNN 9.28.0" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CUDNN_VERSION = 92800", "CUDNN_VERSION = 92801"),
        ("HEADER_VERSION", "HEADER_VERSIONS"),
        ("# seal: sha256:", "# seal: sha256:0"),
        ("# seal: ", "# mark: "),
        ("# source: ", "# source:  "),
    ],
)
def test_a_hand_edit_breaks_the_seal(old: str, new: str) -> None:
    text = (ROOT / "cudnnpy" / "raw" / "_api.py").read_text()
    assert old in text
    assert not records.check_seal(text.replace(old, new, 1))


# --check


def test_check_fails_with_a_diff_and_the_repair(monkeypatch, capsys, tmp_path) -> None:
    copies = {}
    for path, make in command._OUTPUTS.items():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
        copies[copy] = make
    api = tmp_path / "api.jsonl"
    api.write_text(API)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "_OUTPUTS", copies)
    monkeypatch.setattr(records, "API", api)
    monkeypatch.setattr(sys, "argv", ["generate", "--check", "--from-api"])
    assert command.main() == 0
    capsys.readouterr()

    planted = tmp_path / "cudnnpy/raw/_api.py"
    planted.write_text(planted.read_text().replace("CUDNN_VERSION = 92800", "CUDNN_VERSION = 92801"))
    assert command.main() == 1
    printed = capsys.readouterr().out
    assert "\n-CUDNN_VERSION = 92801\n+CUDNN_VERSION = 92800\n" in printed
    assert printed.endswith("1 generated file(s) differ; repair: python -m tools.generate\n")
    assert "92801" in planted.read_text()  # --check writes nothing

    monkeypatch.setattr(sys, "argv", ["generate", "--from-api"])
    assert command.main() == 0
    assert "wrote cudnnpy/raw/_api.py" in capsys.readouterr().out
    assert planted.read_text() == (ROOT / "cudnnpy/raw/_api.py").read_text()


def test_a_change_in_the_intermediate_form_changes_every_file() -> None:
    record = next(record for record in RECORDS if record.get("name") == "CUDNN_DIM_MAX")
    changed = render.Api([{**r, "value": 9} if r is record else r for r in RECORDS])
    for make in command._OUTPUTS.values():
        assert make(changed) != make(render.Api(RECORDS))


# Reading headers


def header_folder(folder: Path, declarations: str) -> dict[str, Path]:
    """Headers of a tiny library, in place of cuDNN's, with the real folders for everything else."""
    pytest.importorskip("clang.cindex", reason="libclang is not installed (make test-environment)")
    from tools.generate import headers

    try:
        directories = headers.header_directories()
    except headers.GeneratorError as error:
        pytest.skip(str(error))
    (folder / "cudnn_backend.h").write_text("")
    (folder / "cudnn.h").write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 99\n#define CUDNN_PATCHLEVEL 1\n" + declarations
    )
    return {**directories, "cudnn": folder}


def read(folder: Path, declarations: str) -> list[dict[str, object]]:
    directories = header_folder(folder, declarations)
    from tools.generate import headers

    return [r for r in headers.read(directories) if r["kind"] not in ("macro", "source")]


@pytest.mark.usefixtures("no_table")
def test_declarations_of_every_kind(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        #define CUDNN_LIMIT (1 << 4)
        struct cudnnThing;
        typedef struct cudnnThing *cudnnThing_t;
        /** @since cuDNN 9.5.0 */
        typedef enum { CUDNN_RED = 1, CUDNN_BLUE = CUDNN_RED + 1 } cudnnColour_t;
        typedef struct cudnnPairStruct { int64_t first; float second[CUDNN_LIMIT]; } cudnnPair_t;
        /**
         * @param[in] thing what
         * @param[out] sizes how much
         * @since cuDNN 9.6.0
         * @deprecated use cudnnPaintThing instead
         */
        int cudnnMeasureThing(const cudnnThing_t thing, size_t sizes[], const cudnnPair_t *pair);
        """,
    )
    by_name = {record["name"]: record for record in found}
    assert by_name["cudnnThing_t"] == {"kind": "handle", "name": "cudnnThing_t", "struct": "cudnnThing"}
    assert by_name["cudnnColour_t"]["since"] == "9.5.0"
    assert [by_name[name]["value"] for name in ("CUDNN_RED", "CUDNN_BLUE")] == [1, 2]
    assert by_name["cudnnPairStruct"]["size"] == 72
    assert by_name["cudnnPairStruct"]["fields"] == [["first", "int64_t"], ["second", "float[16]"]]
    assert by_name["cudnnMeasureThing"] == {
        "kind": "function",
        "name": "cudnnMeasureThing",
        "header": "cudnn",
        "returns": "int",
        "parameters": [
            ["thing", "const cudnnThing_t", "in"],
            ["sizes", "size_t[]", "out"],
            ["pair", "const cudnnPair_t *", ""],
        ],
        "since": "9.6.0",
        "deprecated": ["cudnnPaintThing"],
    }


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ("int cudnnGlobal;", "unknown construct.*cudnnGlobal"),
        ("union cudnnEither { int a; float b; };", "unknown construct"),
        ("int cudnnPrint(const char *text, ...);", "cudnnPrint has no fixed prototype"),
        ("struct cudnnBits { int low : 3; };", "bit field low"),
        ("struct cudnnNest { struct { int a; } inner; };", "inside struct cudnnNest"),
        ("#define CUDNN_NAME other_name", "unknown name 'other_name'"),
        ("#define CUDNN_LIST {1, 2}", "macro CUDNN_LIST: cannot read"),
        ("/** @param[sideways] a what */\nint cudnnTurn(int a);", "unknown direction 'sideways'"),
        ("int cudnnAsk(Unknown thing);", "clang stopped at the headers:\n.*unknown type name 'Unknown'"),
        ("#include <cudnn_missing.h>", "clang stopped at the headers:\n.*cudnn_missing.h"),
        ("#error no\n", "clang stopped"),
    ],
)
def test_what_is_not_understood_stops_it(tmp_path: Path, declaration: str, message: str) -> None:
    directories = header_folder(tmp_path, declaration)
    from tools.generate import headers

    with pytest.raises(headers.GeneratorError, match=f"(?s){message}"):
        headers.read(directories)


def test_a_wrong_size_t_stops_it(tmp_path: Path) -> None:
    """What clang makes of a missing stddef.h: an int."""
    directories = header_folder(tmp_path, "")
    from tools.generate import headers

    (tmp_path / "cudnn.h").write_text("typedef int size_t;\ntypedef long int64_t;\n")
    with pytest.raises(headers.GeneratorError, match="size_t came out 4 bytes wide, not 8"):
        headers.parse(directories)


# Attribute types


def attribute(name: str) -> list[dict[str, object]]:
    kinds = ("CUDNN_TYPE_INT64", "CUDNN_TYPE_FLOAT", "CUDNN_TYPE_DOUBLE", "CUDNN_TYPE_BACKEND_DESCRIPTOR")
    return [
        {"kind": "enumerator", "enum": "cudnnBackendAttributeName_t", "name": name},
        *({"kind": "enumerator", "enum": "cudnnBackendAttributeType_t", "name": kind} for kind in kinds),
    ]


def complete(name: str, comment: str = "") -> dict[str, object]:
    found = attribute(name)
    comments = attributes.Comments()
    comments.add(comment)
    attributes.complete(found, comments)
    return found[0]


@pytest.mark.usefixtures("no_table")
@pytest.mark.parametrize(
    ("comment", "types"),
    [
        ("* - CUDNN_ATTR_A (CUDNN_TYPE_INT64, 1 element)", ["CUDNN_TYPE_INT64"]),
        ("* - CUDNN_ATTR_A (CUDNN_TYPE_FLOAT or CUDNN_TYPE_DOUBLE, 1)", ["CUDNN_TYPE_FLOAT", "CUDNN_TYPE_DOUBLE"]),
        ("* CUDNN_ATTR_A\n*   Words.\n*   - CUDNN_TYPE_INT64; one element.\n", ["CUDNN_TYPE_INT64"]),
        (
            "* CUDNN_ATTR_A\n* - CUDNN_TYPE_INT64; one element or CUDNN_TYPE_BACKEND_DESCRIPTOR; one\n",
            ["CUDNN_TYPE_INT64", "CUDNN_TYPE_BACKEND_DESCRIPTOR"],
        ),
    ],
)
def test_types_read_from_comments(comment: str, types: list[str]) -> None:
    record = complete("CUDNN_ATTR_A", comment)
    assert (record["types"], record["from"]) == (types, "comment")


@pytest.mark.usefixtures("no_table")
def test_a_type_told_by_the_name() -> None:
    assert complete("CUDNN_ATTR_X_DESC")["types"] == ["CUDNN_TYPE_BACKEND_DESCRIPTOR"]


@pytest.mark.usefixtures("no_table")
def test_an_attribute_takes_no_type_from_the_next_ones_comment() -> None:
    comment = (
        "* CUDNN_ATTR_A\n*   - Required.\n"
        "* CUDNN_ATTR_OPERATIONGRAPH_ENGINE_SUPPORTED_COUNT\n*   - CUDNN_TYPE_INT64; one element.\n"
    )
    with pytest.raises(ValueError, match="CUDNN_ATTR_A: no source tells its type"):
        complete("CUDNN_ATTR_A", comment)


@pytest.mark.usefixtures("no_table")
@pytest.mark.parametrize(
    ("name", "comment", "message"),
    [
        ("CUDNN_ATTR_A", "", "CUDNN_ATTR_A: no source tells its type"),
        ("CUDNN_ATTR_A", "- CUDNN_ATTR_B (CUDNN_TYPE_INT64, 1)", "CUDNN_ATTR_B: in the comments, not in the enum"),
        ("CUDNN_ATTR_A", "- CUDNN_ATTR_A (CUDNN_TYPE_NEW, 1)", "unknown attribute type CUDNN_TYPE_NEW"),
        (
            "CUDNN_ATTR_A",
            "- CUDNN_ATTR_A (CUDNN_TYPE_INT64, 1)\n- CUDNN_ATTR_A (CUDNN_TYPE_FLOAT, 1)",
            "CUDNN_ATTR_A: two types in the comments",
        ),
    ],
)
def test_no_attribute_is_without_a_type_or_guessed(name: str, comment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        complete(name, comment)


def test_a_stale_entry_of_the_reviewed_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="in the reviewed table, but the headers know no such attribute"):
        complete("CUDNN_ATTR_X_DESC")


def test_an_attribute_type_without_a_c_type_is_an_error() -> None:
    assert attributes.c_type_of("CUDNN_TYPE_COLOUR", "a cudnnColour_t value") == "cudnnColour_t"
    with pytest.raises(ValueError, match="CUDNN_TYPE_COLOUR: the comment names no C type"):
        attributes.c_type_of("CUDNN_TYPE_COLOUR", "a colour")


# The intermediate form


def test_one_declaration_a_line() -> None:
    assert records.dump(RECORDS) == API
    assert all(json.loads(line)["kind"] for line in API.splitlines())


def test_an_unknown_type_cannot_be_rendered() -> None:
    with pytest.raises(ValueError, match="unknown C type 'mystery_t'"):
        render.Api(RECORDS).ctypes_expression("mystery_t")
