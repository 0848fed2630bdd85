"""Whether cuDNN can be used here, and why not: `is_available`, `why_unavailable`, and the report of `cudnnpy info`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from cudnnpy import raw
from cudnnpy._installation import to_install, with_extra
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError
from cudnnpy.raw._consistency import PARTS, unmet_parts

__all__ = ["Gpu", "Library", "Report", "UnavailableError", "is_available", "report", "why_unavailable"]

_CUDA_MAJORS = ("12", "13")  # the CUDA versions that an extra is for
_FRAMEWORKS = ("ml-dtypes", "numba", "numba-cuda", "numpy", "tensorflow", "torch", "triton")
_VERSION_CHECKS = ("Graph", "Ops", "Cnn", "Adv")

# The files of the installed nvidia-cudnn-* wheels, with the wheels (name, version) that list them.
Owners: TypeAlias = dict[str, list[tuple[str, str]]]


class UnavailableError(CudnnError):
    """cuDNN cannot be used in this process. The message names the missing part and the remedy."""


@dataclass(frozen=True)
class Library:
    """A file of cuDNN that is loaded into this process. `version` is None if it is unknown.

    Examples
    --------
    >>> from cudnnpy import availability
    >>> library, *_ = availability.report().libraries
    >>> library.name
    'libcudnn.so.9'
    """

    name: str
    path: str
    version: str | None


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees: `memory` is in bytes, `compute_capability` is (major, minor).

    Examples
    --------
    >>> # on a GPU
    >>> from cudnnpy import availability
    >>> gpu, *_ = availability.report().gpus
    >>> gpu.index
    0
    """

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory: int


@dataclass(frozen=True)
class Report:
    """The report of `cudnnpy info`: the libraries, packages and GPUs of this machine. The version of a missing part is None.

    Attributes
    ----------
    why_unavailable : str or None
        The reason why cuDNN cannot be used; None if it can.
    packages : dict
        The relevant installed packages with their versions: NumPy, packages of CUDA and NVIDIA, the frameworks.
    problems : tuple of str
        Missing or inconsistent parts, each with the remedy. It can be non-empty on a machine where cuDNN can be used.

    Examples
    --------
    >>> from cudnnpy import availability
    >>> report = availability.report()
    >>> [label for label, _ in report.rows()][:2]
    ['system', 'Python']
    """

    system: str
    python: str
    package: str
    cudnn: str | None
    libraries: tuple[Library, ...]
    cudnn_built_for: str | None
    driver: str | None
    runtime: str | None
    bindings: str | None
    core: str | None
    gpus: tuple[Gpu, ...]
    packages: dict[str, str]
    problems: tuple[str, ...]
    why_unavailable: str | None

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the report as pairs of a label and a text, for printing."""
        yield "system", self.system
        yield "Python", self.python
        yield "cudnnpy", self.package
        yield "cuDNN", "not loaded" if self.cudnn is None else f"{self.cudnn}, built for CUDA {self.cudnn_built_for}"
        for library in self.libraries:
            yield f"  {library.name}", f"{library.version or 'version unknown'}  {library.path}"
        yield "CUDA driver", self.driver or "none"
        yield "CUDA runtime", self.runtime or "none"
        yield "cuda-bindings", self.bindings or "not installed"
        yield "cuda-core", self.core or "not installed"
        for gpu in self.gpus:
            major, minor = gpu.compute_capability
            yield f"GPU {gpu.index}", f"{gpu.name}, compute capability {major}.{minor}, {gpu.memory / 2**30:.1f} GiB"
        if not self.gpus:
            yield "GPU", "none"


def is_available() -> bool:
    """Return whether cuDNN can be used: there are a library, a driver and a GPU, and a cuDNN handle can be created.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.is_available() == (cudnnpy.why_unavailable() is None)
    True
    """
    return why_unavailable() is None


def why_unavailable() -> str | None:
    """Return why cuDNN cannot be used, with the remedy, or None if it can be used.

    The first successful call creates and destroys a cuDNN handle on the current device; later calls return its result.

    Examples
    --------
    >>> import cudnnpy
    >>> reason = cudnnpy.why_unavailable()
    >>> reason is None or isinstance(reason, str)
    True
    """
    try:
        _probe()
    except CudnnError as error:
        return str(error)
    return None


def report() -> Report:
    """Return the report of `cudnnpy info`. If nothing is installed, its problems name the missing parts.

    Examples
    --------
    >>> from cudnnpy import availability
    >>> report = availability.report()
    >>> report.system.startswith("Linux")
    True
    """
    problems: list[str] = []
    cudnn = built_for = None
    try:
        raw.load()
    except CudnnError as error:
        problems.append(str(error))
    else:
        cudnn = raw.version_text(raw.version())
        built_for = _cuda_text(raw.cudnnGetCudartVersion())
    why = why_unavailable()
    libraries: tuple[Library, ...] = ()
    if cudnn is not None:
        owners = _owners()
        problems += _part_problems(owners)  # before _loaded, since it loads sub-libraries
        libraries = tuple(_loaded(owners))
        problems += _file_problems(libraries, owners)
    driver, runtime, gpus, cuda_problem = _cuda_state()
    if cuda_problem:
        problems.append(cuda_problem)
    if driver and built_for and int(built_for.split(".")[0]) > int(driver.split(".")[0]):
        supported, built = driver.split(".")[0], built_for.split(".")[0]
        older = f", or pip uninstall nvidia-cudnn-cu{built} and pip install {with_extra(f'cu{supported}')}"
        problems.append(
            f"cuDNN is built for CUDA {built_for}, and the driver is for CUDA {driver}: update the driver"
            f"{older if supported in _CUDA_MAJORS else ''}"
        )
    if why is not None and not any(problem in why or why in problem for problem in problems):
        problems.append(why)
    return Report(
        system=_system(),
        python=f"{platform.python_version()} ({sys.executable})",
        package=f"{__version__} ({Path(__file__).resolve().parent})",
        cudnn=cudnn,
        libraries=libraries,
        cudnn_built_for=built_for,
        driver=driver,
        runtime=runtime,
        bindings=_distribution("cuda-bindings"),
        core=_distribution("cuda-core"),
        gpus=gpus,
        packages=_packages(),
        problems=tuple(problems),
        why_unavailable=why,
    )


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process sees, without making a context on them. Raises UnavailableError if there is none."""
    raw.load()
    *_, gpus, problem = _cuda_state()
    if problem:
        raise UnavailableError(problem)
    return gpus


