"""The exceptions of the package.

Their tree, with the statuses that raise them::

    CudnnError
      LibraryError              libcudnn cannot be used
        LibraryNotFoundError      libcudnn is not found or cannot be loaded
        LibraryVersionError       libcudnn has the wrong version
        FunctionNotAvailableError libcudnn lacks a function
      StatusError               a cuDNN function returned a status other than CUDNN_STATUS_SUCCESS
        NotInitializedError       1001
        VersionMismatchError      1002, 1003
        SubLibraryError           1008
        BadParameterError         2xxx (also a ValueError)
        NotSupportedError         3xxx
        InternalError             4xxx
          AllocationFailedError     4003, 4004 (also a MemoryError)
        ExecutionFailedError      5xxx
      ClosedError               an object is used after close(), or in a process forked from its owner's
      CaptureError              a call has to plan while its stream is being captured
      NoAlgorithmError          no candidate meets the request
      PlanningError             the process that plans for a device profile failed
"""

from __future__ import annotations

from cudnnpy._checks.public_dir import PublicDir, complete_module
from cudnnpy._process.cuda_state import NO_DRIVER, cuda_problem, has_driver
from cudnnpy._process.installation import to_install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cudnnpy._planning.candidates import Candidate
    from cudnnpy.descriptors import AlgorithmCandidate


class CudnnError(PublicDir, Exception):
    """The base class of the exceptions of this package. Invalid arguments raise TypeError and ValueError instead.

    Copies and pickles keep the message and the attributes, whatever the arguments of the constructor are. An exception
    that cannot be unpickled would make a pool of multiprocessing wait forever.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # without the constructor, which composes the message
        return BaseException.__new__, (type(self), *self.args), self.__dict__


class LibraryError(CudnnError):
    """libcudnn cannot be used as requested."""


class LibraryNotFoundError(LibraryError):
    """libcudnn, or a library that it needs, is not found or cannot be loaded."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self._of_cudnn = f"{reason.rstrip('.')}. {advice}"  # the message for what needs no driver
        if not advice:
            self._of_cudnn += f"Install cuDNN: {to_install()}; or name a file: CUDNNPY_LIBRARY=..."
        needs_cudnn_alone = not advice and not has_driver()
        but_cudnn = f"{NO_DRIVER}. Descriptors and `cudnnpy plan` need no driver, but cuDNN: "
        super().__init__(f"{but_cudnn if needs_cudnn_alone else ''}{self._of_cudnn}")


class LibraryVersionError(LibraryError):
    """The loaded libcudnn is not of major version 9, or not of the release that a serialized plan was made for."""


class FunctionNotAvailableError(LibraryError):
    """The loaded libcudnn lacks a function that another release of cuDNN 9 has."""


class ClosedError(CudnnError):
    """An object is used after close(), or in a process that was forked after the object was made."""


class StatusError(CudnnError):
    """A cuDNN function returned a status other than CUDNN_STATUS_SUCCESS."""

    function: str  #: the C function, or "" if it is not known
    status: int  #: the number of the status
    name: str  #: the name of the status
    detail: str  #: the text of cudnnGetLastErrorString, "" if there is none
    advice = ""  #: what to do, as the last line of the message
    _needs_cuda = False  # whether a missing driver or GPU explains the status; it is then the message's first line

    def __init__(self, function: str, status: int, name: str, detail: str = "") -> None:
        self.function, self.status, self.name, self.detail = function, status, name, detail
        message = f"{function} returned {name} ({status})" if function else f"{name} ({status})"
        if detail:
            message += f": {detail}"
        if problem := self._needs_cuda and cuda_problem():
            message = f"{problem}\n{message}"
        elif self.advice:
            message += f"\n{self.advice}"
        super().__init__(message)


class NotInitializedError(StatusError):
    """CUDNN_STATUS_NOT_INITIALIZED: usually there is no driver or no GPU."""

    advice = "No usable CUDA driver and GPU in this process? `cudnnpy info` tells."
    _needs_cuda = True


class VersionMismatchError(StatusError):
    """The sub-libraries, or serialized data, have different versions."""

    advice = "Parts of cuDNN of different versions meet; `cudnnpy info` names each file and its version."


class SubLibraryError(StatusError):
    """One of cuDNN's own sub-libraries cannot be loaded."""

    advice = (
        "The graph API needs the CUDA driver (libcuda.so.1), libcublas, libnvrtc and every libcudnn_* file, and one of them "
        "cannot be loaded; `cudnnpy info` tells."
    )
    _needs_cuda = True


class BadParameterError(StatusError, ValueError):
    """cuDNN rejected an argument (2xxx)."""


class NotSupportedError(StatusError):
    """cuDNN does not implement the request (3xxx)."""


class InternalError(StatusError):
    """An internal error of cuDNN (4xxx)."""


class AllocationFailedError(InternalError, MemoryError):
    """cuDNN could not allocate host or device memory."""


class ExecutionFailedError(StatusError):
    """A kernel could not be launched, or failed (5xxx)."""


_BY_NUMBER: dict[int, type[StatusError]] = {
    1001: NotInitializedError,
    1002: VersionMismatchError,
    1003: VersionMismatchError,
    1008: SubLibraryError,
    4003: AllocationFailedError,
    4004: AllocationFailedError,
}
_BY_CATEGORY: dict[int, type[StatusError]] = {
    2: BadParameterError,
    3: NotSupportedError,
    4: InternalError,
    5: ExecutionFailedError,
}


def status_error(function: str, status: int, name: str, detail: str = "") -> StatusError:
    """Return the exception for the number of a status, known or not."""
    kind = _BY_NUMBER.get(status) or _BY_CATEGORY.get(status // 1000, StatusError)
    return kind(function, status, name, detail)


class CaptureError(CudnnError):
    """A call has to plan while its stream is being captured into a CUDA graph."""


class NoAlgorithmError(CudnnError):
    """No candidate meets the request. The message has a table of all candidates with their rejection reasons.

    It begins with the rule of cuDNN's engines that a graph breaks, if one is known.
    """

    problem: str  #: the problem, as text
    #: the candidates, each a `Candidate` or `AlgorithmCandidate`; in a copy or another process they cannot be run
    candidates: Sequence[Candidate | AlgorithmCandidate]

    def __init__(
        self,
        problem: str,
        wanted: str,
        table: str,
        candidates: Sequence[Candidate | AlgorithmCandidate],
        rule: str = "",
    ) -> None:
        self.problem, self.candidates = problem, candidates
        begin = f"{rule}\n" if rule else ""
        super().__init__(f"{begin}no algorithm for {problem}\n  asked for: {wanted}\n{table}")


class PlanningError(CudnnError):
    """A problem cannot be planned for a device profile. The message has cuDNN's reason, or how the process that plans ended."""


__all__ = sorted(  # noqa: PLE0605
    name for name, value in globals().items() if isinstance(value, type) and issubclass(value, CudnnError)
)

complete_module(globals())
