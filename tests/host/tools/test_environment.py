"""The program that sets up environments: its choice for a driver, and when it installs again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import environment, matrix

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("version", "flavour"),
    [(None, "none"), (0, "none"), (11080, "none"), (12000, "cu12"), (12090, "cu12"), (13000, "cu13"), (14010, "cu13")],
)
def test_the_flavour_follows_the_driver(version, flavour):
    assert environment.flavour_for(version) == flavour


def driver(folder, status, version):
    """A driver that has one function, compiled here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler"
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(f"int cuDriverGetVersion(int *version) {{ *version = {version}; return {status}; }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize(("status", "version", "found"), [(0, 12080, 12080), (0, 13000, 13000), (3, 13000, None)])
def test_the_driver_is_asked(tmp_path, status, version, found):
    assert environment.driver_cuda_version(str(driver(tmp_path, status, version))) == found


def test_no_driver(tmp_path):
    assert environment.driver_cuda_version(str(tmp_path / "libcuda.so.1")) is None


def test_without_a_folder_it_prints_the_flavour():
    program = (sys.executable, ROOT / "tools" / "environment.py")
    done = subprocess.run([*program, "--cudnn", "cu13"], capture_output=True, text=True, check=True)
    assert done.stdout == "cu13\n"
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == environment.flavour_for(environment.driver_cuda_version())


@pytest.fixture
def commands(monkeypatch):
    """The commands that would run pip, in place of running them; so the environment needs no pip, which is slow."""
    ran = []
    create = environment.venv.create
    monkeypatch.setattr(environment.venv, "create", lambda folder, clear, with_pip: create(folder, clear=clear))
    monkeypatch.setattr(environment, "run", lambda *command: ran.append([str(part) for part in command]))
    return ran


def test_an_environment_is_made_once_and_again_when_something_changes(tmp_path, commands):
    folder = tmp_path / "e"
    for _ in range(2):
        environment.make(folder, ["cli"], "none", [])
    assert len(commands) == 1
    assert commands[0][-1] == f"{ROOT}[cli]"
    environment.make(folder, ["cli", "test"], "cu12", ["nvidia-cudnn-cu12==9.0.0.312"])
    assert len(commands) == 2
    assert commands[1][-2:] == [f"{ROOT}[cli,test,cu12]", "nvidia-cudnn-cu12==9.0.0.312"]
    (folder / "bin" / "python").unlink()
    environment.make(folder, ["cli", "test"], "cu12", ["nvidia-cudnn-cu12==9.0.0.312"])
    assert len(commands) == 3


def test_what_an_environment_is_made_from(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    prints = {
        environment.fingerprint(["cli"], "none", []),
        environment.fingerprint(["test"], "none", []),
        environment.fingerprint(["cli"], "cu12", []),
        environment.fingerprint(["cli"], "none", ["a==1"]),
    }
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    prints.add(environment.fingerprint(["cli"], "none", []))
    assert len(prints) == 5
    assert environment.fingerprint(["a", "b"], "none", []) == environment.fingerprint(["b", "a"], "none", [])


def test_a_failed_installation_is_tried_again(tmp_path, commands, monkeypatch):
    monkeypatch.setattr(environment, "run", lambda *_command: sys.exit(1))
    with pytest.raises(SystemExit):
        environment.make(tmp_path / "e", [], "none", [])
    assert not (tmp_path / "e" / environment.STAMP).exists()


@pytest.mark.parametrize(("flavour", "other"), [("cu12", "cu13"), ("cu13", "cu12")])
def test_the_wanted_flavour_is_laid_down_last(tmp_path, commands, flavour, other):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / f"nvidia_cudnn_{flavour}-9.28.0.42.dist-info").mkdir(parents=True)
    environment.keep_one_flavour(tmp_path, flavour, ["pip"])
    assert commands == []
    (packages / f"nvidia_cudnn_{other}-9.19.0.1.dist-info").mkdir()
    environment.keep_one_flavour(tmp_path, flavour, ["pip"])
    remove, install = commands
    assert remove == ["pip", "uninstall", "-y", "-q", f"nvidia-cudnn-{other}"]
    assert install[-3:] == ["--force-reinstall", "--no-deps", f"nvidia-cudnn-{flavour}==9.28.0.42"]


# The flavour that PyTorch brings


@pytest.mark.parametrize(("brought", "flavour"), [("cu13", "cu13"), ("cu12", "cu12"), (None, "cu12")])
def test_pytorchs_own_cudnn_is_the_one_that_is_used(tmp_path, commands, monkeypatch, brought, flavour):
    folder = tmp_path / "torch"
    monkeypatch.setattr(environment, "driver_cuda_version", lambda: None)
    monkeypatch.setattr(environment, "ROOM", 0)

    def install(*command):
        commands.append([str(part) for part in command])
        if brought and commands[-1][-1].endswith("[torch]"):
            packages = folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
            (packages / f"nvidia_cudnn_{brought}-9.26.0.51.dist-info").mkdir()

    monkeypatch.setattr(environment, "run", install)
    environment.make(folder, [], "torch", [])
    first, second = commands
    assert first[-1] == f"{ROOT}[torch]"
    assert second[-1] == f"{ROOT}[torch,{flavour}]"
    environment.make(folder, [], "torch", [])
    assert len(commands) == 2


def test_no_room_is_told_before_anything_is_downloaded(tmp_path, commands, monkeypatch):
    monkeypatch.setattr(environment, "ROOM", 10**9)
    with pytest.raises(SystemExit, match=r"no room for .*: it needs about 1000000000 GB, and [\d.]+ GB are free"):
        environment.make(tmp_path / "torch", [], "torch", [])
    assert commands == []
    assert not (tmp_path / "torch").exists()


# The releases of cuDNN that are tested


def asked_for(monkeypatch, *arguments):
    """What `environment.py FOLDER ...` would make."""
    made = []
    monkeypatch.setattr(environment, "make", lambda *what: made.append(what[1:]))
    environment.main(["folder", *arguments])
    return made[0]


def test_the_tests_environments_take_the_tables_releases(monkeypatch):
    table = environment.releases()
    assert list(table) == ["oldest", "cu12", "cu13"]
    assert [environment.flavour_of(one) for one in table.values()] == ["cu12", "cu12", "cu13"]
    for name, release in table.items():
        flavour = environment.flavour_of(release)
        assert asked_for(monkeypatch, "--cudnn", name, "--tested") == ([], flavour, [release])
    assert asked_for(monkeypatch, "--cudnn", "cu12") == ([], "cu12", [])  # the newest
    assert asked_for(monkeypatch, "--cudnn", "none", "--tested") == ([], "none", [])
    monkeypatch.setattr(environment, "driver_cuda_version", lambda: 13020)
    assert asked_for(monkeypatch, "--tested") == ([], "cu13", [table["cu13"]])


def test_the_table_fits_what_the_package_says():
    """The extras take these releases, and the newest are those that the package was generated from."""
    from cudnnpy import raw

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, release in environment.releases().items():
        package, _, version = release.partition("==")
        asked = next(one for one in extras[environment.flavour_of(release)] if one.startswith(package))
        low, high = re.fullmatch(r"[\w-]+>=([\d.]+),<(\d+)", asked).groups()
        numbers = [int(number) for number in version.split(".")]
        assert [int(number) for number in low.split(".")] <= numbers < [int(high)]
        assert (version.rpartition(".")[0] == raw.HEADER_VERSION) is (name != "oldest")


def test_the_readme_names_the_tested_releases_and_pythons():
    pythons, releases = matrix.table()
    text = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "installation.md").read_text()
    table = environment.releases()
    assert releases == list(table)
    tested = {name: ".".join(release.partition("==")[2].split(".")[:3]) for name, release in table.items()}
    wanted = f"{tested['oldest']} and {tested['cu12']} for CUDA 12 and {tested['cu13']} for CUDA 13"
    assert wanted in text
    assert wanted in page
    span = f"{pythons[0]} to {pythons[-1]}"
    assert span in text
    assert span in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    for version in pythons:
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]