@cache  # only success: exceptions are not cached
def _probe() -> None:
    raw.load()
    problem = _cuda_state()[-1]
    if problem:
        raise UnavailableError(problem)
    handle = raw.cudnnHandle_t()
    raw.call("cudnnCreate", byref(handle))
    raw.call("cudnnDestroy", handle)


def _cuda_state() -> tuple[str | None, str | None, tuple[Gpu, ...], str | None]:
    """Return the CUDA versions of the driver and the runtime, the GPUs, and why CUDA cannot be used."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None, None, (), f"cuda-bindings, which speaks to the driver, is not installed: {to_install()}"
    _error, version = runtime.cudaRuntimeGetVersion()
    runtime_version = _cuda_text(version)
    _error, version = runtime.cudaDriverGetVersion()
    if not version:
        return None, runtime_version, (), "no CUDA driver (libcuda.so.1) was found: install NVIDIA's driver"
    driver = _cuda_text(version)
    error, count = runtime.cudaGetDeviceCount()
    if error == runtime.cudaError_t.cudaErrorInsufficientDriver:
        major = driver.split(".")[0]
        older = f", or pip install {with_extra(f'cu{major}')}" if major in _CUDA_MAJORS else ""
        advice = f"update the driver{older}"
        return (
            driver,
            runtime_version,
            (),
            f"the driver is for CUDA {driver} and cuda-bindings for CUDA {runtime_version}: {advice}",
        )
    if error == runtime.cudaError_t.cudaErrorNoDevice or (not error and not count):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r}, which may hide it)"
        return driver, runtime_version, (), f"there is a CUDA driver, and no GPU{cause}"
    if error:
        return (
            driver,
            runtime_version,
            (),
            f"CUDA cannot be used: {_cuda_error(runtime, error)}; nvidia-smi may tell more",
        )
    return driver, runtime_version, tuple(_gpu(runtime, index) for index in range(count)), None


def _gpu(runtime: Any, index: int) -> Gpu:
    error, properties = runtime.cudaGetDeviceProperties(index)
    if error:
        return Gpu(index, f"unknown ({_cuda_error(runtime, error)})", (0, 0), 0)
    name = properties.name.decode(errors="replace").rstrip("\0")
    return Gpu(index, name, (properties.major, properties.minor), int(properties.totalGlobalMem))


def _cuda_error(runtime: Any, error: Any) -> str:
    _status, text = runtime.cudaGetErrorString(error)
    return f"{text.decode()} ({int(error)})"


def _cuda_text(version: int) -> str:
    """Return a CUDA version as text: "12.9" for 12090."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _distribution(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    """Return the operating system, the architecture of the processor and the C library."""
    library = " ".join(platform.libc_ver()).strip()
    return f"{platform.system()} {platform.release()} {platform.machine()}{', ' if library else ''}{library}"


def _packages() -> dict[str, str]:
    """Return the installed packages that matter for compatibility, by name."""
    versions = {}
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in _FRAMEWORKS or name.startswith(("nvidia-", "cuda-", "cupy", "jax")):
            versions[name] = distribution.version
    return dict(sorted(versions.items()))


def _loaded(owners: Owners) -> Iterator[Library]:
    """Yield the files of cuDNN in this process's memory map; the first is libcudnn itself."""
    paths = {raw.path(): None}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.basename(path).startswith("libcudnn") and not _same_file(path, paths):
                paths[path] = None
    for path in paths:
        yield Library(os.path.basename(path), path, _file_version(path, owners))


