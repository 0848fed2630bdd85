"""The type of every backend attribute, asked of the real library: it takes ours and refuses the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from cudnnpy import raw
from tools.generate import records

# Sets every attribute on every kind of descriptor with a value of every type; in a process of its own, since a library
# may crash on a zero where it expects an address. CUDNN_TYPE_HANDLE is left out for that: 9.0 follows it unchecked.
_PROBE = """
import json, re, sys
from ctypes import byref, create_string_buffer
from cudnnpy import raw
value = create_string_buffer(4096)
answers = {}
for attribute in raw.cudnnBackendAttributeName_t:
    for kind in raw.cudnnBackendDescriptorType_t:
        answer = {}
        for wanted in raw.cudnnBackendAttributeType_t:
            descriptor = raw.cudnnBackendDescriptor_t()
            if wanted == raw.CUDNN_TYPE_HANDLE or raw.cudnnBackendCreateDescriptor(kind, byref(descriptor)):
                continue
            status = raw.cudnnBackendSetAttribute(descriptor, attribute, wanted, 1, value)
            answer[int(wanted)] = f"{status} {raw.last_error() if status else ''}"
            raw.cudnnBackendDestroyDescriptor(descriptor)
        if len(set(answer.values())) > 1:
            answers.setdefault(attribute.name, []).append(answer)
json.dump(answers, sys.stdout)
"""

# Taken by the library beside what its documentation says.
_ALSO_TAKEN = {
    "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA": {raw.CUDNN_TYPE_INT32},
    "CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA": {raw.CUDNN_TYPE_INT32},
}


@pytest.fixture(scope="module")
def taken() -> dict[str, set[int]]:
    """Attribute -> the types that the library answers unlike the rest; attributes that it answers alike are absent."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, set[int]] = {}
    for name, answers in json.loads(probe.stdout).items():
        for answer in answers:
            refusal = Counter(answer.values()).most_common(1)[0][0]
            assert not refusal.startswith("0 "), f"{name}: {answer}"
            found.setdefault(name, set()).update(int(kind) for kind, said in answer.items() if said != refusal)
    return found


def test_the_library_takes_our_types_and_no_others(taken: dict[str, set[int]]) -> None:
    wrong = {}
    for attribute in raw.cudnnBackendAttributeName_t:
        ours = set(raw.attribute_types(attribute)) - {raw.CUDNN_TYPE_HANDLE}
        library = taken.get(attribute.name, ours)
        if library - _ALSO_TAKEN.get(attribute.name, set()) != ours:
            wrong[attribute.name] = (ours, library)
    assert not wrong


def test_most_attributes_are_answered(taken: dict[str, set[int]]) -> None:
    """Those that only the library sets are not, nor those that a library older than the headers does not know."""
    assert len(taken) >= (340 if raw.version_text(raw.version()) == raw.HEADER_VERSION else 150), len(taken)


@pytest.mark.skipif("raw.version_text(raw.version()) != raw.HEADER_VERSION", reason="answers differ between releases")
def test_what_is_called_confirmed_is_answered(taken: dict[str, set[int]]) -> None:
    confirmed = {r["name"] for r in records.load(records.API.read_text()) if r.get("from") == "reviewed, confirmed"}
    assert confirmed
    assert confirmed <= set(taken)


def test_every_attribute_has_a_type_that_exists() -> None:
    for attribute in raw.cudnnBackendAttributeName_t:
        kinds = raw.attribute_types(attribute)
        assert kinds, attribute
        for kind in kinds:
            raw.ctype(raw._api.ATTRIBUTE_C_TYPES[kind])
