"""The generator: the facts that it carries over, rejected headers, and that the committed files are its output."""

from __future__ import annotations

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


def header_directories() -> dict[str, Path]:
    """The folders of installed headers. Skips where they or libclang are missing."""
    pytest.importorskip("clang.cindex", reason="libclang is not installed (make test-environment)")
    from tools.generate import headers

    try:
        return headers.header_directories()
    except headers.GeneratorError as error:
        pytest.skip(str(error))


def the_headers() -> None:
    """Skips where the headers that api.jsonl was read from are not installed."""
    version = (header_directories()["cudnn"] / "cudnn_version.h").read_text()
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
    assert "6 file(s) unchanged" in done.stdout


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


@pytest.mark.parametrize("name", ["raw/_api.py", "raw/_api.pyi", "_enumerator_names.py"])
def test_the_seal(name: str) -> None:
    text = (ROOT / "cudnnpy" / name).read_text()
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
    directories = header_directories()
    (folder / "cudnn_backend.h").write_text("")
    (folder / "cudnn.h").write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 99\n#define CUDNN_PATCHLEVEL 1\n" + declarations
    )
    return {**directories, "cudnn": folder}


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


# Attribute types


@pytest.mark.usefixtures("no_table")
@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("", "CUDNN_ATTR_A: no source tells its type"),
        ("- CUDNN_ATTR_B (CUDNN_TYPE_INT64, 1)", "CUDNN_ATTR_B: in the comments, not in the enum"),
        ("- CUDNN_ATTR_A (CUDNN_TYPE_NEW, 1)", "unknown attribute type CUDNN_TYPE_NEW"),
        (
            "- CUDNN_ATTR_A (CUDNN_TYPE_INT64, 1)\n- CUDNN_ATTR_A (CUDNN_TYPE_FLOAT, 1)",
            "CUDNN_ATTR_A: two types in the comments",
        ),
    ],
)
def test_no_attribute_is_without_a_type_or_guessed(comment: str, message: str) -> None:
    found = [
        {"kind": "enumerator", "enum": "cudnnBackendAttributeName_t", "name": "CUDNN_ATTR_A"},
        {"kind": "enumerator", "enum": "cudnnBackendAttributeType_t", "name": "CUDNN_TYPE_INT64"},
        {"kind": "enumerator", "enum": "cudnnBackendAttributeType_t", "name": "CUDNN_TYPE_FLOAT"},
    ]
    with pytest.raises(ValueError, match=message):
        attributes.complete(found, [comment])
