"""The command: `edges` and `info`, their output, their exit status, and every bad input."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import cudnnpy
from cudnnpy import availability, cli, edges, pictures, raw
from cudnnpy.errors import CudnnError, NoAlgorithmError

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments, cwd=ROOT, **environment):
    """Run `python -m cudnnpy ...`; no GPU is visible to it, so that the outcome is the same everywhere."""
    return subprocess.run(
        [sys.executable, "-m", "cudnnpy", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_version():
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"cudnnpy {cudnnpy.__version__}\n")


def test_edges_of_the_sample_into_the_current_folder(tmp_path):
    done = command("edges", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "edges.png: the edges of the sample picture, 640 x 400"
    assert [line.split()[0] for line in lines[1:]] == ["device", "algorithm", "workspace", "time"]
    assert "CPU" in lines[1]
    assert lines[3].split()[1:] == ["0", "bytes"]
    assert float(lines[4].split()[1]) > 0
    expected = pictures.to_bytes(edges.detect(pictures.load(pictures.SAMPLE), device="cpu").picture)
    assert (np.asarray(Image.open(tmp_path / "edges.png")) == expected).all()
    assert [path.name for path in tmp_path.iterdir()] == ["edges.png"]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK"])
@pytest.mark.parametrize("size", [(1, 1), (7, 3)])
def test_every_kind_of_picture_is_accepted(tmp_path, capsys, mode, size):
    name = "p.tiff" if mode == "CMYK" else "p.png"
    Image.effect_noise(size, 90).convert(mode).save(tmp_path / name)
    out = tmp_path / "out.png"
    assert cli.main(["edges", str(tmp_path / name), "-o", str(out), "--device", "cpu"]) == 0
    assert f"{size[0]} x {size[1]}" in capsys.readouterr().out
    written = Image.open(out)
    assert (written.size, written.mode) == (size, "RGB")


def test_sigmoid_changes_the_picture(tmp_path):
    plain, curved = tmp_path / "a.png", tmp_path / "b.png"
    assert cli.main(["edges", "--device", "cpu", "-o", str(plain)]) == 0
    assert cli.main(["edges", "--device", "cpu", "--sigmoid", "-o", str(curved)]) == 0
    found = edges.detect(pictures.load(pictures.SAMPLE), device="cpu", sigmoid=True).picture
    assert (np.asarray(Image.open(curved)) == pictures.to_bytes(found)).all()
    assert (np.asarray(Image.open(plain)) != np.asarray(Image.open(curved))).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["edges", "missing.png"], "missing.png"),
        (["edges", "text.png"], "not a picture"),
        (["edges", "empty.ppm"], "no pixels|not a picture|cannot be read"),
        (["edges", "."], "directory"),
        (["edges", "-o", "nowhere/x.png"], "nowhere"),
        (["edges", "-o", "x.unknown"], "'.unknown'"),
        (["edges", "--prefer", "quickest"], "quickest"),
        (["edges", "--device", "tpu"], "tpu"),
        (["edges", "--device", "cuda"], "driver|GPU"),
        (["edges", "--workspace-limit", "64 apples"], "64 apples"),
        (["edges", "--workspace-limit", "-1"], "-1|argument"),
        (["edges", "--workspace-limit"], "argument"),
        (["edges", "a.png", "b.png"], "b.png"),
        (["paint"], "paint"),
        ([], "COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, arguments, words):
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.ppm").write_bytes(b"P6 0 0 255\n")
    before = sorted(tmp_path.iterdir())
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("cudnnpy")
    assert any(word in done.stderr for word in words.split("|"))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (
            NoAlgorithmError("forward: x", "prefer='no_workspace'", "  engine 1  too large\n  engine 2  uses tf32", []),
            2,
        ),
        (CudnnError("the GPU fell\nfrom the table"), 1),
        (MemoryError("device 0 has no 1 bytes"), 1),
    ],
)
def test_what_cudnn_could_not_do_is_told_whole(tmp_path, capsys, monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli, "detect", fail)
    assert cli.main(["edges", "-o", str(tmp_path / "x.png")]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"cudnnpy edges: {error}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_commands_options_reach_the_detector(tmp_path, monkeypatch):
    given_to = {}

    def remember(picture, **options):
        given_to.update(options)
        return edges.Edges(picture, "a GPU", "engine 7", 5, 0.25)

    monkeypatch.setattr(cli, "detect", remember)
    out = tmp_path / "x.png"
    options = ["--device", "cuda", "--sigmoid", "--prefer", "limited_workspace", "--workspace-limit", "64MiB"]
    assert cli.main(["edges", "-o", str(out), *options]) == 0
    expected = {"device": "cuda", "sigmoid": True, "prefer": "limited_workspace", "workspace_limit": 64 * 2**20}
    assert given_to == expected


def test_the_command_loads_neither_cudnn_nor_cuda():
    program = (
        "import sys, cudnnpy.cli; from cudnnpy.raw import _library; assert _library._loaded is None; "
        "print(*{name for name in sys.modules if name in ('cuda.core', 'cuda.bindings', 'torch', 'PIL', 'rich')})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1000", 1000),
        ("17B", 17),
        ("512KB", 512_000),
        ("512kb", 512_000),
        ("64MiB", 64 * 2**20),
        ("1GiB", 2**30),
        ("1 GB", 10**9),
        ("2TiB", 2**41),
        ("1.5KiB", 1536),
        (str(10**18), 10**18),
    ],
)
def test_sizes(text, expected):
    assert cli.size(text) == expected


@given(st.one_of(st.text(), st.from_regex(r"-?[0-9.]*\s?[A-Za-z]{0,4}", fullmatch=True)))
def test_any_text_is_a_size_or_refused(text):
    try:
        number = cli.size(text)
    except argparse.ArgumentTypeError:
        number = 0
    assert isinstance(number, int)
    assert number >= 0


def test_info_without_a_gpu(tmp_path):
    done = command("info", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "cuDNN cannot be used here"
    assert raw.path() in done.stdout
    assert raw.version_text(raw.version()) in done.stdout
    assert "libcudnn_ops.so.9" in done.stdout
    assert "problem: " in done.stdout


def test_info_where_no_cudnn_is(tmp_path):
    done = command("info", CUDNNPY_LIBRARY=str(tmp_path / "libcudnn.so.9"))
    assert done.returncode == 1
    assert "not loaded" in done.stdout
    assert "CUDNNPY_LIBRARY" in done.stdout


def test_info_without_cuda_python():
    program = (
        "import sys; sys.modules['cuda.bindings'] = None\n"
        "from cudnnpy import cli\n"
        "sys.exit(cli.main(['info']))"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "cuda-bindings, which speaks to the driver, is not installed: pip install" in done.stdout


def test_info_names_mixed_origins_and_missing_files(tmp_path):
    """A folder with libcudnn, and of the sub-libraries one alone, which lies elsewhere."""
    original = Path(raw.path())
    library = Path(shutil.copy(original, tmp_path))
    (tmp_path / "libcudnn_graph.so.9").symlink_to(original.with_name("libcudnn_graph.so.9"))
    done = command("info", CUDNNPY_LIBRARY=str(library))
    assert done.returncode == 1
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    mixed = next(line for line in problems if "different folders" in line)
    assert str(tmp_path) in mixed
    assert str(original.parent) in mixed
    missing = next(line for line in problems if "not found" in line)
    for part in ("ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled"):
        assert f"libcudnn_{part}.so.9" in missing
    assert "libcudnn_graph" not in missing


def test_info_where_libcudnn_lies_alone(tmp_path):
    done = command("info", CUDNNPY_LIBRARY=shutil.copy(raw.path(), tmp_path))
    assert done.returncode == 1
    assert done.stderr == ""
    # nothing else to be found, or another installation's sub-libraries, which is told as well
    said = ("libcudnn_graph.so.9: cannot open shared object file", "from different folders are loaded")
    assert any(words in done.stdout for words in said)


def test_the_report_and_the_two_questions_agree():
    found = availability.report()
    assert found.why_unavailable == cudnnpy.why_unavailable()
    assert cudnnpy.is_available() is (found.why_unavailable is None)
    assert found.cudnn == raw.version_text(raw.version())
    assert found.libraries[0].path == raw.path()
    assert bool(found.gpus) or found.problems
    assert len({library.path for library in found.libraries}) == len(found.libraries)
