"""The program that sets up environments: what it decides for a driver, and when it installs again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import environment

ROOT = Path(__file__).resolve().parents[2]


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


def test_names_of_extras():
    assert environment.names("cli, test,") == ["cli", "test"]
    with pytest.raises(environment.argparse.ArgumentTypeError, match="not the name of an extra"):
        environment.names("cli],evil")


def test_every_target_is_in_the_help():
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("edges", "test", "test-oldest", "style", "clean"):
        assert f"make {target} " in done.stdout
