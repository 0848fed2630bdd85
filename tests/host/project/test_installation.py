"""What a package file installs: the wheel and the sdist are built, and each is installed where nothing else is.

No package index is asked: numpy, cuda-pathfinder and platformdirs, the package's only requirements, are links to the
environment that the tests run in, and hatchling is one of the tests' own requirements.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import cudnnpy
from cudnnpy import raw
from cudnnpy._process import installation
from cudnnpy._process.cuda_state import NO_DRIVER, without_python_advice
from cudnnpy.tuning.profiles import stub_driver

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("-q", "--no-index", "--no-deps")


def run(
    *command: Any, cwd: Path | None = None, check: bool = True, libraries: Path | str = ""
) -> subprocess.CompletedProcess[str]:
    """Without this environment's variables, so that the package is found only where it is installed."""
    clean = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, the wheel, and a wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    again = folder / "again"
    run(*PIP, "wheel", *OFFLINE, "--no-build-isolation", "-w", again, sdist)
    return {"sdist": sdist, "wheel": wheel, "wheel of the sdist": next(again.glob("*.whl"))}


@pytest.fixture(scope="module")
def bare(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The python of an environment with a wheel and what it needs, nothing else; and the wheel."""
    folder, wheel = tmp_path_factory.mktemp("environment"), files["wheel"]
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for name in ("numpy", "cuda-pathfinder", "platformdirs"):
        found = metadata.distribution(name)
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).symlink_to(source)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", *OFFLINE, wheel)
    run(*PIP, "--python", python, "check")  # these three are all that it asks for
    return python, wheel


@pytest.fixture(scope="module", params=["no driver", "driver"])
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the loader whose libcuda.so.1 can be loaded, or cannot, whatever driver this machine has."""
    folder = tmp_path_factory.mktemp("libraries")
    if request.param == "driver":
        (folder / stub_driver.LIBRARY).write_bytes(stub_driver.content())
    else:
        (folder / stub_driver.LIBRARY).write_text("no library\n")
    return folder


@pytest.fixture(scope="module")
def answers(bare: tuple[Path, Path], libraries: Path) -> dict[str, list[list[str]]]:
    """What every public name answers there; see bare_installation.py."""
    program = Path(__file__).resolve().parents[2] / "shared" / "bare_installation.py"
    done = run(bare[0], program, cwd=bare[0].parent, libraries=libraries)
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


def has_driver(libraries: Path) -> bool:
    return (libraries / stub_driver.LIBRARY).read_bytes() != b"no library\n"


def install_line(bare: tuple[Path, Path]) -> str:
    """The command that the errors of this installation advise."""
    return f"pip install 'cudnnpy[cu12] @ {bare[1].as_uri()}' (for a driver of CUDA 12; with cu13 in place of cu12"


def test_a_host_array_is_refused_as_one(libraries: Path, answers: dict[str, list[list[str]]]) -> None:
    """Without a driver nobody is sent to copy it."""
    assert len(answers["host"]) > 15
    for use, kind, message in answers["host"]:
        assert kind == "TypeError", (use, message)
        assert "must be an array on a CUDA device; got a host array" in message, use
        assert ("cudnnpy.to_device(array)" in message) == has_driver(libraries), use
        assert message.startswith(NO_DRIVER) != has_driver(libraries), use
        assert "cudnnpy.reference" in message, use


def test_what_needs_a_gpu_says_that_there_is_no_driver_or_what_to_install(
    bare: tuple[Path, Path], libraries: Path, answers: dict[str, list[list[str]]]
) -> None:
    """Nobody without a driver is sent to downloads, which would not help."""
    (_use, _kind, why) = answers["why"][0]
    assert len(answers["no_gpu"]) > 25
    for use, kind, message in [*answers["no_gpu"], answers["why"][0]]:
        assert kind == ("LibraryNotFoundError" if use != "cudnnpy.why_unavailable()" else ""), (use, message)
        if has_driver(libraries):
            of_torch = "cudnnpy.torch" in use
            assert (": pip install torch" if of_torch else install_line(bare)) in message, use
            assert (
                f"{'needs PyTorch, which' if of_torch else 'which speaks to the driver,'} is not installed" in message
            ), use
        else:
            assert message.startswith(why), use
            assert why == NO_DRIVER
            assert "pip install" not in message, use


def test_what_needs_libcudnn_alone_says_what_to_install(
    bare: tuple[Path, Path], libraries: Path, answers: dict[str, list[list[str]]]
) -> None:
    """Without a driver it says so first, and for which uses cuDNN would be enough."""
    assert len(answers["missing"]) >= 10
    assert len(answers["raw"]) == len(raw.functions())
    for use, kind, message in answers["missing"] + answers["raw"]:
        assert kind == "LibraryNotFoundError", (use, message)
        assert install_line(bare) in message, use
        first = (
            "" if has_driver(libraries) else f"{NO_DRIVER}. Descriptors and `cudnnpy plan` need no driver, but cuDNN: "
        )
        assert message.startswith((f"{first}libcudnn.so.9 was not found", f"{first}libcudnn needs libcublas")), use


def test_what_needs_neither_works(answers: dict[str, list[list[str]]]) -> None:
    assert [one for one in answers["works"] + answers["unused"] if one[1]] == []
    assert {use for use, *_ in answers["unused"]} <= {"cudnnpy.TensorSpec", "cudnnpy.raw"}


def test_no_method_misses_a_module(answers: dict[str, list[list[str]]]) -> None:
    assert len(answers["methods"]) > 40
    kinds = {"ImportError", "ModuleNotFoundError", "OSError", "NameError"}
    assert [one for one in answers["methods"] if one[1] in kinds] == []


def test_the_command_of_a_bare_installation(bare: tuple[Path, Path], libraries: Path, tmp_path: Path) -> None:
    command = bare[0].with_name("cudnnpy")
    assert run(command, "--version").stdout == f"cudnnpy {cudnnpy.__version__}\n"
    done = run(command, "info", check=False, libraries=libraries)
    assert done.returncode == 1
    assert "cuda-bindings  not installed" in done.stdout
    problems = [line.removeprefix("problem: ") for line in done.stdout.splitlines() if line.startswith("problem: ")]
    if has_driver(libraries):
        assert problems[0].startswith("cuda-bindings, which speaks to the driver, is not installed: pip install")
        assert problems[1].startswith("libcudnn")
        assert all(install_line(bare) in problem for problem in problems)
    else:
        (problem,) = problems
        assert problem.startswith(without_python_advice(NO_DRIVER))
    done = run(command, "edges", cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cudnnpy edges: images need Pillow: pip install ")


@pytest.mark.parametrize("command", [("tune", "problems.txt"), ("explain", "forward 1x3x8x8 4x3x3x3")])
def test_commands_for_a_gpu_say_first_that_there_is_no_driver(
    bare: tuple[Path, Path], libraries: Path, tmp_path: Path, command: tuple[str, str]
) -> None:
    (tmp_path / "problems.txt").write_text("forward 1x3x8x8 4x3x3x3")
    done = run(bare[0].with_name("cudnnpy"), *command, cwd=tmp_path, check=False, libraries=libraries)
    assert done.returncode == 2
    if has_driver(libraries):
        assert install_line(bare) in done.stderr
    else:
        assert done.stderr.startswith(f"cudnnpy {command[0]}: {without_python_advice(NO_DRIVER)}; ")
        assert "cudnnpy.reference" not in done.stderr  # advice of commands, not of Python
        assert "device=" not in done.stderr
        assert "pip install" not in done.stderr


# What the files hold


def test_the_sdist_has_every_file_of_the_repository_but_measured_rows(files: dict[str, Path]) -> None:
    """So that its tests are these tests; .ci/run runs them there."""
    with tarfile.open(files["sdist"]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    if (ROOT / ".git").exists():
        tracked = run("git", "ls-files", cwd=ROOT).stdout.splitlines()
        tracked = [name for name in tracked if (ROOT / name).exists()]
        assert len(tracked) > 100
    else:  # an sdist itself
        assert (ROOT / "PKG-INFO").exists()
        tracked = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("*.py")]
    is_row = re.compile(r"tools/(benchmark|ranking)/rows/").match
    assert [name for name in tracked if name not in inside and not is_row(name)] == []
    assert list(filter(is_row, inside)) == []


def test_the_wheel_has_the_package_and_nothing_else(files: dict[str, Path]) -> None:
    """The sdist gives the same wheel, byte for byte, so that one of them is installed here."""
    contents = []
    for name in ("wheel", "wheel of the sdist"):
        with zipfile.ZipFile(files[name]) as wheel:
            contents.append({file: wheel.read(file) for file in wheel.namelist()})
    assert contents[0] == contents[1]
    names = contents[0].keys()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"cudnnpy", f"cudnnpy-{cudnnpy.__version__}.dist-info"}
    assert {
        "cudnnpy/py.typed",
        "cudnnpy/cli/data/sample.png",
        "cudnnpy/tuning/profiles/device_profiles/h200.json",
        "cudnnpy/raw/_api.pyi",
    } <= names
    models = {
        f"cudnnpy/tuning/ranking/models/{file.name}" for file in (ROOT / "cudnnpy/tuning/ranking/models").iterdir()
    }
    assert models
    assert models <= names


def test_the_metadata(files: dict[str, Path]) -> None:
    with zipfile.ZipFile(files["wheel"]) as wheel:
        text = wheel.read(f"cudnnpy-{cudnnpy.__version__}.dist-info/METADATA").decode()
        licence = wheel.read(f"cudnnpy-{cudnnpy.__version__}.dist-info/licenses/LICENSE").decode()
    headers = text.partition("\n\n")[0]
    assert "Author: The cudnnpy authors" in headers.splitlines()
    assert "License-Expression: Apache-2.0" in headers.splitlines()
    assert licence == (ROOT / "LICENSE").read_text()
    assert sorted(re.findall(r"^Provides-Extra: (\S+)", headers, re.M)) == sorted(PROJECT["optional-dependencies"])
    bare = [line for line in re.findall(r"^Requires-Dist: (.+)", headers, re.M) if "extra ==" not in line]
    assert [re.split(r"[<>=]", line)[0] for line in bare] == ["cuda-pathfinder", "numpy", "platformdirs"]


# The advice


def as_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: object) -> str:
    """The line for a package that pip recorded like this."""
    monkeypatch.setattr(
        installation, "__file__", str(tmp_path / "site-packages" / "cudnnpy" / "_process" / "installation.py")
    )

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if record is None else json.dumps(record)

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    return installation.with_extra.__wrapped__("cu12")


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (None, "'cudnnpy[cu12]'"),
        ({"url": "file:///a%20b/c.whl", "archive_info": {}}, "'cudnnpy[cu12] @ file:///a%20b/c.whl'"),
        ({"url": "file:///home/me/cudnnpy", "dir_info": {}}, "'cudnnpy[cu12] @ file:///home/me/cudnnpy'"),
        (
            {"url": "https://host.example/c.git", "vcs_info": {"vcs": "git", "commit_id": "85d4"}},
            "'cudnnpy[cu12] @ git+https://host.example/c.git@85d4'",
        ),
    ],
)
def test_the_advice_names_where_the_package_came_from(monkeypatch, tmp_path, record, line):
    assert as_installed(monkeypatch, tmp_path, record) == line


def test_the_advice_in_a_clone(monkeypatch, tmp_path):
    assert installation.with_extra.__wrapped__("cli") == f"-e {shlex.quote(f'{ROOT}[cli]')}"
    clone = tmp_path / "my clone"
    (clone / "cudnnpy").mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr(installation, "__file__", str(clone / "cudnnpy" / "_process" / "installation.py"))
    assert installation.with_extra.__wrapped__("cu13") == f"-e '{clone}[cu13]'"


def test_a_package_that_nobody_installed(monkeypatch, tmp_path):
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation, "__file__", str(tmp_path / "cudnnpy" / "_process" / "installation.py"))
    monkeypatch.setattr(metadata, "distribution", missing)
    assert installation.with_extra.__wrapped__("cu12") == "'cudnnpy[cu12]'"
