"""Statuses and the exceptions that they become."""

from __future__ import annotations

from ctypes import byref

import pytest

from cudnnpy import errors, raw
from cudnnpy.errors import StatusError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (raw.CUDNN_STATUS_NOT_INITIALIZED, errors.NotInitializedError),
        (raw.CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH, errors.VersionMismatchError),
        (raw.CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH, errors.VersionMismatchError),
        (raw.CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, errors.SubLibraryError),
        (raw.CUDNN_STATUS_DEPRECATED, errors.StatusError),
        (raw.CUDNN_STATUS_BAD_PARAM, errors.BadParameterError),
        (raw.CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, errors.BadParameterError),
        (raw.CUDNN_STATUS_NOT_SUPPORTED, errors.NotSupportedError),
        (raw.CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, errors.NotSupportedError),
        (raw.CUDNN_STATUS_INTERNAL_ERROR, errors.InternalError),
        (raw.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, errors.AllocationFailedError),
        (raw.CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, errors.AllocationFailedError),
        (raw.CUDNN_STATUS_EXECUTION_FAILED, errors.ExecutionFailedError),
        (raw.CUDNN_STATUS_EXECUTION_FAILED_CUBLAS, errors.ExecutionFailedError),
        (2999, errors.BadParameterError),
        (7777, errors.StatusError),
        (1, errors.StatusError),
        (-3, errors.StatusError),
    ],
)
def test_the_exception_of_a_status(status: int, kind: type[StatusError]) -> None:
    with pytest.raises(StatusError) as caught:
        raw.check(status, "cudnnCreate")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.function == "cudnnCreate"
    assert f"cudnnCreate returned {caught.value.name} ({int(status)})" in str(caught.value)


def test_every_status_has_an_exception_of_its_category() -> None:
    for status in raw.cudnnStatus_t:
        if status == raw.CUDNN_STATUS_SUCCESS:
            raw.check(status)
            continue
        with pytest.raises(StatusError) as caught:
            raw.check(status)
        assert caught.value.name == status.name
        assert f"{status.name} ({status.value})" in str(caught.value)


def test_an_unknown_status_says_that_it_is_unknown() -> None:
    with pytest.raises(StatusError, match=r"^an unknown status \(7777\)$"):
        raw.check(7777)


def test_they_are_the_builtin_exceptions_that_callers_expect() -> None:
    assert issubclass(errors.BadParameterError, ValueError)
    assert issubclass(errors.AllocationFailedError, MemoryError)
    assert issubclass(errors.AllocationFailedError, errors.InternalError)
    public = [one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__]
    assert all(issubclass(kind, errors.CudnnError) for kind in public)


def test_the_library_says_why() -> None:
    descriptor = raw.cudnnTensorDescriptor_t()
    raw.call("cudnnCreateTensorDescriptor", byref(descriptor))
    with pytest.raises(errors.BadParameterError) as caught:
        raw.call("cudnnSetTensor4dDescriptor", descriptor, 0, 0, 1, 0, 1, 1)
    assert "c <= 0" in caught.value.detail
    assert (
        str(caught.value) == f"cudnnSetTensor4dDescriptor returned CUDNN_STATUS_BAD_PARAM (2000): {caught.value.detail}"
    )
    raw.call("cudnnDestroyTensorDescriptor", descriptor)


def test_the_text_belongs_to_the_failing_call_alone() -> None:
    with pytest.raises(StatusError):
        raw.call("cudnnSetTensor4dDescriptor", None, 0, 0, 1, 1, 1, 1)
    raw.last_error()
    assert raw.last_error() == ""


@pytest.mark.parametrize("status", [1001, 1008])
def test_a_missing_gpu_is_the_first_line_of_a_status_that_it_explains(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(errors, "cuda_problem", lambda: "there is a CUDA driver, and no GPU")
    error = errors.status_error("cudnnCreate", status, "A_NAME", "a reason")
    assert str(error) == f"there is a CUDA driver, and no GPU\ncudnnCreate returned A_NAME ({status}): a reason"
    monkeypatch.setattr(errors, "cuda_problem", lambda: None)
    error = errors.status_error("cudnnCreate", status, "A_NAME", "a reason")
    assert str(error).startswith(f"cudnnCreate returned A_NAME ({status}): a reason\n")
    assert "`cudnnpy info`" in str(error)


def test_another_status_is_explained_by_cudnn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "cuda_problem", lambda: "there is a CUDA driver, and no GPU")
    assert str(errors.status_error("cudnnCreate", 2000, "A_NAME")) == "cudnnCreate returned A_NAME (2000)"