def _same_file(path: str, paths: dict[str, None]) -> bool:
    return any(os.path.realpath(path) == os.path.realpath(other) for other in paths)


def _owners() -> Owners:
    owners: Owners = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("_", "-").startswith("nvidia-cudnn-"):
            for file in distribution.files or ():
                if file.name.startswith("libcudnn"):
                    path = os.path.realpath(str(distribution.locate_file(file)))
                    owners.setdefault(path, []).append((name, distribution.version))
    return owners


def _file_version(path: str, owners: Owners) -> str | None:
    """Return the version of a file: libcudnn's by cudnnGetVersion, otherwise by the file's name, otherwise by its wheel."""
    if path == raw.path():
        return raw.version_text(raw.version())
    real = os.path.realpath(path)
    numbers = os.path.basename(real).partition(".so.")[2]
    if "." in numbers:
        return numbers
    versions = {version for _name, version in owners.get(real, ())}
    return versions.pop() if len(versions) == 1 else None


def _file_problems(libraries: tuple[Library, ...], owners: Owners) -> Iterator[str]:
    folders: dict[str, list[str]] = {}
    for library in libraries:
        folders.setdefault(os.path.dirname(os.path.realpath(library.path)), []).append(library.name)
    if len(folders) > 1:
        listed = "; ".join(f"{', '.join(names)} from {folder}" for folder, names in folders.items())
        yield (
            f"files of cuDNN from different folders are loaded: {listed}. One process can use one cuDNN: uninstall "
            "one of them, or take its folder out of LD_LIBRARY_PATH, or name the other's libcudnn.so.9 in "
            "CUDNNPY_LIBRARY before anything else loads cuDNN"
        )
    wheels = [name for name, _version in owners.get(os.path.realpath(libraries[0].path), ())]
    if len(wheels) > 1:
        both = " and ".join(sorted(wheels))
        yield (
            f"{both} are installed into the same folder, so that files of both may lie there: pip uninstall both, "
            f"then {to_install()}"
        )


def _part_problems(owners: Owners) -> Iterator[str]:
    """Yield the problems of the sub-libraries: missing files, and files that do not match libcudnn."""
    folder, name = os.path.split(os.path.realpath(raw.path()))
    files = {file.split(".so")[0] for file in os.listdir(folder)}
    missing = [part for part in PARTS if f"libcudnn_{part}" not in files]
    if missing:
        wheels = owners.get(os.path.join(folder, name))
        again = f"pip install --force-reinstall --no-deps {wheels[0][0]}" if wheels else "install cuDNN again"
        names = ", ".join(f"libcudnn_{part}.so.9" for part in missing)
        yield f"{names}, parts of cuDNN, not found in {folder}: {again}"
    for problem in unmet_parts(raw.path()):
        yield f"{problem}: install all of cuDNN again, in one release"
    for part in _VERSION_CHECKS:
        if part.lower() in missing:
            continue  # cuDNN 9.0 would end the process
        status = getattr(raw, f"cudnn{part}VersionCheck")()
        if status:
            yield (
                f"libcudnn_{part.lower()} cannot be used with libcudnn {raw.version_text(raw.version())} "
                f"({raw.cudnnStatus_t(status).name}): install all of cuDNN again, in one version"
            )
