"""A process that plans with the real libcudnn for a device that JSON describes: planner.py, with the stub driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from cudnnpy import raw
from cudnnpy.tuning.profiles import stub_driver

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"
FIRST_WITH_PROFILES = 90800  # cuDNN 9.8


class Planner:
    """The process that plans. A call is a request; a refusal is raised as Refused.

    To list candidates or an engine's knobs takes long and changes nothing, so that equal requests are asked once.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors
        self._known: dict[str, str] = {}

    def __call__(self, do: str, **request: Any) -> Any:
        asked = json.dumps({"do": do, **request})
        line = self._known.get(asked) or self._answer(asked)
        if do in {"survey", "knobs"}:
            self._known[asked] = line
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer)
        return answer["answer"]

    def _answer(self, asked: str) -> str:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(f"{asked}\n")
        to.flush()
        line = answers.readline()
        if not line:
            said = [row for row in self._errors.read_text().splitlines() if "Could not load" not in row]
            pytest.fail(f"the planner ended ({self._process.wait()}) at {asked}:\n" + "\n".join(said[-30:]))
        return line


class Refused(Exception):
    """What the planner raised: its type's name, its text, and for NoAlgorithmError the candidates."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['text']}")
        self.kind, self.text, self.candidates = answer["error"], answer["text"], answer.get("candidates", [])


def profile() -> Path:
    """The newest profile that the loaded cuDNN can read; keys are added with versions."""
    files = {
        tuple(map(int, re.findall(r"(\d+)\.(\d+)\.json$", file.name)[0])): file for file in DATA.glob("h200-*.json")
    }
    assert len(files) >= 2
    loaded = raw.version() // 10000, raw.version() % 10000 // 100
    return files[max((version for version in files if version <= loaded), default=min(files))]


@pytest.fixture(scope="session")
def planning_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that plans for a profile: with a stand-in for the driver."""
    if raw.version() < FIRST_WITH_PROFILES:
        pytest.skip(f"device profiles came with cuDNN 9.8; {raw.version_text(raw.version())} is loaded")
    folder = tmp_path_factory.mktemp("driver")
    (folder / stub_driver.LIBRARY).write_bytes(stub_driver.content())
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
        "CUDNNPY_MODELS": "",  # the order is that of the heuristics
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


@pytest.fixture(scope="module")
def plan(planning_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planner]:
    errors = tmp_path_factory.mktemp("planner") / "stderr"
    command = [HERE / "planner.py", profile()]
    with errors.open("w") as stderr, _started(command, planning_environment, stderr) as process:
        yield Planner(process, errors)


def _started(command: list[Path], environment: dict[str, str], stderr: IO[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=environment,
        text=True,
    )
