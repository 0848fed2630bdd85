"""Whether cuDNN can be used here, and why not; and the report of `cudnnpy info`: GPUs, loaded files, and their wheels."""

from __future__ import annotations

import glob
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from ctypes import byref
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from cudnnpy import raw
from cudnnpy._checks.public_dir import complete_module
from cudnnpy._launch.launcher import why_not_proven
from cudnnpy._process.cuda_state import CUDA_MAJORS, CudaState, cuda_state, error_text
from cudnnpy._process.cuda_state import version_text as cuda_version_text
from cudnnpy._process.installation import to_install, with_extra
from cudnnpy._process.module_state import process_cache
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError
from cudnnpy.raw import _library
from cudnnpy.raw._library_files import PARTS, examine, parts_of, places, unmet_parts

__all__ = ["Gpu", "Library", "Report", "UnavailableError", "is_available", "report", "why_unavailable"]

_FRAMEWORKS = ("ml-dtypes", "numba", "numba-cuda", "numpy", "tensorflow", "torch", "triton")
_VERSION_CHECKS = ("Graph", "Ops", "Cnn", "Adv")
_REPLACED = "replaced since it was loaded"  # an origin
_DELETED = " (deleted)"  # the kernel's mark of a mapped file that is no longer there

# The files of the installed nvidia-cudnn-* wheels, with the wheels (name, version) that list them.
_Owners: TypeAlias = dict[str, list[tuple[str, str]]]


class UnavailableError(CudnnError):
    """cuDNN cannot be used in this process. The message names the missing part and the remedy."""


@dataclass(frozen=True)
class Library:
    """A file of cuDNN.

    Attributes
    ----------
    name, path : str
        The file.
    version : str or None
        The release, such as "9.28.0"; None if it is unknown.
    origin : str
        The wheel with its version, "conda", "system", the environment variable that leads to the file, such as
        "LD_LIBRARY_PATH", or "another folder".

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
    origin: str = ""


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
    libraries : tuple of Library
        The files of cuDNN that are loaded into this process; the first is libcudnn itself.
    not_loaded : tuple of Library
        The files that later calls of cuDNN load. If libcudnn cannot be loaded, also itself.
    elsewhere : tuple of Library
        The files of cuDNN in the other places that are searched, which this package does not use.
    why_unavailable : str or None
        The reason why cuDNN cannot be used; None if it can.
    launches : tuple of str
        For each GPU whether direct launches are on by default (`set_direct_launches`); none if cuDNN cannot be used.
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
    not_loaded: tuple[Library, ...]
    elsewhere: tuple[Library, ...]
    cudnn_built_for: str | None
    driver: str | None
    runtime: str | None
    bindings: str | None
    core: str | None
    gpus: tuple[Gpu, ...]
    launches: tuple[str, ...]
    packages: dict[str, str]
    problems: tuple[str, ...]
    why_unavailable: str | None

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the report as pairs of a label and a text, for printing."""
        yield "system", self.system
        yield "Python", self.python
        yield "cudnnpy", self.package
        yield "cuDNN", "not loaded" if self.cudnn is None else f"{self.cudnn}, built for CUDA {self.cudnn_built_for}"
        for state, libraries in (
            ("loaded", self.libraries),
            ("not loaded", self.not_loaded),
            ("not used", self.elsewhere),
        ):
            for (folder, version, origin), names in _groups(libraries).items():
                listed = names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"
                yield f"  {state}", f"{version}, {origin}  {os.path.join(folder, listed)}"
        yield "CUDA driver", self.driver or "none"
        yield "CUDA runtime", self.runtime or "none"
        yield "cuda-bindings", self.bindings or "not installed"
        yield "cuda-core", self.core or "not installed"
        for gpu, launches in zip_longest(self.gpus, self.launches):
            major, minor = gpu.compute_capability
            yield f"GPU {gpu.index}", f"{gpu.name}, compute capability {major}.{minor}, {gpu.memory / 2**30:.1f} GiB"
            if launches:
                yield "  launches", launches
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
    state = cuda_state()
    cuda_missing = _why_without_cuda(state)
    problems = [cuda_missing] if cuda_missing else []
    cudnn = built_for = None
    try:
        raw.load()
    except CudnnError as error:
        problems = [problem for problem in problems if problem not in str(error)] + [str(error)]
    else:
        cudnn = raw.version_text(raw.version())
        built_for = cuda_version_text(raw.cudnnGetCudartVersion())
    why = why_unavailable()
    owners = _owners_of_files()
    if cudnn is not None:
        problems += _part_problems(owners)  # first, since it loads sub-libraries
    libcudnn = _library.file_to_load() if cudnn is None else raw.path()
    loaded = tuple(_loaded_files(owners, None if cudnn is None else libcudnn))
    not_loaded = () if libcudnn is None else tuple(_files_to_load(libcudnn, loaded, owners))
    if loaded:
        problems += _file_problems(loaded, owners, not_loaded)
    driver = state.driver
    if driver and built_for and int(built_for.split(".")[0]) > int(driver.split(".")[0]):
        supported, built = driver.split(".")[0], built_for.split(".")[0]
        older = f", or pip uninstall nvidia-cudnn-cu{built} and pip install {with_extra(f'cu{supported}')}"
        problems.append(
            f"cuDNN is built for CUDA {built_for}, and the driver is for CUDA {driver}: update the driver"
            f"{older if supported in CUDA_MAJORS else ''}"
        )
    if why is not None and not any(problem in why or why in problem for problem in problems):
        problems.append(why)
    gpus, packages = tuple(map(_gpu, range(state.gpu_count))), _packages()
    return Report(
        system=_system(),
        python=f"{platform.python_version()} ({sys.executable})",
        package=f"{__version__} ({Path(__file__).resolve().parent})",
        cudnn=cudnn,
        libraries=loaded,
        not_loaded=not_loaded,
        elsewhere=tuple(_files_elsewhere((*loaded, *not_loaded), owners)),
        cudnn_built_for=built_for,
        driver=driver,
        runtime=state.runtime,
        bindings=packages.get("cuda-bindings"),
        core=packages.get("cuda-core"),
        gpus=gpus,
        launches=tuple(map(_launches, gpus)) if why is None else (),
        packages=packages,
        problems=tuple(problems),
        why_unavailable=why,
    )