# The interpreters


def interpreter(folder, name, version):
    """A program that answers as a Python of that version does; None: one of pyenv's that leads nowhere."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\nexit 127\n" if version is None else f"#!/bin/sh\necho {version}\n")
    file.chmod(0o755)
    return str(file)


def test_interpreters_are_found_on_path_in_pyenv_and_by_uv(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert matrix.find_python("3.12") is None
    by_uv = interpreter(tmp_path / "uvs", "python3.12", "3.12")
    interpreter(tmp_path / "bin", "uv", by_uv)
    assert matrix.find_python("3.12") == by_uv
    interpreter(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin", "python3.12", "3.12")
    newest = interpreter(tmp_path / "pyenv" / "versions" / "3.12.10" / "bin", "python3.12", "3.12")
    interpreter(tmp_path / "pyenv" / "versions" / "3.12-dev" / "bin", "python3.12", "3.12")
    assert matrix.find_python("3.12") == newest
    interpreter(tmp_path / "shims", "python3.12", None)
    assert matrix.find_python("3.12") == newest
    on_path = interpreter(tmp_path / "bin", "python3.12", "3.12")
    assert matrix.find_python("3.12") == on_path
    interpreter(tmp_path / "shims", "python3.12", "3.11")  # not what its name says
    assert matrix.find_python("3.12") == on_path


def test_a_missing_interpreter_is_named_and_no_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.main(["3.12:cu12", "3.13:cu13"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Python 3.12, cuDNN cu12: not tested: no such Python here")
    assert lines[1].startswith("Python 3.13, cuDNN cu13: not tested: no such Python here")


@pytest.mark.parametrize(("status", "word"), [(0, "passed"), (2, "failed")])
def test_the_matrix_is_every_pair_and_tells_each(tmp_path, monkeypatch, capfd, status, word):
    python = interpreter(tmp_path, "python3.12", "3.12")
    (tmp_path / "make").write_text(f"#!/bin/sh\necho ran $*\nexit {status}\n")
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(matrix, "table", lambda: (["3.12", "3.99"], ["oldest", "cu13"]))
    assert matrix.main([]) == bool(status)
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("ran")] == [
        f"ran --no-print-directory test-host PYTHON={python} CUDNN={release}" for release in ("oldest", "cu13")
    ]
    assert [line.split()[4] for line in lines if line.startswith("Python 3.12")] == [word, word]
    assert len([line for line in lines if line.startswith("Python 3.99") and "not tested" in line]) == 2


@pytest.mark.parametrize("text", ["3.12", "3.12:cu11", "2.7:cu12", "cu12:3.12", "3.12:cu12:x"])
def test_a_pair_that_is_none(text):
    with pytest.raises(
        matrix.argparse.ArgumentTypeError, match=r"a pair must be such as 3\.12:cu12, with one of oldest"
    ):
        matrix.pair(text)


def test_names_of_extras():
    assert environment.names("cli, test,") == ["cli", "test"]
    with pytest.raises(environment.argparse.ArgumentTypeError, match="an extra must be one of"):
        environment.names("cli],evil")


def test_every_target_is_in_the_help():
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert "test-matrix" in targets
    for target in set(targets) - {"help"}:
        assert f"make {target} " in done.stdout


# What .ci/run does where PyTorch's environment cannot be made


@pytest.mark.parametrize(("required", "status"), [("", 0), ("1", 2)])
def test_a_missing_pytorch_is_told_and_fails_only_where_it_is_required(tmp_path, required, status):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "environment.py").write_text(
        "import sys\nif '.venv/torch' in sys.argv: sys.exit('no room for .venv/torch')\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "CUDNNPY_REQUIRE_TORCH": required}

    def make(target):
        command = ["make", target, f"PYTHON={sys.executable}"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = make("test-torch-if-possible")
    assert done.returncode == status, done.stderr
    assert "no room for .venv/torch\nNOT TESTED: tests/torch, since the environment with PyTorch" in done.stderr
    assert make("test-torch").returncode == 2


def test_make_test_runs_side_by_side_what_needs_no_gpu(tmp_path):
    """And the tests on a GPU, or what ARGS= names, one after the other."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "test" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def commands(*arguments):
        command = ["make", "-s", "test", "PYTHON=true", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    both = "-m pytest -n 3 --dist loadfile tests/host tests/fuzz", "-m pytest tests/gpu"
    assert commands("JOBS=3") == [*both]
    assert commands("ARGS=tests/x") == ["-m pytest tests/x"]


# The parts of .ci/run that take turns


@pytest.fixture
def ci_run(tmp_path):
    """Returns what .ci/run asks make for at a date."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$@"\n')
    make.chmod(0o755)

    def run(when):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": sys.executable}
        command = ["bash", ROOT / ".ci" / "run", when]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.mark.parametrize(
    "dates", [[f"2026-11-24T{hour:02}" for hour in range(20)], [f"2027-02-{day}" for day in range(10, 29)]]
)
def test_every_part_of_ci_runs_within_twenty_changes(ci_run, dates):
    lines = [ci_run(when).stdout.splitlines()[-1] for when in dates]
    assert all(line.startswith("-j2 --output-sync=target JOBS=1 SHARE=") for line in lines)
    assert all(
        "/8 test " in line and " test-torch-if-possible mutants docs style test-small-extras" in line for line in lines
    )
    found = {re.search(r"test-sdist|PAIRS=([^:]+):cu1[23]|$", line) for line in lines}
    versions, _ = matrix.table()
    assert {match[1] or match[0] for match in found} == {"test-sdist", *versions[1:]}
    assert {re.search(r"SHARE=(\S+)|$", line)[1] for line in lines} == {f"{part}/8" for part in range(1, 9)}


def test_a_date_names_the_parts_of_ci_that_ran(ci_run):
    first, second = ci_run("2026-11-24T09"), ci_run("2026-11-24T09")
    assert first.stdout == second.stdout
    assert first.stdout.startswith(".ci/run 2026-11-24T09: ")
    assert ci_run("yesterweek").returncode
