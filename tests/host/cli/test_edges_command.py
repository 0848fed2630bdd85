"""`cudnnpy edges`: its output, its exit status, files that it overwrites, and every bad input."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cudnnpy._launch.dispatch import MEMORY_ADVICE
from cudnnpy.cli import command as cli
from cudnnpy.cli import edges
from cudnnpy.cli.arguments import size
from cudnnpy.errors import CudnnError, NoAlgorithmError

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
COMMAND = [sys.executable, "-m", "cudnnpy", "edges"]


def command(*arguments, cwd=ROOT, **options):
    """Run `python -m cudnnpy edges ...` without a GPU; its output is bytes."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
    if "input" in options:
        del options["stdin"]
    return subprocess.run([*COMMAND, *map(str, arguments)], cwd=cwd, env=ENVIRONMENT, check=False, **options)


def levels(path=edges.SAMPLE, sigmoid=False):
    """The edges of an image."""
    return edges.to_levels(edges.detect(edges.load(path), device="cpu", sigmoid=sigmoid).values)


def noise(path, size=(300, 200), mode="RGB"):
    Image.effect_noise(size, 90).convert(mode).save(path)
    return path


def test_edges_of_the_sample_into_the_current_folder(tmp_path):
    done = command(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "edges.png: the edges of the sample image, 640 x 400"
    assert [line.split()[0] for line in lines[1:]] == ["device", "algorithm", "workspace", "time"]
    assert "CPU" in lines[1]
    assert lines[3].split()[1:] == ["0", "bytes"]
    assert float(lines[4].split()[1]) > 0
    assert (np.asarray(Image.open(tmp_path / "edges.png")) == levels()).all()
    assert [path.name for path in tmp_path.iterdir()] == ["edges.png"]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("size", [(1, 1), (7, 3)])
def test_every_kind_of_image_is_accepted(tmp_path, capsys, mode, size):
    name = "p.tiff" if mode in ("CMYK", "F", "I") else "p.png"
    noise(tmp_path / name, size, mode)
    out = tmp_path / "out.png"
    assert cli.main(["edges", str(tmp_path / name), "-o", str(out), "--device", "cpu"]) == 0
    assert f"{size[0]} x {size[1]}" in capsys.readouterr().out
    written = Image.open(out)
    assert (written.size, written.mode) == (size, "RGB")
    assert (np.asarray(written) == levels(tmp_path / name)).all()


def test_sigmoid_changes_the_image(tmp_path):
    plain, curved = tmp_path / "a.png", tmp_path / "b.png"
    assert cli.main(["edges", "--device", "cpu", "-o", str(plain)]) == 0
    assert cli.main(["edges", "--device", "cpu", "--sigmoid", "-o", str(curved)]) == 0
    assert (np.asarray(Image.open(curved)) == levels(sigmoid=True)).all()
    assert (np.asarray(Image.open(plain)) != np.asarray(Image.open(curved))).any()


# Why the GPU was not used


def test_it_says_in_one_line_why_the_gpu_was_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(edges, "why_unavailable", lambda: "there is no driver:\n  install one")
    assert cli.main(["edges", "-o", str(tmp_path / "x.png")]) == 0
    said = "cudnnpy edges: the GPU was not used: there is no driver: install one (cudnnpy info tells more)\n"
    assert capsys.readouterr().err == said
    assert cli.main(["edges", "-o", str(tmp_path / "y.png"), "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""  # as it was asked for
    assert cli.main(["edges", "-o", str(tmp_path / "z.png"), "--device", "cuda"]) == 2
    assert capsys.readouterr() == ("", "cudnnpy edges: there is no driver: install one\n")


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.png"], "missing.png: No such file"),
        (["text.png"], "text.png: not an image"),
        (["empty.ppm"], "empty.ppm: not an image|empty.ppm: the image cannot be read"),
        (["short.png"], "short.png: "),
        (["bomb.ppm"], "bomb.ppm: the image cannot be read: Image size (40000000000 pixels)"),
        ([".", "--device", "cpu"], ".: Is a directory"),
        (["loop.png"], "loop.png: Too many levels of symbolic links"),
        (["socket"], "socket: "),
        (["-o", "nowhere/x.png"], "there is no folder"),
        (["-o", "there.png/x.png"], "there is no folder|Not a directory"),
        (["-o", "x.ico"], "x.ico: the name must end in .png, .jpg, .jpeg, .bmp, .tif, .tiff, which gives the format"),
        (["wide.png", "-o", "x.jpg"], "x.jpg: a side of a JPEG has at most 65,500 pixels, and the image is 65501 x 1"),
        (["-o", "-"], "'-' is not the name of a file to write"),
        (["-"], "-: No such file"),
        (["--format", "png"], "unrecognized arguments: --format"),
        (["-o", "."], "is a folder"),
        (["-o", "there.png"], "there.png: the file exists; --force overwrites it"),
        (["there.png", "-o", "there.png"], "there.png: the file exists; --force"),
        (["there.png", "-o", "link.png"], "link.png: the file exists; --force"),
        (["there.png", "-o", "twin.png"], "twin.png: the file exists; --force"),
        (["-o", "socket", "--force"], "socket: is not a file to write"),
        (["-o", "n" * 300 + ".png"], "File name too long"),
        (["--prefer", "quickest"], "quickest"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda"], "there is no driver"),
        (["--workspace-limit", "64 apples"], "64 apples"),
        (["--workspace-limit", "-1"], "-1|argument"),
        (["--workspace-limit"], "argument"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capfd, arguments, words):
    monkeypatch.setattr(edges, "why_unavailable", lambda: "there is no driver")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.ppm").write_bytes(b"P6 0 0 255\n")
    (tmp_path / "bomb.ppm").write_bytes(b"P6 200000 200000 255\n")
    (tmp_path / "short.png").write_bytes(Path(edges.SAMPLE).read_bytes()[:20_000])
    noise(tmp_path / "wide.png", (65_501, 1))
    monkeypatch.setattr(edges, "to_levels", None)  # no edges are computed
    there = noise(tmp_path / "there.png")
    (tmp_path / "link.png").symlink_to("there.png")
    (tmp_path / "twin.png").hardlink_to(there)
    (tmp_path / "loop.png").symlink_to("loop.png")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        before = files(tmp_path)
        assert cli.main(["edges", *arguments]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("cudnnpy edges: ")
    assert any(word in printed.err for word in words.split("|")), printed.err
    assert files(tmp_path) == before


def files(folder):
    """What is in a folder: names, kinds and modes, times and contents."""
    return {
        path.name: (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.iterdir()
    }


def test_an_existing_output_does_not_hide_that_the_input_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.png").write_text("")
    assert cli.main(["edges", "missing.png"]) == 2
    assert capsys.readouterr().err == "cudnnpy edges: missing.png: No such file or directory\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (
            NoAlgorithmError("forward: x", "prefer='no_workspace'", "  engine 1  too large\n  engine 2  uses tf32", []),
            2,
        ),
        (CudnnError("the GPU fell from the table"), 1),
        (MemoryError("device 0 has no 1 bytes"), 1),
    ],
)
def test_what_cudnn_could_not_do_is_told_whole(tmp_path, capsys, monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(edges, "detect", fail)
    assert cli.main(["edges", "-o", str(tmp_path / "x.png")]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"cudnnpy edges: {error}\n")
    assert list(tmp_path.iterdir()) == []


def test_out_of_memory_advises_options_of_the_command(tmp_path, capsys, monkeypatch):
    def fail(*_, **__):
        raise MemoryError(f"out of memory on device 0. {MEMORY_ADVICE}")

    monkeypatch.setattr(edges, "detect", fail)
    assert cli.main(["edges", "-o", str(tmp_path / "x.png")]) == 1
    said = (
        "out of memory on device 0. --prefer no_workspace and --workspace-limit SIZE need less workspace, and --device"
    )
    assert capsys.readouterr().err == f"cudnnpy edges: {said} cpu no GPU\n"


def test_the_commands_options_reach_the_detector(tmp_path, monkeypatch):
    given_to = {}

    def remember(image, **options):
        given_to.update(options)
        return edges.Edges(image, "a GPU", "engine 7", 5, 0.25)

    monkeypatch.setattr(edges, "detect", remember)
    out = tmp_path / "x.png"
    options = ["--device", "cuda", "--sigmoid", "--prefer", "limited_workspace", "--workspace-limit", "64MiB"]
    assert cli.main(["edges", "-o", str(out), *options]) == 0
    expected = {"device": "cuda", "sigmoid": True, "prefer": "limited_workspace", "workspace_limit": 64 * 2**20}
    assert given_to == expected


def test_an_animation_says_which_image_is_used(tmp_path, capsys):
    first, *others = (Image.new("RGB", (5, 4), colour) for colour in ("red", "blue", "green"))
    first.save(tmp_path / "p.gif", save_all=True, append_images=others)
    assert cli.main(["edges", str(tmp_path / "p.gif"), "-o", str(tmp_path / "x.png"), "--device", "cpu"]) == 0
    assert capsys.readouterr().err == f"cudnnpy edges: {tmp_path / 'p.gif'}: image 1 of 3 is read\n"


# Overwriting


@pytest.mark.parametrize("output", ["p.png", "link.png"])
def test_force_replaces_also_the_input_and_a_link_stays(tmp_path, output):
    path = noise(tmp_path / "p.png")
    expected = levels(path)
    path.chmod(0o600)
    (tmp_path / "link.png").symlink_to("p.png")
    done = command("p.png", "-o", output, "--force", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (np.asarray(Image.open(path)) == expected).all()
    assert path.stat().st_mode & 0o7777 == 0o600
    assert (tmp_path / "link.png").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_is_no_text_is_printed_all_the_same(tmp_path):
    done = command("-o", b"\xff.png".decode(errors="surrogateescape"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\\udcff.png: the edges of")
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"\xff.png"]


# Ctrl-C


def interrupted_at(fifo, arguments):
    """Run the command until it opens a FIFO whose other end this process holds, press Ctrl-C, and return how it ended."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from cudnnpy.cli import main; sys.exit(main(['edges', *sys.argv[1:]]))"
    )
    os.mkfifo(fifo)
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        with open(fifo, "wb"):  # waits until the command opens it
            running.send_signal(signal.SIGINT)
            done = running.communicate()
        return running.returncode, *done


def test_ctrl_c_while_reading(tmp_path):
    status, out, err = interrupted_at(tmp_path / "fifo", [tmp_path / "fifo", "-o", tmp_path / "x.png"])
    assert (status, out, err) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


# Sizes


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
    assert size(text) == expected