def usable_cuda() -> CudaState:
    """Return the state of CUDA, with one GPU at least, and load cuDNN, without making a context on a GPU.

    Raises UnavailableError or LibraryError if one of them cannot be used. A missing driver is reported before a missing
    libcudnn, which would not help without the driver.
    """
    state = cuda_state()
    if problem := _why_without_cuda(state):
        raise UnavailableError(problem)
    raw.load()
    return state


@process_cache  # only success: exceptions are not cached
def _probe() -> None:
    usable_cuda()
    handle = raw.cudnnHandle_t()
    raw.call("cudnnCreate", byref(handle))
    raw.call("cudnnDestroy", handle)


def _why_without_cuda(state: CudaState) -> str | None:
    """Return why CUDA cannot be used, cuda-bindings included; None if it can."""
    if state.problem is None and state.runtime is None:
        return f"cuda-bindings, which speaks to the driver, is not installed: {to_install()}"
    return state.problem


def _gpu(index: int) -> Gpu:
    from cuda.bindings import runtime

    error, properties = runtime.cudaGetDeviceProperties(index)
    if error:
        return Gpu(index, f"unknown ({error_text(runtime, error)})", (0, 0), 0)
    name = properties.name.decode(errors="replace").rstrip("\0")
    return Gpu(index, name, (properties.major, properties.minor), int(properties.totalGlobalMem))


def _launches(gpu: Gpu) -> str:
    """Return who launches the kernels of plans on a GPU by default."""
    why = why_not_proven(".".join(map(str, gpu.compute_capability)))
    return f"by cuDNN ({why})" if why else "direct, where they are verified"


def _system() -> str:
    """Return the operating system, the architecture of the processor and the C library."""
    library = " ".join(platform.libc_ver()).strip()
    return f"{platform.system()} {platform.release()} {platform.machine()}{', ' if library else ''}{library}"


def _packages() -> dict[str, str]:
    """Return the installed packages that matter for compatibility, by name."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in _FRAMEWORKS or name.startswith(("nvidia-", "cuda-", "cupy", "jax")):
            versions.setdefault(name, distribution.version)  # the first one is imported
    return dict(sorted(versions.items()))


def _groups(libraries: Iterable[Library]) -> dict[tuple[str, str, str], list[str]]:
    """Return the names of libraries by their folder, version and origin."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for library in libraries:
        folder = os.path.dirname(os.path.realpath(library.path))
        groups.setdefault((folder, library.version or "version unknown", library.origin), []).append(library.name)
    return groups


