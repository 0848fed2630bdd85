"""Faulty candidates: each access outside an operand ends the context, and every other fault is a rejection with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_kernels import tuned
from planted import X, specs

from cudnnpy import Convolution, TensorSpec
from cudnnpy._core.driver import make_current
from cudnnpy._core.layouts import byte_extent
from cudnnpy.tuning.measuring.bench_buffers import GuardedMemory

CHILD = Path(__file__).with_name("faulty_kernels.py")


@pytest.mark.parametrize(
    "name", ["read_after", "read_far_after", "write_after", "read_before", "write_after_workspace"]
)
def test_an_access_outside_ends_the_process_and_names_the_candidate(name: str) -> None:
    done = subprocess.run([sys.executable, str(CHILD), name], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"lost": "planted", "error": "CUDA_ERROR_ILLEGAL_ADDRESS"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unwritten", "unwritten, infinite or NaN"),
        ("workspace", "unwritten, infinite or NaN"),
        ("gap", "changes the gaps of its result"),
    ],
)
def test_a_faulty_result_is_rejected_with_its_reason(name: str, reason: str) -> None:
    chosen, bad, real = tuned(name)
    assert bad.rejection_reason.startswith(f"wrong result: {reason}")
    assert chosen in real
    assert not any(candidate.rejection_reason for candidate in real)


def test_a_candidate_without_a_fault_is_not_rejected() -> None:
    _, good, real = tuned("nothing")
    assert not good.rejection_reason
    assert not any(candidate.rejection_reason for candidate in real)


def test_operands_are_mapped_to_their_last_byte() -> None:
    """By the driver's own account: cuPointerGetAttribute tells which addresses are mapped."""
    from cuda.bindings import driver

    make_current(0)
    given = [TensorSpec(X, "float32", (6272, 196, 14, 1)), TensorSpec((5,), "float32", (1,), 4)]
    memory = GuardedMemory(given, 0)
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE

    def is_mapped(address: int) -> bool:
        return int(driver.cuPointerGetAttribute(attribute, address)[0]) == 0

    for spec, address in zip(given, memory.pointers, strict=True):
        end = address + byte_extent(spec)
        assert is_mapped(end - 1)
        assert not is_mapped(end + 16)
    memory.is_at_end = False
    for address in memory.pointers:
        assert is_mapped(address)
        assert not is_mapped(address - 1)
    memory.is_at_end = True
    space = memory.workspace(1000)
    assert is_mapped(space)
    assert is_mapped(space + 999)
    memory.close()
    assert not is_mapped(space)


@pytest.mark.parametrize("alignment", [4, 8])
def test_operands_with_less_alignment_are_tuned_on_such_addresses(alignment: int) -> None:
    x, w = (spec._replace(alignment=alignment) for spec in specs("forward"))
    plan = Convolution(padding=1, prefer="autotune", tune_seconds=3.0).plan("forward", x, w)
    assert plan.milliseconds is not None
