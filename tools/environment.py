"""Make the virtual environments that the Makefile uses, with what this machine needs and nothing else installed.

Standard library only, so that a fresh machine with Python 3.11 and make can run it::

    python3 tools/environment.py                                      # prints cu13, cu12 or none
    python3 tools/environment.py .venv/edges --extras cli --cudnn auto

An environment is installed again only when what it is made from (pyproject.toml, the extras, the flavour of cuDNN,
the pins, the Python version) has changed since; a stamp file in it remembers that.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAVOURS = ("cu12", "cu13")
NONE = "none"
TORCH = "torch"  # the flavour that the package index's PyTorch brings
STAMP = "cudnnpy-environment.sha256"
DOWNLOADS = {"cu12": 1.4, "cu13": 1.1, TORCH: 3.0}  # GB, of the extra's packages
# What is imported is compiled then: 0.1 GB less. On a terminal pip shows what it downloads, which takes minutes.
INSTALL = ("install", *([] if sys.stdout.isatty() else ["-q"]), "--no-compile")
ROOM = 12  # GB: PyTorch's wheels, and beside them the same unpacked


def driver_cuda_version() -> int:
    """Return the CUDA version of the installed driver as 1000 * major + 10 * minor, or 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int(0)
    return version.value if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else 0


def releases() -> dict[str, str]:
    """Return pyproject.toml's table of the cuDNN releases that the tests run with: a name -> a requirement for pip."""
    table: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cudnnpy"]["cudnn"]
    return table


def flavour_of(requirement: str) -> str:
    """Return the flavour of a requirement for cuDNN: cu12 of "nvidia-cudnn-cu12==9.0.0.312"."""
    return requirement.partition("==")[0].removeprefix("nvidia-cudnn-")


def distribution_version(folder: Path, name: str) -> str | None:
    """Return the version of distribution `name` installed in the environment `folder`, None where it is not."""
    stem = name.replace("-", "_")
    for info in folder.glob(f"lib/python3*/site-packages/{stem}-*.dist-info"):
        return info.name.removeprefix(f"{stem}-").removesuffix(".dist-info")
    return None


def fingerprint(extras: list[str], flavour: str, pins: list[str]) -> str:
    """Return the digest of everything that an environment is made from."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    digest.update(repr((sys.version_info[:2], sorted(extras), flavour, sorted(pins))).encode())
    return digest.hexdigest()


def run(*command: str | Path) -> None:
    """Run a command, echoed when it fails, and stop with its exit status then."""
    status = subprocess.run([os.fspath(part) for part in command], check=False).returncode
    if status:
        print("failed:", *command, file=sys.stderr)
        sys.exit(status)


def check_room(folder: Path, gigabytes: int) -> None:
    """Stop where the disk that `folder` is on has less free."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e9
    if free < gigabytes:
        sys.exit(f"no room for {folder}: it needs about {gigabytes} GB, and {free:.1f} GB are free")


def keep_one_flavour(folder: Path, flavour: str, pip: list[str | Path]) -> None:
    """Remove the other flavour of cuDNN and lay the wanted one down again.

    Both wheels install the same files into nvidia/cudnn, so the last one installed wins file by file, and a mixture of
    two releases is what would be left. The other one arrives through the dependencies of other packages.
    """
    for other in FLAVOURS:
        if other == flavour or distribution_version(folder, f"nvidia-cudnn-{other}") is None:
            continue
        print(f"removing nvidia-cudnn-{other}, which shares its folder with nvidia-cudnn-{flavour}", flush=True)
        run(*pip, "uninstall", "-y", "-q", f"nvidia-cudnn-{other}")
        if flavour != NONE:
            wanted = f"nvidia-cudnn-{flavour}"
            version = distribution_version(folder, wanted)
            run(*pip, *INSTALL, "--force-reinstall", "--no-deps", f"{wanted}=={version}")


def make(folder: Path, extras: list[str], flavour: str, pins: list[str]) -> None:
    """Create the environment `folder`, or bring it up to date, and do nothing when it already is."""
    stamp = folder / STAMP
    wanted = fingerprint(extras, flavour, pins)
    python = folder / "bin" / "python"
    packages = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    if flavour != NONE:
        extras = [*extras, flavour]
    size = f" (a download of about {DOWNLOADS[flavour]} GB)" if flavour in DOWNLOADS else ""
    print(f"setting up {folder}: {', '.join(['cudnnpy', *extras, *pins])}{size}", flush=True)
    if flavour == TORCH:
        check_room(folder, ROOM)
    stamp.unlink(missing_ok=True)
    try:
        venv.create(folder, clear=not (python.exists() and packages.is_dir()), with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit("this Python cannot make a virtual environment with pip: install its venv package (python3-venv)")
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
    if flavour == TORCH:
        run(*pip, *INSTALL, "-e", f"{ROOT}[{TORCH}]")
        flavour = brought_flavour(folder)
        extras = [*extras, flavour]
    run(*pip, *INSTALL, "-e", f"{ROOT}[{','.join(extras)}]", *pins)
    keep_one_flavour(folder, flavour, pip)
    stamp.write_text(wanted)


def brought_flavour(folder: Path) -> str:
    """Return the flavour of cuDNN that PyTorch brought into an environment; of a CPU build, the one that suits here."""
    brought = [name for name in FLAVOURS if distribution_version(folder, f"nvidia-cudnn-{name}") is not None]
    return brought[0] if brought else flavour_here("cu12")


def flavour_here(without_driver: str) -> str:
    """Return the flavour that suits this machine's driver, `without_driver` where there is none of CUDA 12 or newer."""
    major = driver_cuda_version() // 1000
    if major >= 13:
        return "cu13"
    return "cu12" if major == 12 else without_driver


def names(text: str) -> list[str]:
    """Split a comma-separated list of extras, refusing what pip would misread."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", part):
            raise argparse.ArgumentTypeError(f"an extra must be one of pyproject.toml; got {part!r}")
    return parts


def main(arguments: list[str] | None = None) -> None:
    """Run the program; see the module's own text."""
    parser = argparse.ArgumentParser(
        description="Make a virtual environment for cudnnpy. Without a folder: print the flavour of cuDNN needed here."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="the environment to make or bring up to date")
    parser.add_argument("--extras", type=names, default=[], help="extras of cudnnpy to install, separated by commas")
    parser.add_argument(
        "--cudnn",
        choices=("auto", *FLAVOURS, "oldest", TORCH, NONE),
        default="auto",
        help="the flavour of cuDNN; auto follows the driver (default), torch follows PyTorch",
    )
    parser.add_argument(
        "--tested",
        action="store_true",
        help="take the release that pyproject.toml names for the tests, not the newest; oldest is one of these",
    )
    parser.add_argument(
        "--without-driver",
        choices=(*FLAVOURS, NONE),
        default=NONE,
        help="what auto means where no driver is (default: none)",
    )
    options = parser.parse_args(arguments)
    flavour: str = options.cudnn
    pins: list[str] = []
    if flavour == "auto":
        flavour = flavour_here(options.without_driver)
    if options.tested or flavour == "oldest":
        tested = releases().get(flavour)
        if tested is not None:
            flavour, pins = flavour_of(tested), [tested]
    if options.folder is None:
        print(flavour)
    else:
        make(options.folder, options.extras, flavour, pins)


if __name__ == "__main__":
    main()