def _file_problems(libraries: tuple[Library, ...], owners: _Owners, later: tuple[Library, ...] = ()) -> Iterator[str]:
    """Yield the problems of the files that are loaded, and of those that are loaded later.

    These are several folders, releases or wheels, and files that were replaced.
    """
    groups = _groups((*libraries, *later))
    listed = "; ".join(
        f"{', '.join(names)} ({version}) from {folder}" for (folder, version, _), names in groups.items()
    )
    if len({folder for folder, *_ in groups}) > 1:
        yield (
            f"files of cuDNN from different folders are loaded{', or would be' if later else ''}: {listed}. One process "
            "can use one cuDNN: uninstall one of them, or take its folder out of LD_LIBRARY_PATH, or name the other's "
            "libcudnn.so.9 in CUDNNPY_LIBRARY before anything else loads cuDNN"
        )
    elif len({library.version for library in (*libraries, *later) if library.version}) > 1:
        yield f"files of cuDNN are of different releases: {listed}. Install all of cuDNN again, in one release"
    replaced = ", ".join(library.name for library in libraries if library.origin == _REPLACED)
    if replaced:
        yield (
            f"{replaced}: replaced since this process loaded it, so that files that are loaded later may be of another "
            "release. Restart the process"
        )
    wheels = [name for name, _version in owners.get(os.path.realpath(libraries[0].path), ())]
    if len(wheels) > 1:
        both = " and ".join(sorted(wheels))
        yield (
            f"{both} are installed into the same folder, so that files of both may lie there: pip uninstall both, "
            f"then {to_install()}"
        )


def _part_problems(owners: _Owners) -> Iterator[str]:
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


# The files of cuDNN that this process has loaded, that it would load, and that lie elsewhere. None is loaded here.


def _owners_of_files() -> _Owners:
    """Return the files of the installed wheels of cuDNN with their wheels."""
    owners: _Owners = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("_", "-").startswith("nvidia-cudnn-"):
            for file in distribution.files or ():
                if file.name.startswith("libcudnn"):
                    path = os.path.realpath(str(distribution.locate_file(file)))
                    owners.setdefault(path, []).append((name, distribution.version))
    return owners


def _loaded_files(owners: _Owners, first: str | None) -> Iterator[Library]:
    """Yield the files of cuDNN in this process's memory map, whoever loaded them. `first`, if it is loaded, comes first."""
    paths: dict[str, str] = {} if first is None else {os.path.realpath(first): first}
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").split(maxsplit=5)[-1]
            if os.path.basename(path).startswith("libcudnn"):
                real = os.path.realpath(path.removesuffix(_DELETED))
                if path.endswith(_DELETED) or real not in paths:
                    paths[real] = path
    for path in paths.values():
        file = _library_file(path, owners)
        yield replace(file, version=raw.version_text(raw.version())) if file.path == first else file


def _files_to_load(file: str, loaded: tuple[Library, ...], owners: _Owners) -> Iterator[Library]:
    """Yield the parts of a libcudnn, and itself, unless a file of their name is loaded: later calls of cuDNN load them."""
    names = {other.name for other in loaded}
    for path in (file, *(part.path for _name, part in parts_of(file))):
        if os.path.basename(path) not in names:
            yield _library_file(path, owners)


def _files_elsewhere(used: tuple[Library, ...], owners: _Owners) -> Iterator[Library]:
    """Yield the files of cuDNN in the other places that are searched, which another program may load."""
    known = {os.path.realpath(other.path) for other in used}
    for folder in dict.fromkeys(folder for _origin, folder in places("libcudnn.so.9")):
        for path in sorted(glob.iglob(os.path.join(glob.escape(folder), "libcudnn*.so.9"))):
            if os.path.realpath(path) not in known:
                known.add(os.path.realpath(path))
                yield _library_file(path, owners)


def _library_file(path: str, owners: _Owners) -> Library:
    name = os.path.basename(path)
    if path.endswith(_DELETED):
        return Library(name.removesuffix(_DELETED), path.removesuffix(_DELETED), None, _REPLACED)
    return Library(name, path, _version(path, owners), _origin(path, owners))


def _version(path: str, owners: _Owners) -> str | None:
    """Return the version of a file: by its content or its name, otherwise by its wheel."""
    part = re.fullmatch(r"libcudnn_(\w+)\.so\.9", os.path.basename(path))
    release = examine(part[1] if part else "", path).release
    if release:
        return raw.version_text(release)
    versions = {version for _name, version in owners.get(os.path.realpath(path), ())}
    return ".".join(versions.pop().split(".")[:3]) if len(versions) == 1 else None


def _origin(path: str, owners: _Owners) -> str:
    """Return the wheels that have a file, or the place that is searched for it."""
    if wheels := owners.get(os.path.realpath(path)):
        return " and ".join(f"wheel {name} {version}" for name, version in wheels)
    folders = {os.path.realpath(os.path.dirname(one)) for one in (path, os.path.realpath(path))}
    named = os.environ.get(_library.VARIABLE)
    if named and os.path.realpath(os.path.dirname(named)) in folders:
        return _library.VARIABLE
    found = (origin for origin, folder in places(os.path.basename(path)) if os.path.realpath(folder) in folders)
    origin = next(found, "another folder")
    return {"wheel": "site-packages, of no wheel", "CONDA_PREFIX": "conda"}.get(origin, origin)


complete_module(globals())
